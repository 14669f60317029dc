"""One group on a tree: the real turns and the real draining of channels, one step at a time in any order.

After every multi and every tick the rules are checked that no history may break: no two channels run a partition, no
two processes fetch one (S1), generations and commands never go back (S3), offsets join without gap or overlap (S5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.hand import Revoked
from tests.support.memlog import from_the_beginning
from tests.support.terms import a_term
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.errors import ChannelGone, FencedInstanceId
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.membership.channel import FencedChannel
from zk_group.consumer.membership.member import CommandDrain
from zk_group.consumer.membership.offsets import CommittedOffsets
from zk_group.consumer.membership.registration import register
from zk_group.consumer.metrics import unread
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.planning.membership import GroupRules
from zk_group.coordinator.planning.plan import NO_RULES
from zk_group.coordinator.planning.snapshot import Snapshot
from zk_group.coordinator.rebalance.group_reader import GroupReader
from zk_group.coordinator.rebalance.observation import Memory, observe
from zk_group.coordinator.rebalance.rebalancer import Rebalancer, Turn
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.errors import BadData, EpochOver, IncarnationOver, Refused, SessionLost
from zk_group.coordinator.zk.lease import LEASE_SHARE
from zk_group.coordinator.zk.store import Operation, SetData
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, EpochRecord, Registration, Topic, parsed_channel

GROUP = "g"
PATHS = GroupPaths(GROUP)
SESSION_S = 3.0
LEASE_S = SESSION_S * LEASE_SHARE
MAX_POLL_MS = 4000
# Unread metrics: to make them takes as long as to run a process.
METER, METRICS = unread(), CoordinatorMetrics()
# The rules are checked after each multi, of which most change no more than one channel.
channel_of, state_of = lru_cache(parsed_channel), lru_cache(GroupState.parse)


class MemberProcess:
    """A consumer process under a name, over as many incarnations and sessions as it takes.

    :ivar stuck: it does not poll; in the background its lease is renewed.
    :ivar deaf: it gets no replies of ZooKeeper, and continues fetching until its lease expires.
    :ivar gone: it has ended, or a newer process has its name.
    :ivar stopped: every stop that it has obeyed.
    """

    def __init__(
        self,
        world: GroupWorld,
        name: str,
        subscription: dict[str, int],
        pattern: str,
        is_static: bool = False,
        protocols: tuple[str, ...] = (),
    ) -> None:
        self.world = world
        self.name = name
        self.subscription = subscription
        self.pattern = pattern
        self.is_static = is_static
        self.protocols = protocols or tuple(world.assignors)
        self.stuck = False
        self.deaf = False
        self.gone = False
        self.fenced: FencedChannel | None = None
        self._previous: str | None = None
        self._giving_up: PartitionSet = NONE
        self._is_busy = False
        self.stopped: list[PartitionSet] = []
        self._renewed_at = float("-inf")
        self._changed_at = 0.0
        self.store = world.session()
        context = MemberContext(ConsumerConfig(zk="tree", group=PATHS.group, consumer=name), world.runtime, METER)
        self._offsets = CommittedOffsets(world.runtime, PATHS, from_the_beginning)
        self._drain = CommandDrain(context, self._offsets, [Revoked(self._give_up)])

    @property
    def is_well(self) -> bool:
        """Whether it is there and does what it should."""
        return not (self.gone or self.deaf or self.stuck)

    @property
    def fetches(self) -> PartitionSet:
        """The partitions that it fetches at this moment, also after its lease."""
        is_over = self.world.runtime.now >= self._renewed_at + LEASE_S
        if self.gone or self.fenced is None or self.fenced.over or is_over:
            return NONE
        return frozenset(self.fenced.channel.running) - self._giving_up

    def tend(self) -> None:
        """The steps of `poll`: register, obey commands, read offsets, move them, refresh its liveness."""
        if not self.is_well or self._is_busy:
            return
        self._is_busy = True
        with self._survived():
            self._drain.drain(self.store, self.fenced or self._register())
            self._move()
        self._giving_up = NONE
        self._is_busy = False

    def renew(self) -> None:
        """The keeper's step."""
        if not self.gone and not self.deaf and self.fenced is not None:
            with self._survived():
                self.fenced.check()
                self._renewed_at = self.world.runtime.now

    @contextmanager
    def _survived(self) -> Iterator[None]:
        """A step that may be refused, or show that the incarnation, the session or all is over."""
        try:
            yield
        except Refused:
            pass
        except FencedInstanceId:
            self.gone = True
        except (SessionLost, ChannelGone):
            self.lose_session()
        except IncarnationOver:
            self.fenced = None

    def leave(self) -> None:
        """Give everything up in one commit, and end."""
        if not self.is_well or self._is_busy or self.fenced is None:
            return
        self._is_busy = True
        self._giving_up = frozenset(self.fenced.channel.running)
        try:
            after, operations = self._offsets.ended(self.store, self.name, self.fenced.channel, "left")
            self.fenced.end(after, operations, IncarnationOver("left"))
        except (Refused, IncarnationOver, SessionLost):
            pass
        self.expire()

    def expire(self) -> None:
        """The process dies, or its session expires after its lease: the same for the others."""
        self.gone = True
        self.store.close()

    def lose_session(self) -> None:
        """Its session ends (its lease has lapsed by then), the process lives on."""
        self.fenced = None
        self.store.close()
        self.store = self.world.session()

    def _register(self) -> FencedChannel:
        registration = Registration(
            incarnation=self.world.runtime.random_id(),
            subscription=self.subscription,
            pattern=self.pattern,
            lease_ms=round(LEASE_S * 1000),
            max_poll_interval_ms=MAX_POLL_MS,
            protocols=self.protocols,
            instance_id=self.name if self.is_static else "",
        )
        now = self.world.runtime.now
        previous = None if self._previous is None else frozenset([self._previous])
        channel, version = register(self.store, PATHS, self.name, registration, previous)
        self._previous = channel.incarnation
        self.fenced = FencedChannel(self.store, self.world.runtime, PATHS, self.name, channel, version)
        self._renewed_at = self._changed_at = now
        return self.fenced

    def change_threads(self, count: int) -> None:
        """The data of its registration changes in place."""
        path = PATHS.id(self.name)
        with suppress(SessionLost, BadData, Refused):
            node = self.store.get(path)
            if node is None:
                return
            before = Registration.parse(path, node.data)
            after = replace(before, subscription=dict.fromkeys(before.subscription, count))
            self.store.commit([SetData(path, after.to_bytes())])
            self.subscription = dict.fromkeys(self.subscription, count)

    def _give_up(self, partitions: PartitionSet) -> None:
        self._giving_up = partitions
        self.stopped.append(partitions)

    def _move(self) -> None:
        """Read the offsets that are not known, and move each that runs by one."""
        fenced, now = self.fenced, self.world.runtime.now
        if fenced is None:
            return
        unread = [partition for partition, offset in fenced.channel.running.items() if offset is None]
        if unread:
            fenced.channel = self._offsets.read(self.store, fenced.channel, unread, fenced.guarded)
        channel = fenced.channel
        if self.fetches and all(offset is not None for offset in channel.running.values()):
            before = dict(channel.running)
            after = replace(channel, running={part: (offset or 0) + 1 for part, offset in before.items()})
            fenced.commit(after)
            self.world.sealed(channel, before)
            self._changed_at = now
        elif now - self._changed_at >= MAX_POLL_MS / 3000:
            fenced.commit(replace(channel, touched=channel.touched + 1))
            self._changed_at = now


class GroupWorld:
    """The group, its processes, its coordinators.

    :param meddle: called before each request of anybody, from where others may act (never from inside themselves).
    """

    def __init__(
        self,
        *assignors: Assignor,
        meddle: Callable[[GroupWorld], None] = lambda world: None,
        rules: GroupRules = NO_RULES,
    ) -> None:
        self.runtime = ManualRuntime()
        self.tree = MemoryTree()
        self.assignors = {assignor.name: assignor for assignor in assignors}
        self.rules = rules
        self.processes: list[MemberProcess] = []
        self.topics: dict[str, Topic] = {}
        self.epoch = 0
        self.writing_turns = 0
        self._in_a_turn: list[Rebalancer] = []
        self.meddle = meddle
        self._is_meddling = False
        self._progress: dict[tuple[TopicPartition, str], int] = {}
        self._excused = False
        self._orders: dict[str, tuple[int, int]] = {}
        self._generation = 0
        self.tree.ensure("/consumers/groups")
        self.tree.put(COORDINATOR_EPOCH, EpochRecord(0).to_bytes())
        self.tree.after_commit = self._after_commit
        self.elect()

    # ---- processes

    def session(self) -> MemoryTreeStore:
        return self.tree.open(self._between, SESSION_S)

    def elect(self) -> None:
        """Another coordinator is elected; the one before does not know, and is stopped by its fence alone."""
        self.epoch += 1
        store = self.session()
        self.tree.put(COORDINATOR_EPOCH, EpochRecord(self.epoch).to_bytes())
        self.tree.put(COORDINATOR, b"{}")
        node = self.tree.node(COORDINATOR_EPOCH)
        assert node is not None
        self._store = store
        term = a_term(
            store,
            self.runtime,
            self.epoch,
            node.stat.version,
            METRICS,
            group_initial_rebalance_delay_ms=round(self.rules.initial_delay_s * 1000),
            group_max_size=self.rules.max_size,
            assignment_timeout_ms=round(self.rules.assignment_timeout_s * 1000),
        )
        self._rebalancer = Rebalancer(term, GROUP, lambda: self.topics, self.assignors, lambda path: None)

    def start(self, name: str, subscription: dict[str, int], pattern: str = "static", **options: Any) -> MemberProcess:
        """A new process, which takes over the name of a running one."""
        process = MemberProcess(self, name, subscription, pattern, **options)
        self.processes.append(process)
        process.tend()
        return process

    def turn(self) -> Turn:
        """A turn of the coordinator that is elected now (it may be over before the turn is)."""
        rebalancer = self._rebalancer
        if rebalancer in self._in_a_turn:
            return Turn(0.0)  # a group is never in two handlers
        self._in_a_turn.append(rebalancer)
        before = self.tree.data(PATHS.state)
        try:
            turn = rebalancer.take_turn("test")
        except EpochOver:
            return Turn(0.0)
        finally:
            self._in_a_turn.remove(rebalancer)
        self.writing_turns += self.tree.data(PATHS.state) != before
        return turn

    def tick(self, seconds: float) -> None:
        """Time advances; healthy processes renew their leases."""
        self.runtime.now += seconds
        self.check()
        for process in list(self.processes):
            process.renew()
        self.check()

    def wait(self, seconds: float) -> None:
        """As `tick`, but meanwhile healthy processes poll in time."""
        for _ in range(round(seconds)):
            self.tick(1.0)
            for process in list(self.processes):
                process.tend()

    def _between(self) -> None:
        if self._is_meddling:
            return
        self._is_meddling = True
        try:
            self.meddle(self)
        finally:
            self._is_meddling = False

    # ---- znodes

    def topic(self, name: str, partitions: int, topic_id: str = "") -> None:
        """Make or grow a topic; 0 partitions delete it."""
        topics = {other: topic for other, topic in self.topics.items() if other != name}
        before = self.topics.get(name)
        if partitions:
            topic_id = topic_id or (before.id if before else f"{name}-1")
            topics[name] = Topic(name, topic_id, tuple(range(partitions)))
        self.topics = topics

    @property
    def state(self) -> GroupState:
        return state_of("state", self.tree.data(PATHS.state) or b"{}")

    def channels(self) -> dict[str, Channel]:
        """Every channel that can be read."""
        found = {}
        for name in self.tree.children(PATHS.channels):
            with suppress(BadData):
                found[name] = channel_of(name, self.tree.data(PATHS.channel(name)) or b"")
        return found

    def owners(self) -> PartitionSet:
        found = set()
        for topic in self.tree.children(PATHS.owners):
            found |= {TopicPartition(topic, int(number)) for number in self.tree.children(PATHS.owners_of(topic))}
        return frozenset(found)

    def snapshot(self) -> Snapshot:
        """The reads of a newly elected coordinator."""
        term = a_term(self.tree.open(), self.runtime, self.epoch, metrics=METRICS)
        found = GroupReader(term, GROUP, lambda path: None).read(self.topics)
        assert found is not None
        return observe(Memory(), found.snapshot, found.at)[0]

    # ---- the rules

    def sealed(self, channel: Channel, before: dict[TopicPartition, int | None]) -> None:
        """Records were committed by a member: their offsets must join those before (S5)."""
        for partition, offset in before.items():
            key = (partition, channel.topics[partition.topic])
            expected = self._progress.get(key, offset if self._excused else 0)
            assert offset == expected, f"{key} continues at {offset}, not at {expected}"
            self._progress[key] = (expected or 0) + 1

    def excuse_offsets(self) -> None:
        """A position was destroyed by hand: the next records may be repeated."""
        self._progress.clear()
        self._excused = True

    def check(self) -> None:
        """No two channels run a partition, and no two processes fetch one."""
        channels = self.channels()
        _disjoint({name: frozenset(channel.running) for name, channel in channels.items()}, "run")
        newest = {process.name: process for process in self.processes}
        _disjoint({name: process.fetches for name, process in newest.items()}, "fetch")

    def _after_commit(self, operations: Sequence[Operation]) -> None:
        self.check()
        for channel in self.channels().values():
            order = (channel.epoch, channel.generation)
            before = self._orders.get(channel.incarnation, order)
            assert order >= before, f"{channel.incarnation} goes back from {before} to {order}"
            self._orders[channel.incarnation] = order
        with suppress(BadData):
            generation = self.state.generation
            assert generation >= self._generation, "the group's generation goes back"
            self._generation = generation


def act_between(world: GroupWorld, requests: int, act: Callable[[], object]) -> Callable[[], bool]:
    """Has `act` called once, before the request of that number from now; returns whether it was."""
    left = [requests]

    def meddle(world: GroupWorld) -> None:
        left[0] -= 1
        if left[0] == 0:
            world.meddle = lambda world: None
            act()

    world.meddle = meddle
    return lambda: left[0] <= 0


def _disjoint(found: dict[str, PartitionSet], what: str) -> None:
    holder: dict[TopicPartition, str] = {}
    for name, partitions in sorted(found.items()):
        for partition in partitions:
            assert partition not in holder, f"{holder[partition]} and {name} both {what} {partition}"
            holder[partition] = name

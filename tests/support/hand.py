"""Coordinators and consumers whose every move the test makes: real parts, without their threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.support.memlog import from_the_beginning
from tests.support.terms import NO_DELAY, RANGE, only
from tests.support.wait import eventually
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.membership.channel import FencedChannel
from zk_group.consumer.membership.member import CommandDrain
from zk_group.consumer.membership.offsets import CommittedOffsets
from zk_group.consumer.membership.registration import register
from zk_group.consumer.membership.roles import Role
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.rebalance.rebalancer import Rebalancer, Turn
from zk_group.coordinator.regions.plan import RegionRules
from zk_group.coordinator.regions.turns import RegionTurns
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.elector import Elector
from zk_group.coordinator.term.reading import Problems
from zk_group.coordinator.term.term import Term
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import STATIC, Command, Registration, Topic

SESSION_MS = 30_000
Wrap = Callable[[Store], Store]
"""Puts a store of the test's in front of a session."""


@dataclass(eq=False)
class Revoked(Role):
    """A role that notes the partitions that a member gives up.

    :ivar note: called with them.
    """

    note: Callable[[PartitionSet], None]

    def give_up(self, partitions: PartitionSet) -> None:
        self.note(partitions)


class Puppet:
    """A consumer that registers, and then applies a command only on the test's request."""

    def __init__(
        self,
        zk: str,
        group: str,
        name: str,
        topics: dict[str, int],
        pattern: str = STATIC,
        *,
        lease_ms: int = 500,
        max_poll_interval_ms: int = 300_000,
        wrap: Wrap = lambda store: store,
    ) -> None:
        runtime = ThreadRuntime()
        self.name = name
        self.paths = GroupPaths(group)
        self.store: Store = wrap(open_kazoo(zk, SESSION_MS))
        self.registration = Registration(
            runtime.random_id(), topics, pattern, lease_ms=lease_ms, max_poll_interval_ms=max_poll_interval_ms
        )
        channel, version = register(self.store, self.paths, name, self.registration, None)
        self.fenced = FencedChannel(self.store, runtime, self.paths, name, channel, version)
        context = MemberContext(ConsumerConfig(zk=zk, group=group, consumer=name), runtime)
        self._offsets = CommittedOffsets(runtime, self.paths, from_the_beginning)
        self.gave_up: list[PartitionSet] = []
        self._drain = CommandDrain(context, self._offsets, [Revoked(self.gave_up.append)])

    @property
    def running(self) -> PartitionSet:
        """Its running partitions, from its channel."""
        return frozenset(self.fenced.channel.running)

    @property
    def stale(self) -> int:
        """Commands that it has removed unapplied."""
        return self._drain.stale

    @property
    def applied(self) -> int:
        """Commands that it has applied."""
        return self._drain.applied

    def commands(self) -> list[Command]:
        """The commands in its channel, the oldest first."""
        listing = self.store.children(self.paths.channel(self.name))
        names = sorted(listing.names if listing else [])
        nodes = self.store.get_many([self.paths.command(self.name, name) for name in names])
        return [Command.parse(name, node.data) for name, node in zip(names, nodes, strict=True) if node]

    def options(self) -> list[str]:
        """The options of the commands in its channel."""
        return [command.option for command in self.commands()]

    def obey(self) -> None:
        """Apply or remove every command in the channel."""
        self._drain.drain(self.store, self.fenced)

    def obey_until(self, running: PartitionSet, timeout_s: float = 5.0) -> None:
        """Apply all commands until it runs `running`."""

        def is_there() -> bool:
            self.obey()
            return self.running == running

        eventually(is_there, timeout_s, f"{self.name} runs {sorted(map(str, running))}")

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Commit `offset`."""
        channel = self.fenced.channel
        self.fenced.commit(replace(channel, running={**channel.running, partition: offset}))

    def touch(self) -> None:
        """Give a sign of life."""
        self.fenced.commit(replace(self.fenced.channel, touched=self.fenced.channel.touched + 1))

    def read_offsets(self) -> None:
        """Read the start positions of its partitions, and record the missing ones."""
        self.fenced.channel = self._offsets.read(self.store, self.fenced.channel, self.running, self.fenced.guarded)

    def close(self) -> None:
        """End the session, and say nothing."""
        self.store.close()


class Hand:
    """An elected coordinator that takes a turn only on the test's request.

    :ivar topics: the topics that it knows; `World.topic` adds to them.
    """

    def __init__(
        self,
        zk: str,
        topics: dict[str, Topic],
        node: str,
        assignor: Assignor | None = None,
        wrap: Wrap = lambda store: store,
    ) -> None:
        self.runtime = ThreadRuntime()
        self.store: Store = wrap(open_kazoo(zk, SESSION_MS))
        self.topics = topics
        self.problems = Problems(self.runtime)
        election = Elector(self.store, node, "host", self.runtime.event()).stand(self.runtime.event())
        assert election is not None
        self.term = Term(election, self.store, self.runtime, CoordinatorConfig(**NO_DELAY), self.problems)
        self.term.lease.renew()
        self._assignors = RANGE if assignor is None else only(assignor)
        self._rebalancers: dict[str, Rebalancer] = {}
        self._regions: dict[str, RegionTurns] = {}
        self.acknowledged: list[str] = []

    def turn(self, group: str, trigger: str = "a test") -> Turn:
        """One turn of `group`."""
        if group not in self._rebalancers:
            self._rebalancers[group] = Rebalancer(
                self.term, group, lambda: self.topics, self._assignors, self.acknowledged.append
            )
        return self._rebalancers[group].take_turn(trigger)

    def region_turn(self, region: str, wanted: str = "") -> tuple[str, ...]:
        """One turn of a region; the groups that it asks for a turn."""
        if region not in self._regions:
            self._regions[region] = RegionTurns(self.term, region, RegionRules(), lambda group: False)
        return self._regions[region].take_turn(wanted)[1]

    def settle(self, group: str, *puppets: Puppet) -> Turn:
        """Turns, with all of `puppets` obeying in between, until the group is Stable."""

        def step() -> Turn | None:
            turn = self.turn(group)
            if turn.state is not None and turn.state.state == STABLE and not any(p.commands() for p in puppets):
                return turn
            for puppet in puppets:
                puppet.obey()
            return None

        stable = eventually(step, 10, f"{group} is Stable")
        assert stable is not None
        return stable

    def evict(self, stuck: Puppet, *others: Puppet) -> None:
        """Turns, with `others` obeying in between, until `stuck` is evicted."""

        def is_evicted() -> bool:
            self.turn(stuck.paths.group)
            for puppet in others:
                puppet.obey()
            return self.store.get(stuck.paths.id(stuck.name)) is None

        eventually(is_evicted, 10, f"{stuck.name} is evicted")

    def close(self) -> None:
        """End the session: the coordinator's znode goes."""
        self.store.close()


class ManualStage:
    """Everything that a test moves by hand, closed at the end."""

    def __init__(self, zk: str) -> None:
        self.zk = zk
        self.topics: dict[str, Topic] = {}
        self._closing: list[Hand | Puppet] = []

    def hand(self, node: str = "hand", assignor: Assignor | None = None, wrap: Wrap = lambda store: store) -> Hand:
        made = Hand(self.zk, self.topics, node, assignor, wrap)
        self._closing.append(made)
        return made

    def puppet(self, group: str, name: str, topics: dict[str, int], pattern: str = STATIC, **options: Any) -> Puppet:
        made = Puppet(self.zk, group, name, topics, pattern, **options)
        self._closing.append(made)
        return made

    def stable_pair(self, hand: Hand, **options: int) -> tuple[Puppet, Puppet]:
        """Group `g` with c1 (`options` are its) and c2, Stable over the four partitions of topic `t`."""
        self.topic("t", 4)
        one, two = self.puppet("g", "c1", {"t": 1}, STATIC, **options), self.puppet("g", "c2", {"t": 1})
        hand.settle("g", one, two)
        return one, two

    def topic(self, name: str, partitions: int, topic_id: str = "") -> Topic:
        """A topic as a coordinator would have read it (its znode matters to listeners only)."""
        self.topics[name] = made = Topic(name, topic_id or f"id-of-{name}", tuple(range(partitions)))
        return made

    def close(self) -> None:
        for made in self._closing:
            made.close()


@contextmanager
def a_stage(zk: str) -> Iterator[ManualStage]:
    """A stage that is cleared after the test, also after a failure."""
    stage = ManualStage(zk)
    try:
        yield stage
    finally:
        stage.close()

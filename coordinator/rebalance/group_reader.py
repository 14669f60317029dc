"""Step 1 of a turn: reading a group in the order that the protocol requires.

State first; then of each channel its commands and after them its data; then asks and answers; then ids; then owners. A
model of the protocol finds two owners when a channel's data is read before its commands, or the state after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple, TypeVar

from ..planning.answers import outdated_topic
from ..planning.membership import LONGEST_LEASE_MS, Termination
from ..planning.plan import Plan
from ..planning.snapshot import (
    ChannelView,
    CoordinatorFacts,
    HistoryFacts,
    Member,
    MemberFacts,
    PartitionFacts,
    RequestFacts,
    RequestView,
    SeatView,
    SentCommand,
    Snapshot,
)
from ..planning.target import is_live
from ..regions.region_reader import AbortedCheckpoint, GroupRegionReader
from ..term.reading import GroupMemory
from ..term.term import Term
from ..zk.errors import AccessDenied, BadData
from ..zk.lease import LEASE_SHARE
from ..zk.store import DENIED, Node, Store, Watch, existing_nodes
from ..zk.znodes.group_state import CLIENT, GroupState, Mark, Rebalance
from ..zk.znodes.json_fields import MAX_CONTINUED
from ..zk.znodes.partitions import PartitionSet, TopicPartition
from ..zk.znodes.paths import COMMAND_PREFIX, GroupPaths, history_generation, sequence
from ..zk.znodes.ranges import is_partition
from ..zk.znodes.records import Command, OwnerRecord, Registration, Seat, Topic, parsed_channel
from ..zk.znodes.segments import Pool, slot_name
from .ask_reader import AskReader
from .observation import Memory, ReadTimes

T = TypeVar("T")
NO_MEMORY = Memory()

UNKNOWN_LEASE_MS = LONGEST_LEASE_MS
"""When a group's state is unreadable, its eviction holds may be lost: the longest lease of any consumer, by the default
of `max_session_timeout_ms`."""


@dataclass(frozen=True, slots=True)
class GroupZnodes:
    """Versions and parents of the group's znodes, for the writer of a turn.

    :ivar state_version: data version of `state`.
    :ivar czxid: of the group's own znode, its creation.
    :ivar owner_parents: topics that have a parent znode below owners; `offset_parents` likewise.
    :ivar has_sync: whether the parent of assignment requests exists.
    :ivar aborted: the checkpoint that the turn aborts.
    """

    state_version: int
    czxid: int = 0
    owner_parents: frozenset[str] = frozenset()
    offset_parents: frozenset[str] = frozenset()
    has_sync: bool = False
    aborted: AbortedCheckpoint = field(default_factory=AbortedCheckpoint)


class GroupRead(NamedTuple):
    """A group as read, the input of `observe`."""

    snapshot: Snapshot
    znodes: GroupZnodes
    at: ReadTimes


# Large: the reads of one turn, in the order that the protocol needs.
class GroupReader:
    """Reads one group in one term.

    :param on_acknowledge: watch callback, called when a channel's commands change.
    :param bound: the region that a group is bound to; empty without one.
    :ivar channels: reads the channels of its members.
    """

    def __init__(
        self, term: Term, group: str, on_acknowledge: Watch, bound: Callable[[str], str] = lambda group: ""
    ) -> None:
        self._term = term
        self._store = term.store
        self._paths = GroupPaths(group)
        self._group = group
        self._memory = GroupMemory(term.store, term.runtime, term.problems)
        self._problems = self._memory.problems
        self.channels = ChannelReader(self._memory, self._paths, on_acknowledge)
        self._asks = AskReader(self._memory, self._paths)
        self._threads = OwnerThreads(self._store, self._paths)
        self._created: tuple[int, int] | None = None
        session_ms = max(term.config.max_session_timeout_ms, term.store.negotiated_timeout_s * 1000)
        self._longest_lease_ms = ceil(session_ms * LEASE_SHARE)
        self._region = GroupRegionReader(self._memory, group, bound)

    def read(self, topics: Mapping[str, Topic], memory: Memory = NO_MEMORY, changed_s: float = 0.0) -> GroupRead | None:
        """The group as read; None without a state znode.

        :param memory: as after the turn before.
        :param changed_s: seconds since the turn's first change was seen.
        :raises Retryable: when ZooKeeper did not answer.
        :raises AccessDenied: when a znode that all members share may not be listed; it is reported.
        """
        try:
            return self._read(topics, memory, changed_s)
        except AccessDenied as error:
            self._problems.report(error.path, str(error))
            raise

    def _read(self, topics: Mapping[str, Topic], memory: Memory, changed_s: float) -> GroupRead | None:
        state_node = self._store.get(self._paths.state)
        if state_node is None:
            self._problems.done()
            return None
        if state_node.data == DENIED:
            raise AccessDenied(self._paths.state)
        channels = self.channels.read()
        paths = self._paths
        sync, pools, *others = self._store.children_many(
            [paths.sync, paths.pools, paths.ids, paths.seats, paths.owners, paths.offsets, paths.history]
        )
        consumers, seats, owned, written, rebalances = (sorted(each.names) if each else [] for each in others)
        asks = self._asks.read(sync)
        sync_request = self._asks.request() if sync is not None else None
        history = tuple(sorted(filter(None, map(history_generation, rebalances))))
        state = self._state(state_node, channels, topics, history, memory.written)
        members, rebalance = self._members(consumers, state.generation if state.generation in history else None)
        seat_views = self._seats(seats, members, channels)
        slots = self._slots(sorted(pools.found), len(members)) if pools and not state.target else frozenset()
        region = self._region.read(state, members, channels, memory.held_for)
        needed = {*topics, *state.topics, *(part.topic for view in channels.values() for part in view.running)}
        (owners, owner_parents), (offsets, offset_parents) = self._partitions_below(
            needed,
            (paths.owners, self._problems.usable(paths.owners, owned)),
            (paths.offsets, self._problems.usable(paths.offsets, written)),
        )
        now_s = self._term.runtime.monotonic()
        on_thread = self._threads.read(state, members, channels, owners)
        now_ms = self._term.clock.now_ms()
        at = ReadTimes(now_s, now_ms, now_ms - round(1000 * changed_s))
        lives = [(hold.consumer, hold.incarnation) for hold in state.marks]
        hold_ages_s = {life: self._memory.age_s("mark", *life) for life in lives}
        failed = state.client.failed_ask if state.client is not None else ""
        failed_age_s = self._memory.age_s("failed ask", failed) if failed else 0.0
        grown_age_s = self._grown_age_s(state, asks, topics)
        self._memory.done()
        snapshot = Snapshot(
            self._group,
            CoordinatorFacts(self._term.epoch, self._term.runtime.wall_ms(), self._longest_lease_ms),
            state,
            MemberFacts(channels, members, seat_views, slots, hold_ages_s),
            PartitionFacts(topics, owners, offsets, on_thread),
            RequestFacts(asks, sync_request, failed_age_s, grown_age_s),
            region,
            HistoryFacts(history, rebalance),
        )
        created = self._czxid(state_node)
        znodes = GroupZnodes(state_node.stat.version, created, owner_parents, offset_parents, sync is not None)
        return GroupRead(snapshot, znodes, at)

    def _grown_age_s(self, state: GroupState, asks: Sequence[RequestView], topics: Mapping[str, Topic]) -> float:
        """Seconds for which a topic of the adopted answer has had more partitions than in the answer."""
        adopted = state.client.ask if state.client is not None else ""
        answer = next((view.answer for view in asks if view.name == adopted), None)
        if answer is None or not outdated_topic(answer, topics):
            return 0.0
        return max(0.001, self._memory.age_s("grown", adopted))

    def with_entries(self, snapshot: Snapshot) -> Snapshot:
        """`snapshot` with the entries of the answer that may be adopted, for its topics.

        An answer's entries never change: they can be read after the rest.
        """
        asks = self._asks.with_entries(snapshot.requests.asks, snapshot.state.client, snapshot.partitions.topics)
        return replace(snapshot, requests=replace(snapshot.requests, asks=asks))

    def written(self, plan: Plan) -> None:
        """Start the ages of the turn's own writes now, not at the next read."""
        if plan.asking.made is not None:
            self._memory.age_s("ask", plan.asking.made[0])
        if plan.asking.has_failed and plan.state.client is not None:
            self._memory.age_s("failed ask", plan.state.client.failed_ask)

    def with_aborted(self, znodes: GroupZnodes, plan: Plan, now_ms: int) -> tuple[GroupZnodes, Plan]:
        """Both with the contents of the checkpoint that the plan aborts, if it aborts one.

        :param now_ms: the coordinator's wall clock.
        """
        step = plan.region
        if step is None or not step.aborted:
            return znodes, plan
        aborted = self._region.aborted(step.name, step.aborted)
        open_s = max(0, now_ms - aborted.since_ms) / 1000 if aborted.since_ms else 0.0
        return replace(znodes, aborted=aborted), replace(plan, region=replace(step, open_s=open_s))

    def with_own(self, snapshot: Snapshot, plan: Plan) -> Plan:
        """`plan` whose ends remove no owner znode of another incarnation, and write no offset that another may have.

        An end writes the offset of a partition that exists, and whose owner znode is its incarnation's; without an
        owner znode, one that no other channel runs, or that the target gives to this incarnation.
        """
        if not plan.terminations:
            return plan
        running = Counter(part for view in snapshot.members.channels.values() for part in view.running)
        shared = frozenset(part for part, times in running.items() if times > 1)
        return replace(plan, terminations=tuple(self._with_own(snapshot, end, shared) for end in plan.terminations))

    def _with_own(self, snapshot: Snapshot, end: Termination, shared: PartitionSet) -> Termination:
        view = end.view
        incarnation = view.channel.incarnation if view.channel is not None else ""
        target = snapshot.state.target.get(view.consumer)
        own = set(target.partitions if target is not None and target.incarnation == incarnation else ())
        owned = owner_records(self._store, self._paths, sorted(end.owners))
        own.update(partition for partition, record in owned.items() if record.incarnation == incarnation)
        others = {partition for partition, record in owned.items() if record.incarnation != incarnation}
        foreign = ((view.running & shared) - own) | others | (view.running - snapshot.partitions.existing(view.running))
        return replace(end, owners=end.owners - foreign, foreign=foreign)

    def _czxid(self, state: Node) -> int:
        """When the group was created; read again only with another state, which has the group's lifetime."""
        if self._created is None or self._created[0] != state.stat.czxid:
            root = self._store.get(self._paths.root)
            self._created = state.stat.czxid, root.stat.czxid if root is not None else state.stat.czxid
        return self._created[1]

    # ---- members, then owners and offsets: independent reads share one request, or are pipelined

    def _members(self, names: Iterable[str], generation: int | None) -> tuple[dict[str, Member], Rebalance | None]:
        """The registrations, and the history's record of `generation`."""
        usable = list(self._problems.usable(self._paths.ids, names))
        history = [self._paths.rebalance(generation)] if generation is not None else []
        paths = [*(self._paths.id(name) for name in usable), *history]
        nodes = self._store.get_many(paths)
        members = {}
        for name, path, node in zip(usable, paths, nodes, strict=False):
            if node is not None:
                registration = self._memory.parsed(path, node, Registration.parse)
                age_s = self._memory.age_s("member", name, str(node.stat.czxid))
                members[name] = Member(name, node.stat.czxid, registration, age_s, created_ms=node.stat.ctime_ms)
        last = nodes[-1] if history else None
        return members, self._memory.parsed(history[0], last, Rebalance.parse) if last else None

    def _seats(
        self, names: Iterable[str], members: Mapping[str, Member], channels: Mapping[str, ChannelView]
    ) -> dict[str, SeatView]:
        """The seats of static members, and the time for which each was empty: at most since its channel's last change.

        A member with an `ids` znode is not away, even if its channel was read before it has registered. One that has
        registered between the reads of `ids` and of its seat looks as if it were.
        """
        usable = list(self._problems.usable(self._paths.seats, names))
        found = {}
        for name, path, node in existing_nodes(self._store, usable, self._paths.seat) if usable else ():
            away_s = 0.0 if name in members else self._memory.age_s("away", name, str(node.stat.mzxid))
            away_s = min(away_s, channels[name].idle_s if name in channels else away_s)
            seat = self._memory.parsed(path, node, Seat.parse)
            found[name] = SeatView(name, node.stat.version, seat, away_s, node.stat.czxid)
        return found

    def _slots(self, names: Iterable[str], most: int) -> frozenset[str]:
        """The consumers of the group's fetcher pools; none when there are more than `most`."""
        pools = list(self._problems.usable(self._paths.pools, names))
        if not 0 < len(pools) <= most:
            return frozenset()
        nodes = existing_nodes(self._store, pools, self._paths.pool)
        records = [(pool, self._memory.parsed(path, node, Pool.parse)) for pool, path, node in nodes]
        slots = {pool: record.slots for pool, record in records if record is not None}
        if sum(slots.values()) > most:
            return frozenset()
        return frozenset(slot_name(pool, number) for pool in slots for number in range(slots[pool]))

    def _partitions_below(
        self, needed: Set[str], *roots: tuple[str, Iterable[str]]
    ) -> list[tuple[PartitionSet, frozenset[str]]]:
        """For each root, given with its topics: the partitions that have a znode, and the topics that have.

        :param needed: topics whose partitions may be assigned or run; those of other topics are not listed.
        """
        listed = [(root, list(names)) for root, names in roots]
        parents = [(root, topic) for root, names in listed for topic in names if topic in needed]
        listings = self._store.children_many([f"{root}/{topic}" for root, topic in parents])
        below = {parent: each.names for parent, each in zip(parents, listings, strict=True) if each is not None}
        return [
            (
                frozenset(
                    TopicPartition(topic, int(number))
                    for topic in names
                    for number in below.get((root, topic), ())
                    if is_partition(number)
                ),
                frozenset(topic for topic in names if topic not in needed or (root, topic) in below),
            )
            for root, names in listed
        ]

    # ---- state and history

    def _state(
        self,
        node: Node,
        channels: Mapping[str, ChannelView],
        topics: Mapping[str, Topic],
        history: Sequence[int],
        before: tuple[int, int],
    ) -> GroupState:
        """The state; its generation is never below one that a coordinator has written (it may have been deleted).

        Only the history and this coordinator's own memory are evidence of that: a member may say anything.

        :param before: the group's creation, and the generation that this coordinator has written last.
        """
        state = self._memory.parsed(self._paths.state, node, GroupState.parse)
        group, written = before
        seen = written if group == self._czxid(node) else 0
        most = max(seen, MAX_CONTINUED)
        if state is not None and state.generation > most:
            self._problems.report(self._paths.state, f"generation {state.generation} leaves no room: {most} at most do")
            state = None
        seen = max(seen, state.generation if state is not None else 0)
        for generation in reversed([number for number in history if seen < number <= most]):
            path = self._paths.rebalance(generation)  # the newest may be unreadable
            found = self._store.get(path)
            record = self._memory.parsed(path, found, Rebalance.parse) if found is not None else None
            if record is not None and record.generation == generation:
                seen = generation
                break
        if state is None or state.generation < seen:
            # By its mzxid: a state that is lost again is waited for again.
            longer_ms = max(0, self._longest_lease_ms - LONGEST_LEASE_MS)
            hold = _anybody(topics, str(node.stat.mzxid), UNKNOWN_LEASE_MS + longer_ms)
            runs = any(view.ask for view in channels.values())
            state = replace(state or GroupState(), generation=seen, marks=(hold,) if hold.partitions or runs else ())
        return state


def _anybody(topics: Mapping[str, Topic], life: str, lease_ms: int) -> Mark:
    """A hold on all partitions: the evictions before the state's loss are unknown."""
    every = frozenset(TopicPartition(topic.name, number) for topic in topics.values() for number in topic.partitions)
    return Mark("unknown", f"state-{life}", every, lease_ms, "the group's state was lost")


def owner_records(
    store: Store, paths: GroupPaths, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, OwnerRecord]:
    """The readable owner znodes: of an unreadable one only its existence counts."""
    found = {}
    owners = existing_nodes(store, partitions, lambda partition: paths.owner(*partition)) if partitions else ()
    for partition, path, node in owners:
        with suppress(BadData):
            found[partition] = OwnerRecord.parse(path, node.data)
    return found


Life = tuple[str, str, str]
"""Consumer, incarnation, and the last command that it has applied: until the next one its owners stay as they are."""


class OwnerThreads:
    """Reads the owner znodes of members with several threads, each once after a command."""

    def __init__(self, store: Store, paths: GroupPaths) -> None:
        self._store = store
        self._paths = paths
        self._known: dict[Life, dict[TopicPartition, str]] = {}

    def read(
        self,
        state: GroupState,
        members: Mapping[str, Member],
        channels: Mapping[str, ChannelView],
        owners: PartitionSet,
    ) -> dict[TopicPartition, str]:
        """Partition -> its thread, of those that a member with several threads runs."""
        known: dict[Life, dict[TopicPartition, str]] = {}
        for name, member in sorted(members.items()):
            view = channels.get(name)
            channel = view.channel if view is not None else None
            if view is None or channel is None or not is_live(member, view) or not _has_threads(state, member):
                continue
            life = (name, channel.incarnation, channel.command)
            before = self._known.get(life, {})
            missing = sorted((view.running & owners) - before.keys())
            found = owner_records(self._store, self._paths, missing)
            known[life] = before | {part: record.thread for part, record in found.items()} if found else before
        self._known = known
        return {part: thread for threads in known.values() for part, thread in threads.items()}


def _has_threads(state: GroupState, member: Member) -> bool:
    """Whether a member has, or had in the target, more than one thread; a leader's assignment may name any."""
    registration, target = member.registration, state.target.get(member.consumer)
    if registration is None:
        return False
    is_led = registration.pattern == CLIENT or state.client is not None
    most = max(registration.subscription.values(), default=0)
    return is_led or most > 1 or (target is not None and len(target.threads) > 1)


class ChannelReader:
    """Reads the channels of one group in one term.

    :param on_acknowledge: watch callback, called when a channel's commands change.
    """

    def __init__(self, memory: GroupMemory, paths: GroupPaths, on_acknowledge: Watch) -> None:
        self._memory = memory
        self._store = memory.store
        self._paths = paths
        self._on_acknowledge = on_acknowledge

    def read(self) -> dict[str, ChannelView]:
        """One read returns a channel's data and the number of its commands: enough for a channel without commands.

        The others are read again after their commands. Only they are watched: a watch takes a request for each channel,
        and a channel without commands has none to acknowledge.
        """
        listing = self._store.children(self._paths.channels)
        names = sorted(self._memory.problems.usable(self._paths.channels, listing.names if listing else ()))
        nodes = dict(zip(names, self._store.get_many([self._paths.channel(name) for name in names]), strict=True))
        busy = [name for name, node in nodes.items() if node is not None and node.stat.children]
        sent = self._commands([(name, each) for name, there in self.watch(busy).items() for each in there])
        nodes |= zip(busy, self._store.get_many([self._paths.channel(name) for name in busy]), strict=True)
        return {name: self._view(name, node, sent.get(name, ())) for name, node in nodes.items() if node is not None}

    def _view(self, name: str, node: Node, commands: Sequence[SentCommand]) -> ChannelView:
        channel = self._memory.parsed(self._paths.channel(name), node, parsed_channel)
        idle_s = self._memory.age_s("channel", name, str(node.stat.mzxid))
        return ChannelView(name, node.stat.version, channel, tuple(commands), idle_s, written_ms=node.stat.mtime_ms)

    def watch(self, consumers: Sequence[str]) -> dict[str, list[str]]:
        """The command names in the channels of `consumers`; `on_acknowledge` is called when they change."""
        paths = [self._paths.channel(name) for name in consumers]
        listings = self._store.children_many(paths, watch=self._on_acknowledge)
        return {
            name: listing.names if listing and not listing.denied else []  # its data is denied, too, and reported
            for name, listing in zip(consumers, listings, strict=True)
        }

    def _commands(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[SentCommand]]:
        keys = sorted(pairs, key=lambda pair: (pair[0], sequence(pair[1]) or 0, pair[1]))
        found: dict[str, list[SentCommand]] = {}  # without those acknowledged since they were listed
        for (consumer, name), path, node in existing_nodes(self._store, keys, lambda key: self._paths.command(*key)):
            command = self._memory.parsed(path, node, Command.parse)
            if sequence(name) is None or not name.startswith(COMMAND_PREFIX):
                command = None
            age_s = self._memory.age_s("command", consumer, name, str(node.stat.czxid))
            found.setdefault(consumer, []).append(SentCommand(name, command, age_s))
        return found

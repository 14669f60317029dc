"""Step 1 of a turn: reading a group in the order that the protocol needs.

State first; then of each channel its commands and after them its data; then asks and answers; then ids; then owners. A
model of the protocol finds two owners when a channel's data is read before its commands, or the state after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from .ask_reader import AskReader
from .plan import Plan
from .planning.answers import outdated_topic
from .problems import Findings, Problems
from .regions.group_reader import GroupRegionReader
from .snapshot import AskView, ChannelView, Member, SeatView, SentCommand, Snapshot
from .target import is_live
from .zk.commands import Command
from .zk.errors import BadData
from .zk.names import is_name
from .zk.partitions import PartitionSet, TopicPartition
from .zk.paths import COMMAND_PREFIX, REBALANCE_PREFIX, GroupPaths, sequence
from .zk.ranges import is_partition
from .zk.records import Channel, Registration, Topic, parsed_channel
from .zk.runtime import Runtime
from .zk.seats import Seat
from .zk.state import GroupState, Mark, Rebalance
from .zk.store import Node, Store, Watch

T = TypeVar("T")

UNKNOWN_LEASE_MS = 40_000
"""When a group's state cannot be read, evictions may be forgotten: what any consumer may still run for, at most
(2/3 of the longest session that ZooKeeper grants by default, 60 s)."""


class Memory:
    """Since when this coordinator has seen what it sees, for one group. Only for its own epoch, never shared.

    What is not seen any more is forgotten, so that it cannot grow.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since: dict[tuple[str, ...], float] = {}
        self._seen: set[tuple[str, ...]] = set()

    def age_s(self, *key: str) -> float:
        """Seconds since `key` was first asked for."""
        now = self._runtime.monotonic()
        self._seen.add(key)
        return now - self._since.setdefault(key, now)

    def saw(self, *key: str) -> bool:
        """Whether `key` was asked for before the last `forget_unseen` (and not forgotten by it)."""
        return key in self._since

    def forget_unseen(self) -> None:
        """Forget every key that was not asked for since the last call."""
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        self._seen = set()


class Records:
    """What was parsed in the last read of a group, for the next one: from one turn to the next, little changes.

    What is not asked for any more is forgotten.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[bytes, object]] = {}
        self._now: dict[str, tuple[bytes, object]] = {}

    def parsed(self, path: str, data: bytes, parse: Callable[[str, bytes], T]) -> T:
        """What `parse` makes of the data at `path`; always with the same `parse` for a path.

        :raises BadData: when it does.
        """
        known = self._before.get(path)
        if known is None or known[0] != data:
            known = data, parse(path, data)
        self._now[path] = known
        return cast(T, known[1])

    def forget_unseen(self) -> None:
        """Forget every path that was not asked for since the last call."""
        self._before, self._now = self._now, {}


class GroupReader:
    """Reads one group for one coordinator epoch.

    :param on_acknowledge: called, as a watch, when a channel's commands change.
    :param bound: the region that a group is bound to, as regions say; empty without one.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        group: str,
        epoch: int,
        on_acknowledge: Watch,
        problems: Problems,
        bound: Callable[[str], str] = lambda group: "",
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._paths = GroupPaths(group)
        self._group = group
        self._epoch = epoch
        self._on_acknowledge = on_acknowledge
        self._problems = Findings(problems)
        self._memory = Memory(runtime)
        self._records = Records()
        self._asks = AskReader(store, self._paths, self._problems, self._memory.age_s)
        self._made: tuple[int, int] | None = None
        self._region = GroupRegionReader(store, group, self._problems, self._memory.age_s, bound)

    def read(self, topics: Mapping[str, Topic]) -> Snapshot | None:
        """A snapshot, or None when the group has no state znode yet.

        :raises Retryable: when ZooKeeper did not answer.
        """
        state_node = self._store.get(self._paths.state)
        if state_node is None:
            self._problems.done()
            return None
        channels = self._channels()
        state = self._state(state_node, channels, topics)
        sync, *others = self._store.children_many(
            [
                self._paths.sync,
                self._paths.ids,
                self._paths.seats,
                self._paths.owners,
                self._paths.offsets,
                self._paths.history,
            ]
        )
        consumers, seats, owned, written, rebalances = (sorted(each.names) if each else [] for each in others)
        asks = self._asks.read(sync, self._parsed)
        sync_request = self._asks.request() if sync is not None else None
        history = _generations(rebalances)
        members, rebalance = self._members(consumers, state.generation if state.generation in history else None)
        found_seats = self._seats(seats, members, channels)
        region = self._region.read(state, members, channels)
        (owners, owner_parents), (offsets, offset_parents) = self._partitions_below(
            (self._paths.owners, self._usable(self._paths.owners, owned)),
            (self._paths.offsets, self._usable(self._paths.offsets, written)),
        )
        marks = {
            (m.consumer, m.incarnation): self._memory.age_s("mark", m.consumer, m.incarnation) for m in state.marks
        }
        failed = state.client.failed_ask if state.client is not None else ""
        failed_age_s = self._memory.age_s("failed ask", failed) if failed else 0.0
        grown_age_s = self._grown_age_s(state, asks, topics)
        self._memory.forget_unseen()
        self._records.forget_unseen()
        self._problems.done()
        return Snapshot(
            group=self._group,
            epoch=self._epoch,
            state=state,
            state_version=state_node.stat.version,
            channels=channels,
            members=members,
            seats=found_seats,
            owners=owners,
            offsets=offsets,
            owner_parents=owner_parents,
            offset_parents=offset_parents,
            topics=topics,
            mark_age_s=marks,
            history=history,
            rebalance=rebalance,
            now_ms=self._runtime.wall_ms(),
            czxid=self._czxid(state_node),
            asks=asks,
            has_sync=sync is not None,
            sync_request=sync_request,
            failed_age_s=failed_age_s,
            grown_age_s=grown_age_s,
            region=region,
        )

    def _grown_age_s(self, state: GroupState, asks: Sequence[AskView], topics: Mapping[str, Topic]) -> float:
        """Seconds for which a topic of the adopted answer has had more partitions than the answer says."""
        adopted = state.client.ask if state.client is not None else ""
        answer = next((view.answer for view in asks if view.name == adopted), None)
        if answer is None or not outdated_topic(answer, topics):
            return 0.0
        return max(0.001, self._memory.age_s("grown", adopted))

    def with_entries(self, snapshot: Snapshot) -> Snapshot:
        """`snapshot` with the entries of the answer that may be adopted, for its topics.

        No entry changes once the answer stands: it does not matter that they are read after the rest.
        """
        asks = self._asks.with_entries(snapshot.asks, snapshot.state.client, snapshot.topics)
        return replace(snapshot, asks=asks)

    def decided(self, plan: Plan) -> None:
        """Count the time of what a turn has just written from now on, and not from the next read."""
        if plan.asking.made is not None:
            self._memory.age_s("ask", plan.asking.made[0])
        if plan.asking.has_failed and plan.state.client is not None:
            self._memory.age_s("failed ask", plan.state.client.failed_ask)

    def with_aborted(self, snapshot: Snapshot, plan: Plan) -> tuple[Snapshot, Plan]:
        """Both with what is known of the checkpoint that the plan aborts, as far as it aborts one."""
        step, view = plan.region, snapshot.region
        if step is None or view is None or not step.aborted:
            return snapshot, plan
        view = self._region.with_checkpoint(view, step.aborted)
        open_s = max(0, snapshot.now_ms - view.open_since_ms) / 1000 if view.open_since_ms else 0.0
        return replace(snapshot, region=view), replace(plan, region=replace(step, open_s=open_s))

    def held(self, sequence: int) -> None:
        """A generation waits for this checkpoint of the region; 0 when none does."""
        self._region.held_for = sequence

    def _czxid(self, state: Node) -> int:
        """When the group was made; read again with another state only, for that goes whenever the group does."""
        if self._made is None or self._made[0] != state.stat.czxid:
            root = self._store.get(self._paths.root)
            self._made = state.stat.czxid, root.stat.czxid if root is not None else state.stat.czxid
        return self._made[1]

    # ---- channels: commands before data

    def _channels(self) -> dict[str, ChannelView]:
        """One read gives a channel's data together with the number of its commands: without any, that is all.

        The others are read once more after their commands. Only they are watched: to set a watch takes a request for
        each channel, and where nothing is to be acknowledged nothing is waited for.
        """
        names = self._names(self._paths.channels)
        nodes = dict(zip(names, self._store.get_many([self._paths.channel(name) for name in names]), strict=True))
        busy = [name for name, node in nodes.items() if node is not None and node.stat.children]
        sent = self._sent(busy)
        nodes |= zip(busy, self._store.get_many([self._paths.channel(name) for name in busy]), strict=True)
        return {name: self._view(name, node, sent.get(name, ())) for name, node in nodes.items() if node is not None}

    def _view(self, name: str, node: Node, commands: Sequence[SentCommand]) -> ChannelView:
        channel = self._parsed(self._paths.channel(name), node, parsed_channel)
        idle_s = self._memory.age_s("channel", name, str(node.stat.mzxid))
        waits_s = self._waits_s(name, channel, [sent for sent in commands if not sent.is_drain]) if channel else 0.0
        return ChannelView(name, node.stat.version, channel, tuple(commands), idle_s, waits_s)

    def _sent(self, consumers: Sequence[str]) -> dict[str, list[SentCommand]]:
        listings = self.watch_commands(consumers)
        return self._commands([(name, sent) for name, names in listings.items() for sent in names])

    def watch_commands(self, consumers: Sequence[str]) -> dict[str, list[str]]:
        """The names of what stands in the channels of `consumers`; when that changes, `on_acknowledge` is called."""
        paths = [self._paths.channel(name) for name in consumers]
        listings = self._store.children_many(paths, watch=self._on_acknowledge)
        return {name: listing.names if listing else [] for name, listing in zip(consumers, listings, strict=True)}

    def _commands(self, pairs: Sequence[tuple[str, str]]) -> dict[str, list[SentCommand]]:
        known = sorted(pairs, key=lambda pair: (pair[0], sequence(pair[1]) or 0, pair[1]))
        paths = [self._paths.command(consumer, name) for consumer, name in known]
        found: dict[str, list[SentCommand]] = {}
        for (consumer, name), path, node in zip(known, paths, self._store.get_many(paths), strict=True):
            if node is None:
                continue  # acknowledged since it was listed
            command = self._parsed(path, node, Command.parse)
            if sequence(name) is None or not name.startswith(COMMAND_PREFIX):
                command = None
            age_s = self._memory.age_s("command", consumer, name, str(node.stat.czxid))
            found.setdefault(consumer, []).append(SentCommand(name, command, age_s))
        return found

    def _waits_s(self, name: str, channel: Channel, commands: Sequence[SentCommand]) -> float:
        """Seconds for which a consumer has had commands and applied none.

        A turn that withdraws a start may send its successor only in the next one: one read without a command in
        between does not end the wait.
        """
        key = ("waits", name, channel.incarnation, channel.command)
        if commands:
            self._memory.age_s("had commands", *key)
        elif not self._memory.saw("had commands", *key):
            return 0.0
        age_s = self._memory.age_s(*key)
        return age_s if commands else 0.0

    # ---- members, and then owners and offsets: all that needs nothing of each other goes in one request, or pipelined

    def _members(self, names: Iterable[str], generation: int | None) -> tuple[dict[str, Member], Rebalance | None]:
        """The registrations, and beside them what the history has of `generation`."""
        known = list(self._usable(self._paths.ids, names))
        history = [self._paths.rebalance(generation)] if generation is not None else []
        paths = [*(self._paths.id(name) for name in known), *history]
        nodes = self._store.get_many(paths)
        members = {}
        for name, path, node in zip(known, paths, nodes, strict=False):
            if node is not None:
                registration = self._parsed(path, node, Registration.parse)
                age_s = self._memory.age_s("member", name, str(node.stat.czxid))
                members[name] = Member(name, node.stat.czxid, registration, age_s)
        last = nodes[-1] if history else None
        return members, self._parsed(history[0], last, Rebalance.parse) if last else None

    def _seats(
        self, names: Iterable[str], members: Mapping[str, Member], channels: Mapping[str, ChannelView]
    ) -> dict[str, SeatView]:
        """The seats of static members, and for how long nobody has been on them."""
        known = list(self._usable(self._paths.seats, names))
        paths = [self._paths.seat(name) for name in known]
        found = {}
        for name, path, node in zip(known, paths, self._store.get_many(paths) if paths else [], strict=True):
            if node is not None:
                here = name in members and is_live(members[name], channels.get(name))
                away_s = 0.0 if here else self._memory.age_s("away", name, str(node.stat.mzxid))
                seat = self._parsed(path, node, Seat.parse)
                found[name] = SeatView(name, node.stat.version, seat, away_s, node.stat.czxid)
        return found

    def _partitions_below(self, *roots: tuple[str, Iterable[str]]) -> list[tuple[PartitionSet, frozenset[str]]]:
        """Of each root, given with its topics: the partitions that have a znode, and the topics that have."""
        places = [(root, topic) for root, topics in roots for topic in topics]
        listings = self._store.children_many([f"{root}/{topic}" for root, topic in places])
        there = [(root, topic, each.names) for (root, topic), each in zip(places, listings, strict=True) if each]
        return [
            (
                frozenset(
                    TopicPartition(topic, int(name))
                    for other, topic, names in there
                    if other == root
                    for name in names
                    if is_partition(name)
                ),
                frozenset(topic for other, topic, _ in there if other == root),
            )
            for root, _ in roots
        ]

    # ---- state and history

    def _state(self, node: Node, channels: Mapping[str, ChannelView], topics: Mapping[str, Topic]) -> GroupState:
        """The state; its generation is never below one that a consumer has seen (it may have been deleted)."""
        seen = max((view.channel.generation for view in channels.values() if view.channel), default=0)
        state = self._parsed(self._paths.state, node, GroupState.parse)
        if state is None or state.generation < seen:
            mark = _anybody(topics, str(node.stat.czxid))
            runs = any(view.channel is not None and view.channel.ask for view in channels.values())
            state = replace(state or GroupState(), generation=seen, marks=(mark,) if mark.partitions or runs else ())
        return state

    # ---- untrusted names and data

    def _names(self, path: str) -> list[str]:
        listing = self._store.children(path)
        return sorted(self._usable(path, listing.names if listing else ()))

    def _usable(self, path: str, names: Iterable[str]) -> Iterable[str]:
        for name in names:
            if is_name(name):
                yield name
            else:
                self._problems.report(f"{path}/{name!a}", "its name has characters that no name may have")

    def _parsed(self, path: str, node: Node, parse: Callable[[str, bytes], T]) -> T | None:
        try:
            return self._records.parsed(path, node.data, parse)
        except BadData as error:
            self._problems.report(path, str(error))
            return None


def _generations(names: Iterable[str]) -> tuple[int, ...]:
    numbers = (sequence(name) for name in names if name.startswith(REBALANCE_PREFIX))
    return tuple(sorted(number for number in numbers if number is not None))


def _anybody(topics: Mapping[str, Topic], life: str) -> Mark:
    """A mark on everything: who was evicted before the state was lost is not known, so all wait for a lease."""
    every = frozenset(TopicPartition(topic.name, number) for topic in topics.values() for number in topic.partitions)
    return Mark("unknown", f"state-{life}", every, UNKNOWN_LEASE_MS, "the group's state was lost")

"""Groups, as the admin commands read them from ZooKeeper. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..planning.rebalance_history import in_order
from ..zk.errors import AccessDenied, BadData, UsageError
from ..zk.store import Node, Store, existing_nodes, nodes_at
from ..zk.values import in_chunks
from ..zk.znodes import paths as znodes
from ..zk.znodes.group_state import DEAD, GROUP_STATES, Ask, GroupState, Rebalance
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import MAX_NAME, is_name, shown
from ..zk.znodes.ranges import is_partition
from ..zk.znodes.records import Channel, Command, OffsetRecord, OwnerRecord, Registration, Seat, Topic, parsed_channel

T = TypeVar("T")

NODES_AT_ONCE = 1000


def tree(store: Store, root: str) -> dict[str, Node]:
    """Every znode at and below `root`, parents first."""
    nodes: dict[str, Node] = {}
    level = [root]
    while level:
        parents: list[str] = []
        for batch in in_chunks(level, NODES_AT_ONCE):
            there = {path: node for _, path, node in existing_nodes(store, batch, str)}
            nodes |= there
            parents += [path for path, node in there.items() if node.stat.children]
        listings = store.children_many(parents)
        level = [f"{p}/{n}" for p, each in zip(parents, listings, strict=True) if each for n in sorted(each.names)]
    return nodes


def partitions_below(store: Store, root: str, topics: Sequence[str]) -> list[TopicPartition]:
    """The partitions of `topics` that have a znode below `root`."""
    listings = store.children_many([f"{root}/{topic}" for topic in topics])
    listed = zip(topics, listings, strict=True)
    names = [(topic, name) for topic, listing in listed for name in sorted(listing.names if listing else ())]
    return [TopicPartition(topic, int(name)) for topic, name in names if is_partition(name)]


@dataclass(slots=True)
class Reading:
    """Reads znodes, and collects the unreadable ones."""

    store: Store
    problems: dict[str, str] = field(default_factory=dict)

    def names(self, path: str) -> list[str]:
        """The valid names of a znode's children, sorted."""
        listing = self.store.children(path)
        if listing is not None and listing.denied:
            self.problems[path] = str(AccessDenied(path))
            return []
        children = sorted(listing.names) if listing else []
        for name in children:
            if not is_name(name):
                self.problems[f"{path}/{shown(name, MAX_NAME)}"] = "its name contains invalid characters"
        return [name for name in children if is_name(name)]

    def parsed(self, path: str, parse: Callable[[str, bytes], T]) -> T | None:
        """A znode's record; None when it does not exist or is unreadable."""
        return self.timed(path, parse)[0]

    def timed(self, path: str, parse: Callable[[str, bytes], T]) -> tuple[T | None, int | None]:
        """`parsed`, and the time of the znode's last write (server's wall clock, None when it does not exist)."""
        node = self.store.get(path)
        return self.record(path, node, parse), node.stat.mtime_ms if node is not None else None

    def parsed_many(self, paths: Sequence[str], parse: Callable[[str, bytes], T]) -> list[T | None]:
        """`parsed` for each path, pipelined."""
        return [self.record(path, node, parse) for path, node in zip(paths, self.store.get_many(paths), strict=True)]

    def record(self, path: str, node: Node | None, parse: Callable[[str, bytes], T]) -> T | None:
        """`parsed`, of an already read znode."""
        try:
            return parse(path, node.data) if node is not None else None
        except BadData as error:
            self.problems[path] = str(error)
            return None


def unreadable(problems: Mapping[str, str], most: int) -> list[str]:
    """A line for each unreadable znode, `most` of them, and one for the others."""
    lines = [text if path in text else f"{path}: {text}" for path, text in sorted(problems.items())]
    return lines if len(lines) <= most else [*lines[:most], f"{len(lines) - most} more znodes cannot be read"]


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command in a channel.

    :ivar command: None when it cannot be read.
    :ivar sent_ms: when it was sent, on the server's wall clock.
    """

    consumer: str
    name: str
    command: Command | None
    sent_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A consumer: registered, away from its seat, or with a channel only.

    :ivar seat: of a static member, else None.
    :ivar changed_ms: when its registration or its channel was last written, on the server's wall clock.
    """

    consumer: str
    registration: Registration | None
    channel: Channel | None
    commands: tuple[ShownCommand, ...]
    seat: Seat | None = None
    changed_ms: int | None = None

    @property
    def wants(self) -> Registration | None:
        """Its registration, also while it is away from its seat; None when it is no member."""
        if self.registration is None and self.seat is not None:
            return self.seat.registration
        return self.registration


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """A partition of a group: its owner and the group's offset. None where unknown.

    :ivar incarnation: the consumer's incarnation in the owner znode.
    :ivar runner: the consumer whose channel runs it.
    :ivar session: the session that holds the owner znode, 0 for a persistent one, None without one.
    """

    partition: TopicPartition
    topic_id: str | None
    thread: str | None
    consumer: str | None
    offset: int | None
    incarnation: str | None = None
    runner: str | None = None
    session: int | None = None

    def lag(self, end: int | None) -> int | None:
        """Records between the group's offset and the log end; None when one is unknown, or the offset is beyond."""
        return end - self.offset if end is not None and self.offset is not None and self.offset <= end else None

    def of(self, topic: Topic | None) -> ShownPartition | None:
        """It in the current topic of the name, without an offset of an earlier topic.

        None when the topic has no such partition, and no consumer holds it. Without a topic it is unchanged.
        """
        if topic is None:
            return self
        is_there = self.partition.partition in topic.partitions
        if not is_there and not self.consumer and not self.runner:
            return None
        offset = self.offset if self.topic_id in (topic.id, None) else None
        return replace(self, topic_id=topic.id if is_there else None, offset=offset)


@dataclass(frozen=True, slots=True)
class ShownAsk:
    """An assignment request to a leader.

    :ivar ask: None when it cannot be read.
    :ivar is_answered: whether the leader has answered it.
    """

    name: str
    ask: Ask | None
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group, as `groups describe` shows it.

    :ivar state_ms: time of the last write of its state, on the server's wall clock.
    :ivar asks: under client-side assignment, in the order of their numbers.
    """

    group: str
    state: GroupState
    members: tuple[ShownMember, ...]
    partitions: tuple[ShownPartition, ...]
    state_ms: int | None = None
    asks: tuple[ShownAsk, ...] = ()

    def within(self, topics: Mapping[str, Topic | None]) -> ShownGroup:
        """It with the partitions that exist now, or have a consumer; see `ShownPartition.of`."""
        partitions = (shown.of(topics[shown.partition.topic]) for shown in self.partitions)
        return replace(self, partitions=tuple(shown for shown in partitions if shown is not None))

    @property
    def adopted(self) -> ShownAsk | None:
        """The assignment request of the adopted target."""
        name = self.state.client.ask if self.state.client is not None else ""
        return next((ask for ask in self.asks if ask.name == name), ShownAsk(name, None) if name else None)

    @property
    def leader(self) -> str | None:
        """The leader whose proposal is the target, in the addressed incarnation; a seat survives incarnations."""
        ask = self.adopted.ask if self.adopted is not None else None
        member = next((one for one in self.members if ask is not None and one.consumer == ask.leader), None)
        if ask is None or member is None or member.consumer not in ask.members:
            return None
        asked = ask.members[member.consumer]
        life = member.wants.incarnation if member.wants is not None else ""
        return member.consumer if asked.is_seat or asked.identity == life else None

    @property
    def pending(self) -> ShownAsk | None:
        """The newest assignment request that is neither adopted nor failed."""
        client = self.state.client
        if client is None:
            return None
        handled = max(map(znodes.ask_number, (client.ask, client.failed_ask, client.floor)))
        return next((ask for ask in reversed(self.asks) if znodes.ask_number(ask.name) > handled), None)


def parse_states(text: str) -> frozenset[str]:
    """The states in a list such as `stable,Empty`, in any case; all states for an empty list.

    :raises UsageError: when one is unknown.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    states = {state for state in GROUP_STATES if state.lower() in names}
    if len(states) != len(names):
        raise UsageError(f"Invalid state list {shown(text)}. Valid states are: {', '.join(GROUP_STATES)}")
    return frozenset(states or GROUP_STATES)


def chosen_groups(reading: Reading, names: Sequence[str], all_groups: bool) -> list[str]:
    """The groups that a command applies to, without duplicates.

    :raises UsageError: when neither or both of names and all groups were given.
    """
    if bool(names) == all_groups:
        raise UsageError("give names or --all-groups, not both" if names else "name the groups, or give --all-groups")
    return reading.names(znodes.GROUPS) if all_groups else list(dict.fromkeys(names))


def by_holder(group: ShownGroup) -> dict[str | None, list[ShownPartition]]:
    """The partitions of each consumer, the largest share first, and last (None) the unassigned ones."""
    registered = [member.consumer for member in group.members if member.registration is not None]
    shares: dict[str | None, list[ShownPartition]] = {consumer: [] for consumer in registered}
    for partition in group.partitions:
        shares.setdefault(partition.consumer or partition.runner, []).append(partition)
    return dict(sorted(shares.items(), key=lambda item: (item[0] is None, -len(item[1]), item[0] or "")))


def existing_group(reading: Reading, group: str) -> ShownGroup:
    """A group by its name.

    :raises UsageError: when it does not exist.
    """
    checked_group(reading.store, group)
    return read_group(reading, group)


def topics_of(reading: Reading, brokers: znodes.Brokers, groups: Sequence[ShownGroup]) -> dict[str, Topic | None]:
    """The topics of the groups' partitions; None for one that does not exist, or is unreadable."""
    names = sorted({shown.partition.topic for group in groups for shown in group.partitions})
    nodes = nodes_at(reading.store, names, brokers.topic)
    return {name: listed_topic(reading, brokers, name, node) for name, _, node in nodes}


def listed_topic(reading: Reading, brokers: znodes.Brokers, name: str, node: Node | None) -> Topic | None:
    """The topic of a listed name; None when it does not exist or is unreadable."""

    def parse(path: str, data: bytes) -> Topic:
        if not is_name(name):
            raise BadData(f"{shown(name)} is no name of a topic")
        return Topic.parse(path, name, data, node.stat.czxid if node is not None else 0)

    return reading.record(brokers.topic(name), node, parse)


def checked_group(store: Store, group: str) -> znodes.GroupPaths:
    """The paths of a group that exists.

    :raises UsageError: when it does not exist.
    """
    if not is_name(group) or store.get(znodes.GroupPaths(group).root) is None:
        raise UsageError(f"Consumer group {shown(group)} does not exist.")
    return znodes.GroupPaths(group)


def read_group(reading: Reading, group: str) -> ShownGroup:
    """One group: state, members with their commands, partitions with owners and offsets."""
    paths = znodes.GroupPaths(group)
    state, state_ms = reading.timed(paths.state, GroupState.parse)
    consumers = sorted({name for path in (paths.channels, paths.ids, paths.seats) for name in reading.names(path)})
    members = tuple(_member(reading, paths, consumer) for consumer in consumers)
    partitions = tuple(_partitions(reading, paths, members))
    asks = tuple(_asks(reading, paths))
    return ShownGroup(group, state or GroupState(state=DEAD), members, partitions, state_ms, asks)


def read_history(reading: Reading, group: str) -> list[Rebalance]:
    """The rebalances in a group's history, oldest first."""
    paths = znodes.GroupPaths(group)
    names = [name for name in reading.names(paths.history) if name.startswith(znodes.REBALANCE_PREFIX)]
    records = reading.parsed_many([f"{paths.history}/{name}" for name in names], Rebalance.parse)
    return in_order([record for record in records if record is not None])


def _asks(reading: Reading, paths: znodes.GroupPaths) -> Iterator[ShownAsk]:
    for name in sorted(reading.names(paths.sync), key=znodes.ask_number):
        if znodes.ask_number(name):
            ask = reading.parsed(paths.ask(name), Ask.parse)
            yield ShownAsk(name, ask, reading.store.get(f"{paths.ask(name)}/{znodes.ANSWER}") is not None)
        else:
            reading.problems[f"{paths.sync}/{name}"] = "invalid name of an ask"


def _member(reading: Reading, paths: znodes.GroupPaths, consumer: str) -> ShownMember:
    names = sorted(reading.names(paths.channel(consumer)), key=lambda name: (znodes.sequence(name) or 0, name))
    commands = tuple(
        ShownCommand(consumer, name, *reading.timed(paths.command(consumer, name), Command.parse))
        for name in names
        if name.startswith(znodes.COMMAND_PREFIX)
    )
    channel, at_ms = reading.timed(paths.channel(consumer), parsed_channel)
    registration, since_ms = reading.timed(paths.id(consumer), Registration.parse)
    seat = reading.parsed(paths.seat(consumer), Seat.parse)
    return ShownMember(consumer, registration, channel, commands, seat, max(at_ms or 0, since_ms or 0) or None)


def _partitions(reading: Reading, paths: znodes.GroupPaths, members: Sequence[ShownMember]) -> Iterator[ShownPartition]:
    running = {
        partition: (member.channel.topics.get(partition.topic), offset, member.consumer)
        for member in members
        if member.channel is not None
        for partition, offset in member.channel.running.items()
    }
    partitions = sorted({*running, *_below(reading, paths.owners), *_below(reading, paths.offsets)})
    owners = [*nodes_at(reading.store, partitions, lambda partition: paths.owner(*partition))]
    offsets = reading.parsed_many([paths.offset(*partition) for partition in partitions], OffsetRecord.parse)
    for (partition, path, node), written in zip(owners, offsets, strict=True):
        topic_id, offset, runner = running.get(partition, (None, None, None))
        if offset is None and written is not None:
            topic_id, offset = written.topic_id, written.offset
        owner = reading.record(path, node, OwnerRecord.parse)
        thread, consumer, life = (owner.thread, owner.consumer, owner.incarnation) if owner else (None, None, None)
        session = node.stat.ephemeral_owner if node is not None else None
        yield ShownPartition(partition, topic_id, thread, consumer, offset, life, runner, session)


def _below(reading: Reading, root: str) -> set[TopicPartition]:
    found = [(topic, number) for topic in reading.names(root) for number in reading.names(f"{root}/{topic}")]
    return {TopicPartition(topic, int(number)) for topic, number in found if is_partition(number)}

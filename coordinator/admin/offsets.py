"""Setting and removing offsets of inactive groups: their detection, and the fence of commits against members.

A member can register at any moment, and its multi does not change `state`. But before it receives a command the
coordinator writes `state`, and every start of a fetcher is committed with a write of it. So a commit that checks the
version at which `state` was Empty is refused as soon as a member may fetch; a commit that must exclude even a
registration also removes and re-creates `ids`: ZooKeeper refuses that while `ids` has a child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..planning.target import filters_of
from ..zk.errors import CoordinatorError, OutcomeUnknown, Refused, UsageError
from ..zk.store import Check, Create, Delete, Node, Operation, SetData, Store, existing_nodes, nodes_at
from ..zk.update import ROOM, Failure, batches, ensure, retried
from ..zk.znodes.group_state import CLIENT, DEAD, EMPTY, GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import RESET, Discontinuity, TopicPartition
from ..zk.znodes.paths import GroupPaths, RegionPaths, is_name, names_below
from ..zk.znodes.records import STATIC, BegunRecord, Channel, OffsetRecord, Registration, Seat, Topic, parsed_channel
from ..zk.znodes.regions import CONSUMERS as REGION_OF_CONSUMERS
from ..zk.znodes.regions import Region
from .groups import partitions_below
from .reset_offsets import NewOffset, PartitionOffsets, Plan, ResetRequest, Scope, checked, chosen, missing, planned

INACTIVE = (EMPTY, DEAD)

NO_TOPICS: Mapping[str, Topic] = {}
GROUP_SUBSCRIBED_TO_TOPIC = (
    "GROUP_SUBSCRIBED_TO_TOPIC: Deleting offsets of a topic is forbidden while the consumer group is actively "
    "subscribed to it."
)
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION: There is no such topic or partition, and no offset of it."


class GroupIdNotFound(CoordinatorError):
    """The group does not exist."""


class GroupNotEmpty(CoordinatorError):
    """The group is in use; the message contains the consumer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The users of a group, as read: `state` first, so that its version fences later changes.

    :ivar exists: whether it has any znode.
    :ivar state: Dead without one.
    :ivar version: the data version of `state`, None when there is no such znode.
    :ivar members: registered consumers.
    :ivar seats: static members with a seat (an unreadable one does not count).
    :ivar channels: consumer -> its channel, None when unreadable.
    :ivar owned: partitions that have an owner znode.
    :ivar has_ids: whether the parent of the registrations exists.
    """

    paths: GroupPaths
    exists: bool
    state: GroupState
    version: int | None
    members: tuple[str, ...] = ()
    seats: tuple[str, ...] = ()
    channels: tuple[tuple[str, Channel | None], ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    has_ids: bool = False

    @property
    def used_by(self) -> str | None:
        """The current user of the group, independent of `state`; None when there is none."""
        if self.members:
            return f"{_named('consumer', self.members)} registered"
        if self.seats:
            return f"{_named('static member', self.seats)} expected back on its seat"
        held = [consumer for consumer, channel in self.channels if channel is not None and channel.running]
        if held:
            return f"{held[0]} has not been removed from its partitions yet (an elected coordinator does that)"
        if self.owned:
            return f"partition {self.owned[0]} has an owner znode"
        return None

    @property
    def in_use(self) -> str | None:
        """Why the group counts as in use, None when it is unused and `state` records it."""
        if self.used_by is not None or self.state.state in INACTIVE:
            return self.used_by
        return f"the current state is {self.state.state}"

    @property
    def hint(self) -> str:
        """The change to wait for while `state` is behind; a further sentence for an operator, or empty."""
        if self.state.state in INACTIVE or self.members:
            return ""
        return " It has no member any more: it is Empty after the next turn of an elected coordinator."

    def state_fence(self) -> list[Operation]:
        """Refused when `state` has changed. (Without a `state`, one is created and removed at once.)"""
        if self.version is None:
            return [Create(self.paths.state), Delete(self.paths.state)]
        return [Check(self.paths.state, self.version)]

    def vacancy_fence(self) -> list[Operation]:
        """Refused when a consumer is registered at the moment of the commit."""
        return [Delete(self.paths.ids), Create(self.paths.ids)] if self.has_ids else []


def look(store: Store, group: str) -> Standing:
    """Read the current users of a group.

    :raises BadData: when its state cannot be read.
    """
    paths = GroupPaths(group)
    if not is_name(group) or store.get(paths.root) is None:
        return Standing(paths, exists=False, state=GroupState(state=DEAD), version=None)
    node = store.get(paths.state)
    state = GroupState.parse(paths.state, node.data) if node is not None else GroupState(state=DEAD)
    ids, *others = store.children_many([paths.ids, paths.seats, paths.channels, paths.owners])
    seats, consumers, topics = (sorted(filter(is_name, each.names if each else ())) for each in others)
    owned = partitions_below(store, paths.owners, topics)
    by_seat = existing_nodes(store, seats, paths.seat)
    channels = existing_nodes(store, consumers, paths.channel)
    members, version = tuple(sorted(ids.names)) if ids else (), node.stat.version if node is not None else None
    kept = tuple(name for name, _, seat in by_seat if is_seat(seat))
    known = tuple((name, readable(parsed_channel, path, one)) for name, path, one in channels)
    return Standing(paths, True, state, version, members, kept, known, tuple(owned), has_ids=ids is not None)


def is_seat(node: Node) -> bool:
    """Whether it keeps a seat: an unreadable one does not."""
    return readable(Seat.parse, "", node) is not None


def _named(what: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{what} {names[0]}{more}"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset; `record` is None when unreadable."""

    record: OffsetRecord | None
    version: int

    def of(self, topic_id: str) -> int | None:
        """The offset, None when it is another topic's (a consumer then starts at the earliest record)."""
        return self.record.offset if self.record is not None and self.record.topic_id == topic_id else None


def inactive(store: Store, group: str, of_region: bool = False) -> Standing:
    """The users of an unused group.

    :param of_region: whether it may be in a consistent region.
    :raises CoordinatorError: when the group is in use, in the words of kafka-consumer-groups.
    :raises UsageError: when the group is in a consistent region, where offsets belong to the application's state.
    :raises BadData: when its state cannot be read.
    """
    users = look(store, group)
    if not of_region and users.state.region is not None:
        region, path = users.state.region.name, RegionPaths(users.state.region.name).root
        node = store.get(path)
        # In a region of slots offsets do not belong to states.
        if node is None or Region.parse(path, node.data).kind == REGION_OF_CONSUMERS:
            raise UsageError(f"group {group} is in consistent region {region}: reset it with `regions reset {region}`")
    why = users.used_by if users.state.state in INACTIVE else f"the current state is {users.state.state}"
    if why is None:
        return users
    raise CoordinatorError(f"Assignments can only be reset if the group '{group}' is inactive, but {why}.{users.hint}")


def committed(store: Store, paths: GroupPaths) -> dict[TopicPartition, Committed]:
    """Every offset in `offsets/`."""
    partitions = sorted(partitions_below(store, paths.offsets, names_below(store, paths.offsets)))
    nodes = existing_nodes(store, partitions, lambda partition: paths.offset(*partition))
    return {partition: _read(path, node) for partition, path, node in nodes}


def _read(path: str, node: Node) -> Committed:
    return Committed(readable(OffsetRecord.parse, path, node), node.stat.version)


# ---- setting


def write_offsets(
    store: Store, group: str, new: Sequence[NewOffset], topics: Mapping[str, Topic] = NO_TOPICS, of_region: bool = False
) -> int:
    """Set the offsets of an unused group, and return their number; a missing group is created, unless it had offsets or
    a region.

    Each multi checks `state`, so it is refused once a member has received a command, and each offset is replaced only
    if it is unchanged since the new one was decided: a shift must start from the current offset. An unmoved offset
    is not written: its discontinuity stays.

    :param topics: the existing topics. A topic without offsets of this group is recorded as begun by the group: the
        start in its other partitions is its consumers' choice.
    :param of_region: whether the group may be in a consistent region.
    :raises CoordinatorError: when the group is in use, or an offset has changed meanwhile; the message contains the
        number of offsets set.
    """
    paths = GroupPaths(group)
    is_new = not of_region and all(each.known.version is None for each in new)
    if new and is_new and not look(store, group).exists:
        ensure(store, paths.skeleton)
    left = [each for each in new if each.offset != each.known.current]

    def attempt(before: Failure | None) -> None:
        nonlocal left
        if before is not None:
            left = _unset(store, paths, left, _so_far(new, left))
        try:
            standing = inactive(store, group, of_region)
            while left:
                left = left[_write_some(store, standing, left, topics) :]
        except (Refused, OutcomeUnknown):
            raise
        except CoordinatorError as error:
            if len(left) == len(new):
                raise
            raise CoordinatorError(f"{error}{_so_far(new, left)}") from error

    retried(store, attempt, lambda: f"the znodes of group {group} keep changing: try again{_so_far(new, left)}")
    return len(new)


def _write_some(store: Store, standing: Standing, left: Sequence[NewOffset], known: Mapping[str, Topic]) -> int:
    """One multi; returns the number of offsets set."""
    paths = standing.paths
    topics = sorted({new.known.partition.topic for new in left})
    root, *parents = store.get_many([paths.root, *(paths.offsets_of(topic) for topic in topics)])
    made_at = root.stat.czxid if root is not None else 0
    missing = {topic for topic, node in zip(topics, parents, strict=True) if node is None}
    units: list[list[Operation]] = []
    for new in left:  # each topic's parent with the first of its offsets
        topic = new.known.partition.topic
        begun = BegunRecord.of(known[topic], made_at).to_bytes() if topic in known else b""
        made = [Create(paths.offsets_of(topic), begun)] if topic in missing else []
        missing.discard(topic)
        at, path = new.known, paths.offset(*new.known.partition)
        by_operator = Discontinuity(RESET, 0)
        data = OffsetRecord(new.offset, at.topic_id, standing.state.generation, discontinuity=by_operator).to_bytes()
        units.append([*made, Create(path, data) if at.version is None else SetData(path, data, at.version)])
    batch = next(batches(units, ROOM))
    store.commit([*standing.state_fence(), *batch])
    return sum(not isinstance(each, Create) or each.path.count("/") > paths.offsets.count("/") + 1 for each in batch)


def _unset(store: Store, paths: GroupPaths, left: Sequence[NewOffset], so_far: str) -> list[NewOffset]:
    """The offsets of `left` still to be set, after a refused commit or a lost reply.

    :raises CoordinatorError: when another client has changed one.
    """
    still = []
    for new, path, node in nodes_at(store, left, lambda new: paths.offset(*new.known.partition)):
        position = new.known
        if (node.stat.version if node is not None else None) == position.version:
            still.append(new)
        elif node is None or _read(path, node).of(position.topic_id) != new.offset:
            raise CoordinatorError(
                f"the offset of {position.partition} in group {paths.group} has been changed meanwhile: "
                f"check it with `groups describe`, and try again{so_far}"
            )
    return still


def _so_far(new: Sequence[NewOffset], left: Sequence[NewOffset]) -> str:
    done = len(new) - len(left)
    return f" ({done} of {len(new)} offsets are set already)" if done else ""


# ---- resetting


LogBounds = tuple[int, int, int | None]
"""Offsets in a log: of the oldest record, of the next one to be written, and, if asked, of the first from a time on."""

BoundsOf = Callable[[Topic, int, int | None], LogBounds]
"""Called with a topic, a partition, and a time in milliseconds since the epoch or None."""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One reset, of several groups.

    :ivar topics: the existing topics.
    :ivar plans: the file's offsets of each group, None without a file.
    :ivar warn: called with each warning.
    """

    store: Store
    bounds_of: BoundsOf
    topics: Mapping[str, Topic]
    request: ResetRequest
    plans: Mapping[str, Plan] | None
    warn: Callable[[str], None]

    def plan(self, group: str) -> list[NewOffset]:
        """The new offsets of a group.

        :raises CoordinatorError: when the group is in use, or has no offset to shift.
        :raises UsageError: when a partition does not exist.
        """
        inactive(self.store, group)
        plan = self.plans.get(group) if self.plans is not None else None
        if self.plans is not None and plan is None:
            raise CoordinatorError(f"No reset plan for group '{group}' found.")
        to = self.request.to
        new = [planned(to, position, plan) for position in self._known(group, plan)]
        for each in new:
            if each.warning:
                self.warn(each.warning)
        self._warn_of_segments(group, new)
        return new

    def _known(self, group: str, plan: Plan | None) -> Iterator[PartitionOffsets]:
        offsets, scopes = committed(self.store, GroupPaths(group)), self.request.scopes
        if plan is not None:
            partitions = checked(plan, self.topics)
        elif scopes is not None:
            partitions = chosen(scopes, self.topics)
        else:
            gone = {each: why for each in sorted(offsets) if (why := missing(each, self.topics)) is not None}
            for partition, why in gone.items():
                self.warn(f"{partition} is left out: {why}")
            partitions = sorted(offsets.keys() - gone.keys())
        timestamp_ms = self.request.to.timestamp_ms
        for partition in partitions:
            topic, offset = self.topics[partition.topic], offsets.get(partition)
            current, version = (offset.of(topic.id), offset.version) if offset is not None else (None, None)
            earliest, latest, at = self.bounds_of(topic, partition.partition, timestamp_ms)
            yield PartitionOffsets(partition, topic.id, current, version, earliest, latest, at)

    def _warn_of_segments(self, group: str, new: Sequence[NewOffset]) -> None:
        """Sealed segments end at the group's offsets: records fetched after the reset do not join them."""
        node = self.store.get(GroupPaths(group).segments)
        moved = any(each.offset != each.known.current for each in new if each.known.current is not None)
        if moved and node is not None and node.stat.children:
            self.warn(
                f"group {group} has sealed segments, and a query that runs during the reset fails where it begins"
                ": stop its queries before, and start them again after it"
            )


# ---- removing


Deletions = dict[tuple[str, int | None], str | None]
"""Topic, and partition or None where none is known -> the error, None on success."""


def delete_offsets(store: Store, topics: Mapping[str, Topic], group: str, scopes: Iterable[Scope]) -> Deletions:
    """Remove offsets of topics without a subscribed member, and with a topic's last offset `offsets/[topic]`.

    A member that subscribes meanwhile receives no partitions before `state` has changed, which refuses the removal.

    :raises GroupIdNotFound: when there is no such group.
    """
    requested, removed, kept = list(scopes), set[TopicPartition](), set[str]()

    def attempt(before: Failure | None) -> Deletions:
        if isinstance(before, Refused):
            kept.add(before.path)  # missing or not empty; else: a turn, or a concurrent removal
        standing = look(store, group)
        if not standing.exists:
            raise GroupIdNotFound(f"'{group}' does not exist.")
        offsets = committed(store, standing.paths)
        decided = _decided(requested, topics, {*offsets, *removed}, _subscribed(store, standing))
        deletable = [place for place, error in decided.items() if error is None]
        gone = [TopicPartition(topic, number) for topic, number in deletable if number is not None]
        there = [partition for partition in gone if partition in offsets]
        removed.update(there)  # also when the outcome is unknown: the rest is retried
        emptied = {p.topic for p in gone} - {p.topic for p in offsets.keys() - removed}
        operations: list[Operation] = [Delete(standing.paths.offset(*partition)) for partition in there]
        operations += [Delete(path) for path in map(standing.paths.offsets_of, sorted(emptied)) if path not in kept]
        for first in range(0, len(operations), ROOM):
            store.commit([*standing.state_fence(), *operations[first : first + ROOM]])
        return decided

    return retried(store, attempt, lambda: f"the znodes of group {group} keep changing: try again")


def _subscribed(store: Store, standing: Standing) -> Callable[[str], bool]:
    """Whether a group's members subscribe to a topic, run some of it or have it in their target."""
    paths = standing.paths
    topics = {p.topic for target in standing.state.target.values() for p in target.partitions}
    if standing.state.client is not None:  # a leader decides which topics a wildcard matches
        topics |= set(standing.state.topics)
    topics |= {p.topic for p in standing.owned}
    topics |= {p.topic for _, channel in standing.channels if channel for p in channel.running}
    sources = [paths.id(name) for name in standing.members if is_name(name)]
    sources += [paths.seat(name) for name in standing.seats if is_name(name)]  # of static members that are away
    read = [readable(Registration.parse, "", node) for node in store.get_many(sources)]
    registrations = [each for each in read if each is not None]  # the coordinator ignores an unreadable one too
    for each in registrations:
        if each.pattern in (STATIC, CLIENT):
            topics |= set(each.subscription)
    filters = filters_of(registrations).usable
    return lambda topic: topic in topics or any(each.allows(topic) for each in filters)


def _decided(
    scopes: Iterable[Scope], topics: Mapping[str, Topic], found: set[TopicPartition], subscribed: Callable[[str], bool]
) -> Deletions:
    decided: Deletions = {}
    for scope in scopes:
        there = {partition.partition for partition in found if partition.topic == scope.topic}
        there |= set(topics[scope.topic].partitions) if scope.topic in topics else set()
        numbers: list[int | None] = [*sorted(there if scope.partitions is None else scope.partitions)]
        for number in numbers or [None]:
            error = None if number in there else UNKNOWN_TOPIC_OR_PARTITION
            if error is None and subscribed(scope.topic):
                error = GROUP_SUBSCRIBED_TO_TOPIC
            decided[scope.topic, number] = error
    return decided

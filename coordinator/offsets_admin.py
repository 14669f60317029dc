"""Offsets that an operator sets or removes, in commits that are refused as soon as somebody could fetch by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .group_fence import INACTIVE, GroupIdNotFound, Standing, look
from .offsets_reset import NewOffset, Scope
from .zk.errors import BadData, CoordinatorError, OutcomeUnknown, Refused, StoreError, UsageError
from .zk.fenced import batches, ensure
from .zk.names import is_name
from .zk.partitions import TopicPartition
from .zk.paths import GroupPaths, RegionPaths
from .zk.patterns import TopicFilter
from .zk.ranges import is_partition
from .zk.records import STATIC, BegunRecord, OffsetRecord, Registration, Topic
from .zk.regions import CONSUMERS as REGION_OF_CONSUMERS
from .zk.regions import Region
from .zk.store import MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store
from .zk.sync import CLIENT

TRIES = 20
ROOM = MAX_OPERATIONS - 10
NO_TOPICS: Mapping[str, Topic] = {}

GROUP_SUBSCRIBED_TO_TOPIC = (
    "GROUP_SUBSCRIBED_TO_TOPIC: Deleting offsets of a topic is forbidden while the consumer group is actively "
    "subscribed to it."
)
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION: There is no such topic or partition, and no offset of it."


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset as it stands; `record` is None when it cannot be read."""

    record: OffsetRecord | None
    version: int

    def of(self, topic_id: str) -> int | None:
        """The offset, None when it is another topic's (whoever starts then begins at the earliest record)."""
        return self.record.offset if self.record is not None and self.record.topic_id == topic_id else None


def inactive(store: Store, group: str, of_region: bool = False) -> Standing:
    """Where a group stands that nobody uses.

    :param of_region: whether it may be in a consistent region.
    :raises CoordinatorError: when somebody does, in the words of kafka-consumer-groups.
    :raises UsageError: when the group is in a consistent region, where offsets belong to the application's state.
    :raises BadData: when its state cannot be read.
    """
    found = look(store, group)
    if not of_region and found.state.region is not None and _is_reset_whole(store, found.state.region.name):
        region = found.state.region.name
        raise UsageError(f"group {group} is in consistent region {region}: go back with `regions reset {region}`")
    if found.state.state not in INACTIVE:
        why = f"the current state is {found.state.state}"
    elif found.used_by is not None:
        why = found.used_by
    else:
        return found
    raise CoordinatorError(f"Assignments can only be reset if the group '{group}' is inactive, but {why}.{found.hint}")


def _is_reset_whole(store: Store, region: str) -> bool:
    """Whether offsets of the groups of a region belong to states: not in one of slots."""
    path = RegionPaths(region).root
    node = store.get(path)
    return node is None or Region.parse(path, node.data).kind == REGION_OF_CONSUMERS


def committed(store: Store, paths: GroupPaths) -> dict[TopicPartition, Committed]:
    """Every offset in `offsets/`."""
    listing = store.children(paths.offsets)
    topics = sorted(name for name in (listing.names if listing else ()) if is_name(name))
    below = store.children_many([paths.offsets_of(topic) for topic in topics])
    partitions = sorted(
        TopicPartition(topic, int(name))
        for topic, names in zip(topics, below, strict=True)
        for name in (names.names if names else ())
        if is_partition(name)
    )
    nodes = store.get_many([paths.offset(*partition) for partition in partitions])
    return {p: _read(paths, p, node) for p, node in zip(partitions, nodes, strict=True) if node is not None}


def _read(paths: GroupPaths, partition: TopicPartition, node: Node) -> Committed:
    try:
        return Committed(OffsetRecord.parse(paths.offset(*partition), node.data), node.stat.version)
    except BadData:
        return Committed(None, node.stat.version)


# ---- setting


def write_offsets(
    store: Store,
    group: str,
    new: Sequence[NewOffset],
    topics: Mapping[str, Topic] = NO_TOPICS,
    of_region: bool = False,
) -> None:
    """Set the offsets of a group that nobody uses; one that does not exist yet is made.

    Each multi checks `state`, so none lands once a member has been told to run anything, and each offset is replaced
    only as it was when the new one was decided: a shift must not be made from what is no longer there.

    :param topics: those that there are. Of one that the group has no offsets of yet, it is noted that the group begins
        with it: where it starts in the others of its partitions is for whoever consumes them to say.
    :param of_region: whether the group may be in a consistent region.
    :raises CoordinatorError: when somebody uses the group, or has changed an offset meanwhile; it says how many of
        them are set by then.
    """
    paths = GroupPaths(group)
    if new and not look(store, group).exists:
        ensure(store, paths.skeleton)
    left = list(new)
    for _ in range(TRIES):
        try:
            standing = inactive(store, group, of_region)
            while left:
                left = left[_write_some(store, standing, left, topics) :]
            return
        except (Refused, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown):
                store.sync()
            left = _unset(store, paths, left, _so_far(new, left))
        except CoordinatorError as error:
            if len(left) == len(new):
                raise
            raise CoordinatorError(f"{error}{_so_far(new, left)}") from error
    raise StoreError(f"the znodes of group {group} keep changing: try again{_so_far(new, left)}")


def _write_some(store: Store, standing: Standing, left: Sequence[NewOffset], known: Mapping[str, Topic]) -> int:
    """One multi; how many offsets it has set."""
    paths = standing.paths
    topics = sorted({new.known.partition.topic for new in left})
    root, *parents = store.get_many([paths.root, *(paths.offsets_of(topic) for topic in topics)])
    made_at = root.stat.czxid if root is not None else 0
    missing = {topic for topic, node in zip(topics, parents, strict=True) if node is None}
    units: list[list[Operation]] = []
    for new in left:  # each topic's parent with the first of its offsets
        topic = new.known.partition.topic
        made = [Create(paths.offsets_of(topic), _begun(known.get(topic), made_at))] if topic in missing else []
        missing.discard(topic)
        units.append([*made, _operation(standing, new)])
    some = next(batches(units, ROOM))
    store.commit([*standing.state_fence(), *some])
    return sum(not isinstance(each, Create) or each.path.count("/") > paths.offsets.count("/") + 1 for each in some)


def _begun(topic: Topic | None, group_czxid: int) -> bytes:
    return BegunRecord.of(topic, group_czxid).to_bytes() if topic is not None else b""


def _operation(standing: Standing, new: NewOffset) -> Operation:
    known = new.known
    path = standing.paths.offset(*known.partition)
    data = OffsetRecord(new.offset, known.topic_id, standing.state.generation).to_bytes()
    return Create(path, data) if known.version is None else SetData(path, data, known.version)


def _unset(store: Store, paths: GroupPaths, left: Sequence[NewOffset], so_far: str) -> list[NewOffset]:
    """Which of `left` are still to be set, after a commit that was refused, or whose reply was lost.

    :raises CoordinatorError: when somebody else has changed one.
    """
    nodes = store.get_many([paths.offset(*new.known.partition) for new in left])
    still = []
    for new, node in zip(left, nodes, strict=True):
        known = new.known
        if (node.stat.version if node is not None else None) == known.version:
            still.append(new)
        elif node is None or _read(paths, known.partition, node).of(known.topic_id) != new.offset:
            raise CoordinatorError(
                f"the offset of {known.partition} in group {paths.group} has been changed meanwhile: "
                f"look at it with `groups describe`, and try again{so_far}"
            )
    return still


def _so_far(new: Sequence[NewOffset], left: Sequence[NewOffset]) -> str:
    done = len(new) - len(left)
    return f" ({done} of {len(new)} offsets are set already)" if done else ""


# ---- removing


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one partition; `partition` is None where none is known, `error` None where it succeeded."""

    topic: str
    partition: int | None
    error: str | None = None


def delete_offsets(store: Store, topics: Mapping[str, Topic], group: str, scopes: Iterable[Scope]) -> list[Deletion]:
    """Remove offsets of topics that no member subscribes to, and with a topic's last one the note that it was begun.

    A member that subscribes meanwhile is given nothing before `state` has moved, which refuses the removal.

    :raises GroupIdNotFound: when there is no such group.
    """
    wanted, removed, kept = list(scopes), set[TopicPartition](), set[str]()
    for _ in range(TRIES):
        standing = look(store, group)
        if not standing.exists:
            raise GroupIdNotFound(f"'{group}' does not exist.")
        found = committed(store, standing.paths)
        decided = _decided(wanted, topics, {*found, *removed}, _Subscribed(store, standing))
        gone = [TopicPartition(d.topic, d.partition) for d in decided if d.error is None and d.partition is not None]
        there = [partition for partition in gone if partition in found]
        removed.update(there)  # whatever comes of it: what is still there is tried again
        emptied = {p.topic for p in gone} - {p.topic for p in found.keys() - removed}
        operations: list[Operation] = [Delete(standing.paths.offset(*partition)) for partition in there]
        operations += [Delete(path) for path in map(standing.paths.offsets_of, sorted(emptied)) if path not in kept]
        try:
            for first in range(0, len(operations), ROOM):
                store.commit([*standing.state_fence(), *operations[first : first + ROOM]])
            return decided
        except Refused as refused:
            kept.add(refused.path)  # it is not there, or not empty; else: a turn, or somebody who removes them too
        except OutcomeUnknown:
            store.sync()
    raise StoreError(f"the znodes of group {group} keep changing: try again")


class _Subscribed:
    """Which topics a group's members subscribe to, run or shall run."""

    def __init__(self, store: Store, standing: Standing) -> None:
        paths = standing.paths
        self._topics = {p.topic for target in standing.state.target.values() for p in target.partitions}
        if standing.state.client is not None:  # a leader decides which topics a wildcard matches
            self._topics |= set(standing.state.topics)
        self._topics |= {p.topic for p in standing.owned}
        self._topics |= {p.topic for _, channel in standing.channels if channel for p in channel.running}
        self._filters: list[TopicFilter] = []
        wanted = [paths.id(name) for name in standing.members if is_name(name)]
        wanted += [paths.seat(name) for name in standing.seats if is_name(name)]  # of those who are away for a moment
        for node in store.get_many(wanted):
            if node is not None:
                self._add(node)

    def _add(self, node: Node) -> None:
        try:
            registration = Registration.parse("", node.data)
            if registration.pattern in (STATIC, CLIENT):
                self._topics |= set(registration.subscription)
            else:
                self._filters += [TopicFilter(registration.pattern, text) for text in registration.subscription]
        except BadData:
            pass  # the coordinator leaves it out too: it has no part until it can be read

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics or any(each.allows(topic) for each in self._filters)


def _decided(
    scopes: Iterable[Scope], topics: Mapping[str, Topic], found: set[TopicPartition], subscribed: _Subscribed
) -> list[Deletion]:
    decided: dict[tuple[str, int | None], Deletion] = {}
    for scope in scopes:
        there = {partition.partition for partition in found if partition.topic == scope.topic}
        there |= set(topics[scope.topic].partitions) if scope.topic in topics else set()
        numbers: list[int | None] = [*sorted(there if scope.partitions is None else scope.partitions)]
        for number in numbers or [None]:
            error = None if number in there else UNKNOWN_TOPIC_OR_PARTITION
            if error is None and scope.topic in subscribed:
                error = GROUP_SUBSCRIBED_TO_TOPIC
            decided[scope.topic, number] = Deletion(scope.topic, number, error)
    return list(decided.values())

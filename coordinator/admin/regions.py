"""Operator commands for consistent regions: reads, requests to the coordinator, and the removal of an unused group.

At a removal the group's state and the region's znode change in one multi, which also removes and re-creates `ids`: a
concurrent registration either refuses it, or finds a group that is bound to no region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..zk.errors import CoordinatorError, OutcomeUnknown, Refused, StoreError, UsageError
from ..zk.store import Create, Operation, SetData, Store, existing_nodes
from ..zk.update import Failure, retried
from ..zk.values import shown
from ..zk.znodes import regions
from ..zk.znodes.cuts import GroupCut, contributions, read_cut
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import REGIONS, GroupPaths, RegionPaths, checkpoint_number, is_name, names_below
from ..zk.znodes.records import OffsetRecord
from .groups import Reading, partitions_below
from .offsets import GroupNotEmpty, committed, look, write_offsets
from .reset_offsets import NewOffset, PartitionOffsets

OPEN = "open"


@dataclass(frozen=True, slots=True)
class ShownCheckpoint:
    """A checkpoint of a region.

    :ivar state: `open`, or its end.  :ivar contributions: names of the contributors.
    """

    sequence: int
    state: str
    checkpoint: regions.Checkpoint | None
    end: regions.CheckpointEnd | None
    contributions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownRegion:
    """A region with its checkpoints, oldest first.

    :ivar region: None when it cannot be read.
    :ivar members: group -> members in its target.
    :ivar cut_ms: completion time of the checkpoint restored by a reset; None for the initial state.
    :ivar cut_reset: number of the reset before that checkpoint; None when it is not known.
    """

    name: str
    region: regions.Region | None
    members: Mapping[str, int]
    checkpoints: Sequence[ShownCheckpoint] = ()
    cut_ms: int | None = None
    cut_reset: int | None = None

    @property
    def state(self) -> str:
        return self.region.state if self.region is not None else "unreadable"


def existing_region(reading: Reading, name: str) -> ShownRegion:
    """
    :raises CoordinatorError: when it does not exist.
    """
    if not is_name(name) or reading.store.get(RegionPaths(name).root) is None:
        names = ", ".join(reading.names(REGIONS)) or "none"
        raise CoordinatorError(f"there is no consistent region {shown(name)}; there are: {names}")
    return read_region(reading, name)


def read_region(reading: Reading, name: str, newest: int | None = None) -> ShownRegion:
    """Read a region.

    :param newest: number of its newest checkpoints to read; all of them by default.
    """
    paths = RegionPaths(name)
    region = reading.parsed(paths.root, regions.Region.parse)
    if region is None:
        return ShownRegion(name, None, {})
    states = reading.parsed_many([GroupPaths(group).state for group in region.groups], GroupState.parse)
    members = {group: len(state.target) if state else 0 for group, state in zip(region.groups, states, strict=True)}
    listing = reading.store.children(paths.checkpoints) if newest != 0 else None
    numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
    checkpoints = _checkpoints(reading, paths, numbers if newest is None else numbers[-newest:])
    if region.sequence == regions.INITIAL:
        return ShownRegion(name, region, members, checkpoints)
    cut = reading.parsed(paths.end(region.sequence, regions.COMPLETED), regions.CheckpointEnd.parse)
    begun = reading.parsed(paths.checkpoint(region.sequence), regions.Checkpoint.parse)
    cut_ms, cut_reset = cut.at_ms if cut is not None else None, begun.reset if begun is not None else None
    return ShownRegion(name, region, members, checkpoints, cut_ms, cut_reset)


def _checkpoints(reading: Reading, paths: RegionPaths, numbers: Sequence[int]) -> list[ShownCheckpoint]:
    where = [paths.checkpoint(number) for number in numbers]
    checkpoints = reading.parsed_many(where, regions.Checkpoint.parse)
    listings = reading.store.children_many(where)
    below = [listing.names if listing is not None else [] for listing in listings]
    known = (regions.ABANDONED, regions.ABORTED, regions.COMPLETED)
    states = [next((each for each in known if each in names), OPEN) for names in below]
    ended = [paths.end(number, how) for number, how in zip(numbers, states, strict=True) if how != OPEN]
    ends = dict(zip(ended, reading.parsed_many(ended, regions.CheckpointEnd.parse), strict=True))
    contributors = [tuple(sorted(set(names) - set(regions.ENDS))) for names in below]
    found = zip(numbers, states, checkpoints, contributors, strict=True)
    return [
        ShownCheckpoint(number, how, begun, ends.get(paths.end(number, how)), by) for number, how, begun, by in found
    ]


def read_contributions(reading: Reading, region: str, sequence: int) -> dict[str, regions.Contribution | None]:
    """Name -> contribution of one checkpoint, None for an unreadable one."""
    paths = RegionPaths(region)
    listing = reading.store.children(paths.checkpoint(sequence))
    names = sorted(set(listing.names if listing is not None else ()) - set(regions.ENDS))
    where = [f"{paths.checkpoint(sequence)}/{name}" for name in names]
    return dict(zip(names, reading.parsed_many(where, regions.Contribution.parse), strict=True))


def checked_target(found: ShownRegion, sequence: int | None) -> int:
    """The checkpoint restored by a reset.

    :param sequence: None for the region's current one.
    :raises UsageError: when there is no such complete checkpoint, and for a region of slots.
    """
    if found.region is not None and found.region.kind == regions.SLOTS:
        raise UsageError(
            f"a region of slots is never reset, and {found.name} is one: start queries at a checkpoint instead "
            "(startingSegments=checkpoint:NUMBER)"
        )
    to = (found.region.sequence if found.region is not None else regions.INITIAL) if sequence is None else sequence
    complete = [each.sequence for each in found.checkpoints if each.state == regions.COMPLETED]
    if to != regions.INITIAL and to not in complete:
        there = ", ".join(map(str, complete)) or "none"
        raise UsageError(f"region {found.name} has no complete checkpoint {to}; it has: {there} (or --to-initial)")
    return to


def request(store: Store, region: str, asked: regions.RegionRequest) -> None:
    """Send a request to the coordinator, which answers by removing it.

    :raises UsageError: when another request is pending.
    :raises StoreError: when the reply was lost, and the request is not there: it may have been answered.
    :raises CoordinatorError: when there is no such region.
    """
    paths = RegionPaths(region)

    def attempt(before: Failure | None) -> None:
        if isinstance(before, Refused) and store.get(paths.root) is None:
            raise CoordinatorError(f"there is no consistent region {shown(region)}") from before
        standing, data = store.get(paths.request), asked.to_bytes()
        if isinstance(before, OutcomeUnknown):
            if standing is not None and standing.data == data:
                return
            # It may have been answered already: resent, a reset would happen twice.
            raise StoreError(
                f"the reply to the request for region {region} was lost: look at `zk-coordinator regions describe "
                f"{region}` before you send it again"
            ) from before
        if standing is not None and not regions.is_replaced(paths.request, standing.data, asked):
            raise UsageError(
                f"a request for region {region} is already pending, without an answer: is a coordinator elected? "
                "(zk-coordinator status)"
            )
        version = standing.stat.version if standing is not None else 0
        store.commit([Create(paths.request, data) if standing is None else SetData(paths.request, data, version)])

    retried(store, attempt, lambda: f"{paths.request} keeps changing: try again")


def unbinding(store: Store, group: str) -> list[Operation]:
    """The operations that remove a group from every region that lists it, for the multi that deletes the group.

    Refused when a region has changed meanwhile. An unreadable region is not changed.
    """
    operations: list[Operation] = []
    for _, path, node in existing_nodes(store, names_below(store, REGIONS), lambda name: RegionPaths(name).root):
        region = readable(regions.Region.parse, path, node)
        if region is not None and group in region.groups:
            operations.append(SetData(path, region.without(group).to_bytes(), node.stat.version))
    return operations


def remove_group(store: Store, region: str, group: str) -> tuple[str, ...]:
    """Unbind a group. It continues at the offsets of the region's current cut, in a region or in none.

    :returns: the remaining groups of the region.
    :raises UsageError: when the group is not bound to this region.
    :raises GroupNotEmpty: when the group is in use.
    :raises BadData: when the region, the group's state, or its contribution cannot be read.
    :raises StoreError: when ZooKeeper did not answer, or concurrent writes keep winning.
    """
    paths = RegionPaths(region)

    def attempt(before: Failure | None) -> tuple[str, ...]:
        standing = look(store, group)
        node = store.get(paths.root) if is_name(region) else None
        record = regions.Region.parse(paths.root, node.data) if node is not None else None
        in_state = standing.state.region is not None and standing.state.region.name == region
        if not in_state and (record is None or group not in record.groups):
            if isinstance(before, OutcomeUnknown):
                return record.groups if record is not None else ()  # done by the previous attempt
            raise UsageError(f"group {group} is not bound to consistent region {region}: see `regions list`")
        if why := standing.in_use:
            raise GroupNotEmpty(f"group {group} stays in region {region}: {why}.{standing.hint}")
        if record is not None and record.kind == regions.CONSUMERS and standing.exists:
            _write_offsets(store, paths, record, group)
        written: list[Operation] = []
        if standing.version is not None:
            data = replace(standing.state, region=None).to_bytes()
            written += [SetData(standing.paths.state, data, standing.version)]
        elif standing.exists:
            written += standing.state_fence()
        written += standing.vacancy_fence()
        if record is not None and node is not None:
            written.append(SetData(paths.root, record.without(group).to_bytes(), node.stat.version))
        store.commit(written)
        return record.without(group).groups if record is not None else ()

    return retried(store, attempt, lambda: f"region {region} and group {group} keep changing: try again")


# ---- offsets after the removal


def _write_offsets(store: Store, paths: RegionPaths, region: regions.Region, group: str) -> None:
    """Set `offsets/` to the cut, else to the group's start: an aborted checkpoint has left offsets of a lost state.

    Of a topic recreated since, `offsets/` is kept.
    """
    there = committed(store, GroupPaths(group))
    newest = {part: before.record.topic_id for part, before in there.items() if before.record is not None}
    found = [*_initial(store, paths, group), *_cut_offsets(store, paths, region, group)]
    offsets = {part: (offset, topic_id) for part, (offset, topic_id) in found if newest.get(part, topic_id) == topic_id}
    new = []
    for part, (offset, topic_id) in sorted(offsets.items()):
        before = there.get(part)
        if before is None or before.of(topic_id) != offset:
            version = before.version if before is not None else None
            new.append(NewOffset(PartitionOffsets(part, topic_id, None, version, offset, offset), offset))
    write_offsets(store, group, new, of_region=True)


StartOffsets = Iterator[tuple[TopicPartition, tuple[int, str]]]
"""Partitions, each with its offset and topic id."""


def _cut_offsets(store: Store, paths: RegionPaths, region: regions.Region, group: str) -> StartOffsets:
    sequence = region.cut_of(group)
    cut = read_cut(store, paths, sequence, group) if sequence != regions.INITIAL else GroupCut()
    names = sorted(set(cut.sources.values()))
    for name, given in contributions(store, paths, sequence, group, names):
        for part, offset in given.offsets.items():
            if cut.sources[part] == name:
                yield part, (offset, given.topics.get(part.topic, ""))


def _initial(store: Store, paths: RegionPaths, group: str) -> StartOffsets:
    root = paths.initial_of_group(group)
    parts = partitions_below(store, root, names_below(store, root))
    for part, path, node in existing_nodes(store, parts, lambda part: paths.initial_offset(group, *part)):
        record = OffsetRecord.parse(path, node.data)
        yield part, (record.offset, record.topic_id)

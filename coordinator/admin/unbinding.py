"""Removing an unused group from its consistent region.

The group's state and the region's znode change in one multi, which also removes and re-creates `ids`: a concurrent
registration either refuses it, or finds a group that is bound to no region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..zk.errors import OutcomeUnknown, UsageError
from ..zk.store import Operation, SetData, Store
from ..zk.update import Failure, retried
from ..zk.znodes.cuts import GroupCut, contributions, read_cut
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import REGIONS, GroupPaths, RegionPaths, is_name, names_below
from ..zk.znodes.records import OffsetRecord
from ..zk.znodes.regions import CONSUMERS, INITIAL, Region
from .groups import existing, partitions_below
from .inactive_group import GroupNotEmpty, look
from .offsets import committed, write_offsets
from .reset_offsets import NewOffset, PartitionOffsets


def unbinding(store: Store, group: str) -> list[Operation]:
    """The operations that remove a group from every region that lists it, for the multi that deletes the group.

    Refused when a region has changed meanwhile. An unreadable region is left alone.
    """
    found: list[Operation] = []
    for name, node in existing(store, {name: RegionPaths(name).root for name in names_below(store, REGIONS)}).items():
        path = RegionPaths(name).root
        region = readable(Region.parse, path, node)
        if region is not None and group in region.groups:
            found.append(SetData(path, region.without(group).to_bytes(), node.stat.version))
    return found


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
        record = Region.parse(paths.root, node.data) if node is not None else None
        in_state = standing.state.region is not None and standing.state.region.name == region
        if not in_state and (record is None or group not in record.groups):
            if isinstance(before, OutcomeUnknown):
                return record.groups if record is not None else ()  # the try before has done it
            raise UsageError(f"group {group} is not bound to consistent region {region}: see `regions list`")
        if why := standing.in_use:
            raise GroupNotEmpty(f"group {group} stays in region {region}: {why}.{standing.hint}")
        if record is not None and record.kind == CONSUMERS and standing.exists:
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


def _write_offsets(store: Store, paths: RegionPaths, region: Region, group: str) -> None:
    """Set `offsets/` to the cut, else to the group's start: an aborted checkpoint has left offsets of a lost state.

    For a topic that was re-created since, `offsets/` is kept.
    """
    there = committed(store, GroupPaths(group))
    newest = {part: before.record.topic_id for part, before in there.items() if before.record is not None}
    found = [*_initial(store, paths, group), *_cut_offsets(store, paths, region, group).items()]
    offsets = {part: (offset, topic_id) for part, (offset, topic_id) in found if newest.get(part, topic_id) == topic_id}
    new = []
    for part, (offset, topic_id) in sorted(offsets.items()):
        before = there.get(part)
        if before is None or before.of(topic_id) != offset:
            version = before.version if before is not None else None
            new.append(NewOffset(PartitionOffsets(part, topic_id, None, version, offset, offset), offset))
    write_offsets(store, group, new, of_region=True)


def _cut_offsets(store: Store, paths: RegionPaths, region: Region, group: str) -> dict[TopicPartition, tuple[int, str]]:
    """Partition -> offset and topic id."""
    sequence = region.cut_of(group)
    cut = read_cut(store, paths, sequence, group) if sequence != INITIAL else GroupCut()
    names = sorted(set(cut.sources.values()))
    found: dict[TopicPartition, tuple[int, str]] = {}
    for name, given in contributions(store, paths, sequence, group, names):
        found |= {
            part: (offset, given.topics.get(part.topic, ""))
            for part, offset in given.offsets.items()
            if cut.sources[part] == name
        }
    return found


def _initial(store: Store, paths: RegionPaths, group: str) -> Iterator[tuple[TopicPartition, tuple[int, str]]]:
    topics = names_below(store, paths.initial_of_group(group))
    parts = partitions_below(store, topics, lambda topic: paths.initial_of(group, topic))
    for part, node in existing(store, {part: paths.initial_offset(group, *part) for part in parts}).items():
        record = OffsetRecord.parse(paths.initial_offset(group, *part), node.data)
        yield part, (record.offset, record.topic_id)

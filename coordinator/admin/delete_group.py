"""Removing an unused group, with all its znodes.

A small group is removed in one multi. A larger one takes several, and between two of them the command may die or a
member register. So the order is: first the optional znodes (segments, as if collected; history, channels
of ended consumers), then its offsets, and **last, in one multi, its `state` with all parents**. Until then `state`
keeps its generation and its eviction holds, and the rest is a complete Empty group: it can be deleted again, and a
joining member continues at the remaining offsets. Without `state` every later multi would have lost its fence, and the
coordinator, which creates a missing `state`, would make all members wait for a lease.

Each multi checks the version of `state` and that there is neither a member nor a new query, so a registration in
between stops the removal at the next multi. A registration beside the last multi either comes first, and the multi is
refused, or finds the parents removed, and creates them: another group of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..zk.below import unlink_segment
from ..zk.errors import BadData
from ..zk.store import MAX_OPERATIONS, Check, Delete, Node, Operation, SetData, Store
from ..zk.update import Failure, batches, commit_once, retried
from ..zk.znodes.json_fields import readable
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.segments import Query, Segment, SegmentsRecord, local_file
from .groups import tree
from .offsets import GroupIdNotFound, GroupNotEmpty, Standing, is_seat, look
from .regions import unbinding

ROOM = MAX_OPERATIONS - 12
"""Limit of operations in a multi, besides its fences."""


@dataclass(slots=True)
class Removed:
    """The outcome of a removal.

    :ivar znodes: number of removed znodes, `offsets` of them offsets.
    :ivar elsewhere: number of segment files that could not be removed from this host.
    """

    znodes: int = 0
    offsets: int = 0
    elsewhere: int = 0


Removable = tuple[int, int, int, int]
"""Numbers of the znodes, offsets and sealed segments to be removed, and of the bytes in their files."""


def delete_group(store: Store, group: str) -> Removed:
    """Remove a group. A segment's file is removed after the multi that removes its znode.

    :raises GroupIdNotFound: when the group does not exist.
    :raises GroupNotEmpty: when the group is in use; the message contains the removals before.
    :raises BadData: when its state cannot be read.
    :raises StoreError: when ZooKeeper did not answer, or concurrent writes keep winning.
    """
    paths, removed = GroupPaths(group), Removed()

    def attempt(before: Failure | None) -> Removed:
        standing = look(store, group)
        if not standing.exists and removed.znodes:
            return removed
        znodes = _unused(store, standing, _so_far(removed))
        for fence, removals in _steps(standing, znodes, unbinding(store, group)):
            gone = [operation.path for operation in removals]
            commit_once(store, [*fence, *removals], lambda gone=gone: not any(store.get_many(gone)))  # type: ignore[misc]
            for path in gone:
                _note(removed, paths, path, znodes[path])
        return removed

    return retried(store, attempt, lambda: f"the znodes of group {group} keep changing: try again.{_so_far(removed)}")


def removable(store: Store, group: str) -> Removable:
    """The preview of `delete_group`. Writes nothing; raises as it does."""
    paths = GroupPaths(group)
    nodes = _unused(store, look(store, group))
    segments = [readable(Segment.parse, path, node) for path, node in nodes.items() if _is_segment(paths, path)]
    offsets = sum(_is_offset(paths, path) for path in nodes)
    return len(nodes), offsets, len(segments), sum(one.size for one in segments if one is not None)


def _is_segment(paths: GroupPaths, path: str) -> bool:
    return path == paths.segment(path.rsplit("/", 1)[1])


def _unused(store: Store, standing: Standing, so_far: str = "") -> dict[str, Node]:
    """The znodes of a group that may be removed, parents first."""
    if not standing.exists:
        raise GroupIdNotFound("GroupIdNotFound: The group id does not exist.")
    nodes = tree(store, standing.paths.root)
    if why := _in_use(standing, nodes):
        raise GroupNotEmpty(f"GroupNotEmpty: The group is not empty: {why}.{standing.hint}{so_far}")
    return nodes


def _is_offset(paths: GroupPaths, path: str) -> bool:
    return path.startswith(f"{paths.offsets}/") and path.count("/") == 6


def _so_far(removed: Removed) -> str:
    if not removed.znodes:
        return ""
    lost = f", {removed.offsets} offsets among them" if removed.offsets else ""
    return f" {removed.znodes} of its znodes had been removed before{lost}; the rest is a complete group"


def _note(removed: Removed, paths: GroupPaths, path: str, node: Node) -> None:
    """Count a removed znode; of a segment, remove the file."""
    removed.znodes += 1
    removed.offsets += _is_offset(paths, path)
    if not _is_segment(paths, path):
        return
    try:
        file = local_file(paths.group, Segment.parse("", node.data))
        if file is None:
            removed.elsewhere += 1
        else:
            unlink_segment(file)
    except FileNotFoundError:
        return
    except (BadData, OSError, ValueError):
        removed.elsewhere += 1


def _in_use(standing: Standing, znodes: Mapping[str, Node]) -> str | None:
    """Why the group is in use, None when it is not."""
    paths = standing.paths
    if standing.in_use:
        return standing.in_use
    if standing.state.marks:
        # A new channel begins at version 0: an evicted consumer must have given up before its channel is removed.
        return f"the lease of {standing.state.marks[0].consumer}, which was evicted, may still run"
    for path, node in znodes.items():
        name = path.rsplit("/", 1)[1]
        if path == paths.id(name):
            return f"consumer {name} has just registered"
        if path == paths.seat(name) and is_seat(node):
            return f"static member {name} has just taken a seat"
        if path == paths.pool(name):
            return f"fetcher pool {name} runs"
        query = readable(Query.parse, path, node) if path == paths.query(name) else None
        if path == paths.query(name) and not (query is not None and query.expired_ms):
            return f"query {name} reads its segments (`queries remove {paths.group} {name} --execute` releases them)"
    return None


# ---- the multis


def _steps(
    standing: Standing, znodes: Mapping[str, Node], unbound: Sequence[Operation]
) -> Iterator[tuple[Sequence[Operation], Sequence[Operation]]]:
    """The multis, to be committed in order: each with its fence, and its removals.

    The last multi needs no fence besides its own operations: `state` by its version, and parents, which must be empty.

    :param unbound: operations of the last multi that remove the group from its consistent region.
    """
    paths = standing.paths
    top = {path for path in znodes if path.count("/") == paths.root.count("/") + 1}
    needed = {one for one in znodes if one.startswith((f"{paths.offsets}/", f"{paths.owners}/", f"{paths.queries}/"))}
    segments = sorted((path for path in znodes if _is_segment(paths, path)), key=lambda path: znodes[path].stat.czxid)
    others = znodes.keys() - {paths.root, *top, *needed, *segments}
    fence = [*standing.state_fence(), *standing.vacancy_fence()]
    if paths.queries in znodes:  # refused when a query has been added
        fence.append(Check(paths.queries, znodes[paths.queries].stat.version))
    state = [] if standing.version is None else [Delete(paths.state, standing.version)]
    end = [*map(Delete, sorted(top - {paths.state})), *state, Delete(paths.root)]
    optional = [[Delete(path)] for path in (*segments, *sorted(others, key=_deepest_first))]
    last = [*([Delete(path)] for path in sorted(needed, key=_deepest_first)), end]
    at_once = [*batches([*optional, *last], ROOM)]
    *steps, final = at_once if len(at_once) == 1 else [*batches(optional, ROOM), *batches(last, ROOM)]
    record = readable(SegmentsRecord.parse, paths.segments, znodes.get(paths.segments)) or SegmentsRecord()
    writes = 0
    for batch in steps:
        written = []
        if newest := max((znodes[each.path].stat.czxid for each in batch if _is_segment(paths, each.path)), default=0):
            # `segments` records them as collected, as after the queries.
            record = replace(record, collected=max(record.collected, newest))
            written = [SetData(paths.segments, record.to_bytes(), znodes[paths.segments].stat.version + writes)]
            writes += 1
        yield [*fence, *written], batch
    yield unbound, final


def _deepest_first(path: str) -> tuple[int, str]:
    return -path.count("/"), path

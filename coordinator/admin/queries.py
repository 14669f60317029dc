"""Implementation of `zk-coordinator queries`: the segments that each query of a group holds back, and its removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..planning.backpressure import UNKNOWN, finished_by_all
from ..zk.errors import UsageError
from ..zk.store import Delete, Node, SetData, Store
from ..zk.update import Change, update
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.segments import Query, SegmentsRecord
from .groups import Reading, checked_group, existing
from .segments import ListedSegment, newest_segments, read_record, read_segments

SILENT_AFTER_MS = 180_000
"""A running query updates its znode once a minute; after three missed updates it counts as silent."""

FAR_BEHIND_SEGMENTS = 5_000
"""A silent query that holds back so many is far behind, and more are not counted: a quarter of the default bound."""

ACTIVE, SILENT, EXPIRED, UNREADABLE = "active", "silent", "expired", "unreadable"


@dataclass(frozen=True, slots=True)
class ShownQuery:
    """A query of a group.

    :ivar query: None for a group whose segments no query reads.
    :ivar state: `active`, `silent` (no update: its driver does not run, or hangs), `expired`, `unreadable`.
    :ivar finished: the czxid up to which it has finished.
    :ivar segments: segments that it holds back as unfinished, 0 for an expired one; with `size` in bytes and `rows`.
    :ivar seen_ms: time of its znode's last change, by the server's clock.
    :ivar paused: why the group's fetchers are paused, None when they are not.
    """

    group: str
    query: str | None
    state: str | None
    run: str | None
    finished: int | None
    segments: int
    size: int
    rows: int
    seen_ms: int | None
    paused: str | None


def read_queries(reading: Reading, group: str, now_ms: int) -> list[ShownQuery]:
    """The queries of a group; one row without a query for a group that has segments or a pause but no query."""
    paths = GroupPaths(group)
    listed = read_segments(reading, paths)
    paused = _segments_record(reading, paths, listed).paused
    found = [_holding(one, listed, paused) for one in _read(reading, paths, now_ms)]
    if not found and (listed or paused):
        found.append(ShownQuery(group, None, None, None, None, *_sums(listed), None, paused))
    return found


def silent_queries(reading: Reading, group: str, now_ms: int) -> list[ShownQuery]:
    """The silent queries of a group, with `FAR_BEHIND_SEGMENTS` of the segments that each holds back at most.

    Segments are read only when there is one: the newest, back to those that all of them have finished.
    """
    paths = GroupPaths(group)
    silent = [one for one in _read(reading, paths, now_ms) if one.state == SILENT]
    if not silent:
        return []
    listed = newest_segments(reading, paths, min(map(_finished, silent)), FAR_BEHIND_SEGMENTS)
    paused = _segments_record(reading, paths, listed).paused
    return [_holding(one, listed, paused) for one in silent]


def _read(reading: Reading, paths: GroupPaths, now_ms: int) -> list[ShownQuery]:
    """The queries, before their segments are counted."""
    found = []
    nodes = existing(reading.store, {name: paths.query(name) for name in reading.names(paths.queries)})
    for name, node in nodes.items():
        query = reading.record(paths.query(name), node, Query.parse)
        run, finished = (query.run, query.finished) if query else (None, None)
        seen_ms = node.stat.mtime_ms
        is_silent = not node.stat.ephemeral_owner and now_ms - seen_ms >= SILENT_AFTER_MS
        state = UNREADABLE if query is None else EXPIRED if query.expired_ms else SILENT if is_silent else ACTIVE
        found.append(ShownQuery(paths.group, name, state, run, finished, 0, 0, 0, seen_ms, None))
    return found


def _finished(query: ShownQuery) -> int:
    return UNKNOWN if query.finished is None else query.finished


def _segments_record(reading: Reading, paths: GroupPaths, listed: Sequence[ListedSegment]) -> SegmentsRecord:
    """The group's record; unreadable segments of `listed` are noted in `reading`."""
    reading.problems.update({paths.segment(item.name): item.problem for item in listed if item.segment is None})
    return read_record(reading, paths)


def _holding(one: ShownQuery, listed: Sequence[ListedSegment], paused: str | None) -> ShownQuery:
    behind = [item for item in listed if item.czxid > _finished(one)] if one.state != EXPIRED else []
    segments, size, rows = _sums(behind)
    return replace(one, segments=segments, size=size, rows=rows, paused=paused)


def _sums(listed: Sequence[ListedSegment]) -> tuple[int, int, int]:
    segments = [item.segment for item in listed if item.segment is not None]
    return len(listed), sum(segment.size for segment in segments), sum(segment.rows for segment in segments)


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a query.

    :ivar shown: the query.
    :ivar segments: number of segments that only it holds back, of `size` bytes.
    :ivar is_last: no other query reads the group: no segments are collected then.
    """

    shown: ShownQuery
    segments: int
    size: int
    is_last: bool


def removal(reading: Reading, group: str, query: str, now_ms: int) -> Removal:
    """What the removal of a query would do.

    :raises UsageError: when there is no such group or query.
    """
    checked_group(reading, group)
    queries = read_queries(reading, group, now_ms)
    shown = next((one for one in queries if one.query == query), None)
    if shown is None:
        raise UsageError(f"Query '{query}' of group '{group}' does not exist: see queries list {group}.")
    finished = {str(one.query): _finished(one) for one in queries if one.state != EXPIRED}
    others = {name: until for name, until in finished.items() if name != query}
    listed = read_segments(reading, GroupPaths(group))
    before, after = finished_by_all(finished) or 0, finished_by_all(others) or 0
    freed, size, _ = _sums([item for item in listed if before < item.czxid <= after])
    return Removal(shown, freed, size, is_last=not others)


def remove_query(store: Store, group: str, query: str) -> None:
    """Remove a query's znode, and set `queries`, whose version identifies the set of queries.

    :raises UsageError: when it does not exist.
    :raises StoreError: when its znode keeps changing.
    """
    paths = GroupPaths(group)

    def removed(node: Node | None) -> Change[None]:
        if node is None:
            raise UsageError(f"Query '{query}' of group '{group}' does not exist any more.")
        return Change([SetData(paths.queries, b""), Delete(paths.query(query), node.stat.version)], None)

    update(store, paths.query(query), removed)

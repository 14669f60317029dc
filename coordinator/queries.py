"""What `zk-coordinator queries` does: what each query of a group holds back, and how one is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backlog import UNKNOWN, finished_by_all
from .groups import Reading
from .segments import ListedSegment, read_record, read_segments
from .zk.errors import Refused, StoreError, UsageError
from .zk.names import is_name
from .zk.paths import GroupPaths
from .zk.sealed import Query
from .zk.store import Delete, Node, SetData, Store

SILENT_AFTER_MS = 180_000
"""A query that runs gives a sign of life once a minute; after three that did not come it counts as silent."""

REMOVE_TRIES = 5

ACTIVE, SILENT, EXPIRED, UNREADABLE = "active", "silent", "expired", "unreadable"


@dataclass(frozen=True, slots=True)
class ShownQuery:
    """A query as it stands.

    :ivar query: None stands for a group whose segments no query reads.
    :ivar state: `active`, `silent` (no sign of life: its driver does not run, or hangs), `expired`, `unreadable`.
    :ivar finished: the czxid up to which it has finished.
    :ivar segments: what it has not finished and so holds back, 0 for an expired one; with `size` in bytes and `rows`.
    :ivar seen_ms: when its znode changed last, by the server's clock.
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
    """The queries of a group; one row without a query when it has segments, or a pause, and no query."""
    paths = GroupPaths(group)
    listed = read_segments(reading, paths)
    for item in listed:
        if item.segment is None:
            reading.problems[paths.segment(item.name)] = item.problem
    paused = read_record(reading, paths).paused
    found = []
    for name in reading.names(paths.queries):
        node = reading.store.get(paths.query(name))
        if node is not None:
            query = reading.parsed(paths.query(name), lambda p, n: Query.parse(p, n.data))
            state = _state(query, node, now_ms)
            behind = _behind(listed, UNKNOWN if query is None else query.finished) if state != EXPIRED else []
            run, finished = (query.run, query.finished) if query else (None, None)
            found.append(ShownQuery(group, name, state, run, finished, *_sums(behind), node.stat.mtime_ms, paused))
    if not found and (listed or paused):
        found.append(ShownQuery(group, None, None, None, None, *_sums(listed), None, paused))
    return found


def _state(query: Query | None, node: Node, now_ms: int) -> str:
    if query is None:
        return UNREADABLE
    if query.expired_ms:
        return EXPIRED
    is_silent = not node.stat.ephemeral_owner and now_ms - node.stat.mtime_ms >= SILENT_AFTER_MS
    return SILENT if is_silent else ACTIVE


def _behind(listed: Sequence[ListedSegment], finished: int) -> list[ListedSegment]:
    return [item for item in listed if item.czxid > finished]


def _sums(listed: Sequence[ListedSegment]) -> tuple[int, int, int]:
    segments = [item.segment for item in listed if item.segment is not None]
    return len(listed), sum(segment.size for segment in segments), sum(segment.rows for segment in segments)


@dataclass(frozen=True, slots=True)
class Removal:
    """What comes of removing a query.

    :ivar shown: the query as it stands.
    :ivar segments: so many are collected for it, of `size` bytes.
    :ivar is_last: no other query reads the group: nothing is collected then.
    """

    shown: ShownQuery
    segments: int
    size: int
    is_last: bool


def removal(reading: Reading, group: str, query: str, now_ms: int) -> Removal:
    """What removing a query would do.

    :raises UsageError: when there is no such group or query.
    """
    if not is_name(group) or reading.store.get(GroupPaths(group).root) is None:
        raise UsageError(f"Consumer group '{group}' does not exist.")
    queries = read_queries(reading, group, now_ms)
    shown = next((one for one in queries if one.query == query), None)
    if shown is None:
        raise UsageError(f"Query '{query}' of group '{group}' does not exist: see queries list {group}.")
    others = {
        str(one.query): UNKNOWN if one.finished is None else one.finished
        for one in queries
        if one.query != query and one.state != EXPIRED
    }
    mine = {} if shown.state == EXPIRED else {query: UNKNOWN if shown.finished is None else shown.finished}
    listed = read_segments(reading, GroupPaths(group))
    before, after = finished_by_all({**others, **mine}) or 0, finished_by_all(others) or 0
    freed, size, _ = _sums([item for item in listed if before < item.czxid <= after])
    return Removal(shown, freed, size, is_last=not others)


def remove_query(store: Store, group: str, query: str) -> None:
    """Remove a query's znode, and set `queries`, whose version stands for the set of queries.

    :raises UsageError: when it does not exist.
    :raises StoreError: when its znode keeps changing.
    """
    paths = GroupPaths(group)
    for _ in range(REMOVE_TRIES):
        node = store.get(paths.query(query))
        if node is None:
            raise UsageError(f"Query '{query}' of group '{group}' does not exist any more.")
        try:
            store.commit([SetData(paths.queries, b""), Delete(paths.query(query), node.stat.version)])
        except Refused:
            continue  # it has just said that it lives, or how far it is
        return
    raise StoreError(f"query {query} of group {group} could not be removed: its znode keeps changing")

"""Sealed segments and the queries that hold them back, by their znodes, for commands: no file is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ..planning.backpressure import UNKNOWN, finished_by_all
from ..zk.errors import UsageError
from ..zk.store import Delete, Node, SetData, Store, existing_nodes
from ..zk.update import Change, update
from ..zk.values import in_chunks
from ..zk.znodes.paths import SEGMENT_PREFIX, GroupPaths, names_below, segment_name, sequence
from ..zk.znodes.segments import Query, Segment, SegmentsRecord
from .groups import Reading, ShownGroup, checked_group

READ_AT_ONCE = 1000

PartitionKey = tuple[str, str, int]
"""Topic, topic id, partition."""

DAMAGED = "damaged"
LEFT_OVER = "left over"

SILENT_AFTER_MS = 180_000
"""A running query updates its znode once a minute; after three missed updates it counts as silent."""
FAR_BEHIND_SEGMENTS = 5_000
"""Unfinished segments of a silent query that is far behind; more are not counted: a quarter of the default bound."""
ACTIVE, SILENT, EXPIRED, UNREADABLE = "active", "silent", "expired", "unreadable"


class ListedSegment(NamedTuple):
    """A segment's znode; `segment` is None when its data is unreadable, with the reason in `problem`."""

    czxid: int
    name: str
    sealed_ms: int
    segment: Segment | None
    problem: str = ""


class SegmentFinding(NamedTuple):
    """One inconsistency.

    :ivar severity: `damaged` when records are lost or unreadable, `left over` for files that only take space.
    :ivar segment: the segment's name, empty when no single one is concerned.
    :ivar file: the file below the segments folder, empty when none is concerned.
    """

    severity: str
    kind: str
    segment: str
    file: str
    problem: str


def read_segments(reading: Reading, paths: GroupPaths, known: Sequence[ListedSegment] = ()) -> list[ListedSegment]:
    """The segments of a group in the order of their seals: all of them, or all but those collected meanwhile.

    :param known: an earlier listing: its segments are not read again.
    """
    before = {listed.name: listed for listed in known}
    names = _names(reading, paths)
    new = [name for name in names if name not in before]
    read: list[ListedSegment] = []
    for batch in in_chunks(new, READ_AT_ONCE):
        read += _read(reading, paths, batch)
    collected = 0 if len(read) == len(new) else read_record(reading, paths).collected
    segments = [*(before[name] for name in names if name in before), *read]
    return sorted(item for item in segments if item.czxid > collected)


def newest_segments(reading: Reading, paths: GroupPaths, after: int, most: int) -> list[ListedSegment]:
    """The newest segments sealed after czxid `after`, at most `most`. Few of the others are read."""
    names = _names(reading, paths)[-most:]
    newest: list[ListedSegment] = []
    for end in range(len(names), 0, -READ_AT_ONCE):
        read = _read(reading, paths, names[max(0, end - READ_AT_ONCE) : end])
        newest += [item for item in read if item.czxid > after]
        if any(item.czxid <= after for item in read):
            break
    return sorted(newest)


def _names(reading: Reading, paths: GroupPaths) -> list[str]:
    """The names of a group's segments, in the order of their numbers."""
    return [name for name in names_below(reading.store, paths.segments) if name.startswith(SEGMENT_PREFIX)]


def _read(reading: Reading, paths: GroupPaths, names: Sequence[str]) -> list[ListedSegment]:
    """Those that exist."""
    segments = []
    own = Reading(reading.store)  # their problems are findings
    for name, path, node in existing_nodes(own.store, names, paths.segment):
        segment = own.record(path, node, Segment.parse)
        segments.append(ListedSegment(node.stat.czxid, name, node.stat.ctime_ms, segment, own.problems.get(path, "")))
    return segments


def read_record(reading: Reading, paths: GroupPaths) -> SegmentsRecord:
    """The coordinator's record for the group's fetchers; an unreadable one is noted in `reading`."""
    return reading.parsed(paths.segments, SegmentsRecord.parse) or SegmentsRecord()


def positions(group: ShownGroup) -> dict[PartitionKey, int]:
    """The group's offsets: everything before them has been sealed."""
    return {
        (shown.partition.topic, shown.topic_id, shown.partition.partition): shown.offset
        for shown in group.partitions
        if shown.topic_id is not None and shown.offset is not None
    }


def znode_findings(listed: Sequence[ListedSegment], stands: Mapping[PartitionKey, int]) -> list[SegmentFinding]:
    """Violations of invariant S5 in the znodes: the sealed ranges of a partition join without gap or overlap.

    :param listed: in the order of the seals.
    :param stands: the group's offsets before the segments were listed.
    """
    unreadable = [item for item in listed if item.segment is None]
    findings = [SegmentFinding(DAMAGED, "unreadable znode", item.name, "", item.problem) for item in unreadable]
    return [*findings, *_missing(listed), *_unjoined(listed, stands)]


def file_findings(
    listed: Iterable[ListedSegment], problems: Mapping[str, tuple[str, str]], remaining: Collection[str]
) -> list[SegmentFinding]:
    """Damaged files, except those of segments collected during the check.

    :param problems: segment -> kind and text of the problem of its file.
    :param remaining: names of the segments that exist after the check.
    """
    return [
        SegmentFinding(DAMAGED, problems[item.name][0], item.name, item.segment.file, problems[item.name][1])
        for item in listed
        if item.segment and item.name in problems and item.name in remaining
    ]


def unnamed_findings(
    files: Iterable[str],
    listed: Sequence[ListedSegment],
    now: Sequence[ListedSegment],
    may_seal: Mapping[str, bool | None],
) -> list[SegmentFinding] | None:
    """Files without a segment; None when an unreadable segment znode may name them.

    :param listed: the segments before the files were listed.
    :param now: the segments after `may_seal` was read.
    :param may_seal: file -> whether its live fetcher may still seal it.
    """
    if any(item.segment is None for item in now):
        return None
    named = {item.segment.file for item in (*listed, *now) if item.segment}
    living = ("not sealed yet", "no segment names it; its fetcher lives and may still seal it")
    orphan = ("orphan", "no segment names it, and none will")
    kinds = {file: living if may_seal[file] else orphan for file in files if file not in named}
    return [SegmentFinding(LEFT_OVER, kind, "", file, problem) for file, (kind, problem) in kinds.items()]


def _missing(listed: Sequence[ListedSegment]) -> Iterator[SegmentFinding]:
    """ZooKeeper numbers them consecutively, and they are collected in order."""
    numbers = [number for item in listed if (number := sequence(item.name)) is not None]
    for before, after in pairwise(numbers):
        first, last = segment_name(before + 1), segment_name(after - 1)
        if after > before + 1:
            problem = f"{first} is gone" if first == last else f"{first} to {last} are gone"
            yield SegmentFinding(DAMAGED, "missing znode", first, "", problem)


def _unjoined(listed: Sequence[ListedSegment], stands: Mapping[PartitionKey, int]) -> Iterator[SegmentFinding]:
    ends: dict[PartitionKey, int] = {}
    last: dict[PartitionKey, int] = {}
    for item in listed:
        for part in item.segment.ranges if item.segment else ():
            key = (part.topic, part.topic_id, part.partition)
            end = ends.get(key, part.first)
            where = f"{part.topic}-{part.partition}"
            if part.first > end:
                problem = f"offsets {end} to {part.first - 1} of {where} are in no segment before it"
                yield SegmentFinding(DAMAGED, "gap", item.name, "", problem)
            elif part.first < end:
                problem = f"offsets {part.first} to {min(end, part.next) - 1} of {where} are in a segment before it too"
                yield SegmentFinding(DAMAGED, "overlap", item.name, "", problem)
            ends[key], last[key] = max(end, part.next), part.next
    for key, end in sorted(last.items()):
        if stands.get(key, end) > end:
            where = f"{key[0]}-{key[2]}"
            problem = f"the group's offset of {where} is {stands[key]}, but no segment contains {end} and later"
            yield SegmentFinding(DAMAGED, "gap", "", "", problem)


# ---- queries


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
    queries = [_holding(one, listed, paused) for one in _read_queries(reading, paths, now_ms)]
    if not queries and (listed or paused):
        queries.append(ShownQuery(group, None, None, None, None, *_sums(listed), None, paused))
    return queries


def silent_queries(reading: Reading, group: str, now_ms: int) -> list[ShownQuery]:
    """The silent queries of a group, with at most `FAR_BEHIND_SEGMENTS` of the segments held back by each.

    Segments are read only when there is one: from the newest back to the last finished by all of them.
    """
    paths = GroupPaths(group)
    silent = [one for one in _read_queries(reading, paths, now_ms) if one.state == SILENT]
    if not silent:
        return []
    listed = newest_segments(reading, paths, min(map(_finished, silent)), FAR_BEHIND_SEGMENTS)
    paused = _segments_record(reading, paths, listed).paused
    return [_holding(one, listed, paused) for one in silent]


def _read_queries(reading: Reading, paths: GroupPaths, now_ms: int) -> list[ShownQuery]:
    """The queries, before their segments are counted."""
    queries = []
    for name, path, node in existing_nodes(reading.store, reading.names(paths.queries), paths.query):
        query = reading.record(path, node, Query.parse)
        run, finished = (query.run, query.finished) if query else (None, None)
        seen_ms = node.stat.mtime_ms
        is_silent = not node.stat.ephemeral_owner and now_ms - seen_ms >= SILENT_AFTER_MS
        state = UNREADABLE if query is None else EXPIRED if query.expired_ms else SILENT if is_silent else ACTIVE
        queries.append(ShownQuery(paths.group, name, state, run, finished, 0, 0, 0, seen_ms, None))
    return queries


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


def removal(reading: Reading, group: str, query: str, now_ms: int) -> tuple[ShownQuery, int, int, bool]:
    """The effect of a query's removal.

    :returns: the query, the number of segments held back by it alone, their bytes, and whether no other query reads
        the group: no segments are collected then.
    :raises UsageError: when there is no such group or query.
    """
    checked_group(reading.store, group)
    queries = read_queries(reading, group, now_ms)
    shown = next((one for one in queries if one.query == query), None)
    if shown is None:
        raise UsageError(f"Query '{query}' of group '{group}' does not exist: see queries list {group}.")
    finished = {str(one.query): _finished(one) for one in queries if one.state != EXPIRED}
    others = {name: until for name, until in finished.items() if name != query}
    listed = read_segments(reading, GroupPaths(group))
    before, after = finished_by_all(finished) or 0, finished_by_all(others) or 0
    freed, size, _ = _sums([item for item in listed if before < item.czxid <= after])
    return shown, freed, size, not others


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

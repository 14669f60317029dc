"""Sealed segments, as `zk-coordinator segments` shows and checks their znodes: no file is read here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..zk.errors import BadData
from ..zk.znodes.paths import SEGMENT_PREFIX, GroupPaths, is_name, segment_name, sequence
from ..zk.znodes.segments import Segment, SegmentsRecord
from .groups import Reading, ShownGroup, existing

READ_AT_ONCE = 1000

PartitionKey = tuple[str, str, int]
"""Topic, topic id, partition."""

DAMAGED = "damaged"
LEFT_OVER = "left over"


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

    :param known: an earlier listing, whose segments are not read again.
    """
    before = {listed.name: listed for listed in known}
    names = _names(reading, paths)
    new = [name for name in names if name not in before]
    read: list[ListedSegment] = []
    for first in range(0, len(new), READ_AT_ONCE):
        read += _read(reading, paths, new[first : first + READ_AT_ONCE])
    collected = 0 if len(read) == len(new) else read_record(reading, paths).collected
    found = [*(before[name] for name in names if name in before), *read]
    return sorted(item for item in found if item.czxid > collected)


def newest_segments(reading: Reading, paths: GroupPaths, after: int, most: int) -> list[ListedSegment]:
    """The segments sealed after czxid `after`, at most `most`: the newest. Of the others few are read."""
    names = _names(reading, paths)[-most:]
    found: list[ListedSegment] = []
    for end in range(len(names), 0, -READ_AT_ONCE):
        read = _read(reading, paths, names[max(0, end - READ_AT_ONCE) : end])
        found += [item for item in read if item.czxid > after]
        if any(item.czxid <= after for item in read):
            break
    return sorted(found)


def _names(reading: Reading, paths: GroupPaths) -> list[str]:
    """The names of a group's segments, in the order of their numbers."""
    listing = reading.store.children(paths.segments)
    names = listing.names if listing else ()
    return sorted(name for name in names if name.startswith(SEGMENT_PREFIX) and is_name(name))


def _read(reading: Reading, paths: GroupPaths, names: Sequence[str]) -> list[ListedSegment]:
    """Those that exist."""
    found = []
    for name, node in existing(reading.store, {name: paths.segment(name) for name in names}).items():
        try:
            segment, problem = Segment.parse(paths.segment(name), node.data), ""
        except BadData as error:
            segment, problem = None, str(error)
        found.append(ListedSegment(node.stat.czxid, name, node.stat.ctime_ms, segment, problem))
    return found


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
    found = [SegmentFinding(DAMAGED, "unreadable znode", item.name, "", item.problem) for item in unreadable]
    return [*found, *_missing(listed), *_unjoined(listed), *_beyond(listed, stands)]


def file_findings(
    listed: Iterable[ListedSegment], problems: Mapping[str, tuple[str, str]], remaining: Collection[str]
) -> list[SegmentFinding]:
    """Damaged files, but for segments that were collected during the check.

    :param problems: segment -> kind and text of the problem of its file.
    :param remaining: names of the segments that exist after the check.
    """
    return [
        SegmentFinding(DAMAGED, problems[item.name][0], item.name, item.segment.file, problems[item.name][1])
        for item in listed
        if item.segment and item.name in problems and item.name in remaining
    ]


def unnamed_findings(
    files: Iterable[str], listed: Sequence[ListedSegment], now: Sequence[ListedSegment], may_seal: Mapping[str, bool]
) -> list[SegmentFinding] | None:
    """Files without a segment; None when an unreadable segment znode may name them.

    :param listed: the segments before the files were listed.
    :param now: the segments after `may_seal` was read.
    :param may_seal: file -> whether its fetcher lives, and may still seal it.
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


def _unjoined(listed: Sequence[ListedSegment]) -> Iterator[SegmentFinding]:
    ends: dict[PartitionKey, int] = {}
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
            ends[key] = max(end, part.next)


def _beyond(listed: Sequence[ListedSegment], stands: Mapping[PartitionKey, int]) -> Iterator[SegmentFinding]:
    ends: dict[PartitionKey, int] = {}
    for item in listed:
        for part in item.segment.ranges if item.segment else ():
            ends[part.topic, part.topic_id, part.partition] = part.next
    for key, end in sorted(ends.items()):
        if stands.get(key, end) > end:
            problem = (
                f"the group's offset of {key[0]}-{key[2]} is {stands[key]}, but no segment contains {end} and later"
            )
            yield SegmentFinding(DAMAGED, "gap", "", "", problem)

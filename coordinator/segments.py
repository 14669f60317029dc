"""What `zk-coordinator segments` shows and checks of sealed segments, as far as znodes tell: no file is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .groups import Reading, ShownGroup
from .zk.errors import BadData
from .zk.names import is_name
from .zk.paths import SEGMENT_PREFIX, GroupPaths, segment_name, sequence
from .zk.sealed import Segment, SegmentsRecord

READ_AT_ONCE = 1000

PartitionKey = tuple[str, str, int]
"""Topic, topic id, partition."""

DAMAGED = "damaged"
LEFT_OVER = "left over"


class ListedSegment(NamedTuple):
    """A segment's znode; `segment` is None when its data cannot be read, and `problem` then says why."""

    czxid: int
    name: str
    sealed_ms: int
    segment: Segment | None
    problem: str = ""


class Finding(NamedTuple):
    """Something that is not as it should be.

    :ivar severity: `damaged` when records are lost or cannot be read, `left over` for what only takes room.
    :ivar segment: the segment's name, empty when it is about no single one.
    :ivar file: the file below the segments folder, empty when it is about none.
    """

    severity: str
    kind: str
    segment: str
    file: str
    problem: str


def read_segments(reading: Reading, paths: GroupPaths, known: Sequence[ListedSegment] = ()) -> list[ListedSegment]:
    """The segments of a group in the order of their seals: all of them, or all but those that were collected meanwhile.

    :param known: an earlier listing, whose segments are not read again.
    """
    before = {listed.name: listed for listed in known}
    listing = reading.store.children(paths.segments)
    names = sorted(name for name in (listing.names if listing else ()) if name.startswith(SEGMENT_PREFIX))
    found = [before[name] for name in names if name in before]
    is_whole = True
    new = [name for name in names if name not in before and is_name(name)]
    for first in range(0, len(new), READ_AT_ONCE):
        some = new[first : first + READ_AT_ONCE]
        nodes = reading.store.get_many([paths.segment(name) for name in some])
        for name, node in zip(some, nodes, strict=True):
            if node is None:
                is_whole = False
                continue
            try:
                segment, problem = Segment.parse(paths.segment(name), node.data), ""
            except BadData as error:
                segment, problem = None, str(error)
            found.append(ListedSegment(node.stat.czxid, name, node.stat.ctime_ms, segment, problem))
    collected = 0 if is_whole else read_record(reading, paths).collected
    return sorted(item for item in found if item.czxid > collected)


def read_record(reading: Reading, paths: GroupPaths) -> SegmentsRecord:
    """What the coordinator tells the group's fetchers; what cannot be read is noted in `reading`."""
    return reading.parsed(paths.segments, lambda p, n: SegmentsRecord.parse(p, n.data)) or SegmentsRecord()


def local_file(group: str, segment: Segment) -> Path | None:
    """Where a segment's file is on a file system of this machine; None for one on an object store.

    Also None for a file that is not named as its fetcher names them: a znode must not be able to remove any other.
    """
    root = Path(segment.segments_dir.removeprefix("file://"))
    stem = f"{group}/{segment.consumer}/{segment.incarnation}-"
    number = segment.file.removeprefix(stem).removesuffix(".arrow")
    is_own = segment.file == f"{stem}{number}.arrow" and len(number) == 10 and number.isascii() and number.isdigit()
    return root / segment.file if is_own and root.is_absolute() else None


def positions(group: ShownGroup) -> dict[PartitionKey, int]:
    """Where the group stands: everything before it has been sealed."""
    return {
        (shown.partition.topic, shown.topic_id, shown.partition.partition): shown.offset
        for shown in group.partitions
        if shown.topic_id is not None and shown.offset is not None
    }


def znode_findings(listed: Sequence[ListedSegment], stands: Mapping[PartitionKey, int]) -> list[Finding]:
    """What the znodes alone tell of invariant S5: the sealed ranges of a partition join without gap or overlap.

    :param listed: in the order of the seals.
    :param stands: where the group stood before they were listed.
    """
    return [*_unreadable(listed), *_missing(listed), *_unjoined(listed), *_beyond(listed, stands)]


def _unreadable(listed: Sequence[ListedSegment]) -> Iterator[Finding]:
    for item in listed:
        if item.segment is None:
            yield Finding(DAMAGED, "unreadable znode", item.name, "", item.problem)


def _missing(listed: Sequence[ListedSegment]) -> Iterator[Finding]:
    """ZooKeeper numbers them without leaving one out, and they are collected from the first on."""
    numbers = [number for item in listed if (number := sequence(item.name)) is not None]
    for before, after in pairwise(numbers):
        first, last = segment_name(before + 1), segment_name(after - 1)
        if after == before + 2:
            yield Finding(DAMAGED, "missing znode", first, "", f"{first} is gone")
        elif after > before + 2:
            yield Finding(DAMAGED, "missing znode", first, "", f"{first} to {last} are gone")


def _unjoined(listed: Sequence[ListedSegment]) -> Iterator[Finding]:
    ends: dict[PartitionKey, int] = {}
    for item in listed:
        for part in item.segment.ranges if item.segment else ():
            key = (part.topic, part.topic_id, part.partition)
            end = ends.get(key, part.first)
            where = f"{part.topic}-{part.partition}"
            if part.first > end:
                problem = f"offsets {end} to {part.first - 1} of {where} are in no segment before it"
                yield Finding(DAMAGED, "gap", item.name, "", problem)
            elif part.first < end:
                problem = f"offsets {part.first} to {min(end, part.next) - 1} of {where} are in a segment before it too"
                yield Finding(DAMAGED, "overlap", item.name, "", problem)
            ends[key] = max(end, part.next)


def _beyond(listed: Sequence[ListedSegment], stands: Mapping[PartitionKey, int]) -> Iterator[Finding]:
    ends: dict[PartitionKey, int] = {}
    for item in listed:
        for part in item.segment.ranges if item.segment else ():
            ends[part.topic, part.topic_id, part.partition] = part.next
    for key, end in sorted(ends.items()):
        if stands.get(key, end) > end:
            problem = (
                f"the group stands at offset {stands[key]} of {key[0]}-{key[2]}, and no segment has {end} and after"
            )
            yield Finding(DAMAGED, "gap", "", "", problem)

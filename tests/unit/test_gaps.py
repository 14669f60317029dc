"""Offsets without a record, as in Kafka: a sealed range has their number, and the checks include them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from consumer.errors import SegmentError
from consumer.logs.base import Fetch
from consumer.logs.kafka.client import RecordRun, runs
from consumer.logs.kafka.partition import Partition, UnconfirmedQueue
from consumer.sealing.sealer import OpenSegment
from consumer.sealing.segment_check import SegmentCheck
from consumer.sealing.segment_files import SegmentFolder
from coordinator.zk.errors import BadData
from coordinator.zk.znodes.partitions import RESET, Discontinuity, TopicPartition
from coordinator.zk.znodes.segments import Missing, SealedRange, Segment

from .modelled_kafka import columns

PART = TopicPartition("t", 0)


def run_of(*offsets: int, partition: int = 0) -> RecordRun:
    count = len(offsets)
    (run,) = runs(columns(["t"] * count, [partition] * count, list(offsets)))
    return run


def batch(*offsets: int) -> pa.RecordBatch:
    return run_of(*offsets).batch


def sealed(folder: Path, *offsets: int, ranges: tuple[int, int], missing: int, partition: int = 0) -> Segment:
    files = SegmentFolder(str(folder))
    file = f"g/c/abc-000000000{partition}.arrow"
    size = files.write(file, [run_of(*offsets, partition=partition).batch] if offsets else [])
    some = (Missing("t", partition, missing),) if missing else ()
    whole = (SealedRange("t", "id", partition, *ranges),)
    return Segment(file, files.url, len(offsets), size, whole, "c", "abc", 1, some)


def test_open_segment_counts_the_offsets_that_a_fetch_skipped() -> None:
    some = OpenSegment()
    some.add(Fetch(PART, "id", 3, 8, [batch(3, 6)]))
    some.add(Fetch(PART, "id", 8, 9, []))
    some.add(Fetch(PART, "id", 9, 10, [batch(9)]))
    some.add(Fetch(TopicPartition("t", 1), "id", 0, 0, []))

    assert (some.rows, some.ranges[0][3:]) == (3, (3, 10))
    assert some.missing == (Missing("t", 0, 4),)


def test_gaps_of_a_segment_are_in_its_znode_only_when_there_are_any(tmp_path: Path) -> None:
    gap, dense = sealed(tmp_path, 3, 6, ranges=(3, 8), missing=3), sealed(tmp_path, 3, ranges=(3, 4), missing=0)

    assert Segment.parse("s", gap.to_bytes()) == gap
    assert b"missing" not in dense.to_bytes()
    with pytest.raises(BadData, match="missing"):
        Segment.parse("s", gap.to_bytes().replace(b'"0":3}', b'"0":-3}'))


@pytest.mark.parametrize(
    ("offsets", "bounds", "missing", "kind"),
    [
        ((3, 6), (3, 8), 3, "complete"),
        ((5, 6), (3, 7), 2, "complete"),
        ((), (3, 5), 2, "complete"),
        ((3, 4), (3, 5), 0, "complete"),
        ((3, 6), (3, 8), 2, "wrong offsets"),
        ((3, 4, 6), (3, 7), 0, "wrong offsets"),
        ((2, 6), (3, 8), 3, "wrong offsets"),
        ((3, 8), (3, 8), 3, "wrong offsets"),
        ((3, 3, 6), (3, 8), 2, "wrong offsets"),
    ],
)
def test_file_is_complete_with_just_the_gaps_declared_by_its_segment(
    tmp_path: Path, offsets: tuple[int, ...], bounds: tuple[int, int], missing: int, kind: str
) -> None:
    problem = SegmentCheck().problem(sealed(tmp_path, *offsets, ranges=bounds, missing=missing))

    assert (problem.kind if problem is not None else "complete") == kind


def test_segment_of_as_many_topics_as_a_session_can_own_is_read() -> None:
    topics = [f"tenant-{number:053d}" for number in range(2400)]
    reset = {TopicPartition(topic, 0): Discontinuity(RESET, 2**40) for topic in topics}
    ranges = tuple(SealedRange(topic, "BvUhMTUJSHere3rC3yq5xQ", 0, 12345678, 12345679) for topic in topics)
    segment = Segment("g/c/abc-0000000001.arrow", "/s", 2400, 1, ranges, "c", "abc", 1, (), reset)
    assert Segment.parse("s", segment.to_bytes()) == segment and len(segment.to_bytes()) > 512_000


@pytest.mark.parametrize(
    ("there", "bounds", "missing"), [((4, 5), (3, 5), 0), ((3, 7), (3, 7), 2), ((2, 6), (3, 8), 3), ((7, 9), (3, 5), 0)]
)
def test_file_of_another_is_never_read(
    tmp_path: Path, there: tuple[int, ...], bounds: tuple[int, int], missing: int
) -> None:
    segment = sealed(tmp_path, *there, ranges=bounds, missing=missing)
    with pytest.raises(SegmentError, match=f"t-0 offset .* in the place of t-0 offsets {bounds[0]} to"):
        list(SegmentFolder(str(tmp_path)).records(segment))


def test_file_of_another_partition_with_the_same_size_and_rows_is_never_read(tmp_path: Path) -> None:
    files = SegmentFolder(str(tmp_path))
    one, two = (sealed(tmp_path, *range(3000), ranges=(0, 3000), missing=0, partition=number) for number in (0, 1))
    assert sum(batch.num_rows for batch in files.records(one)) == 3000 and one.size == two.size

    Path(files.path(one.file)).write_bytes(Path(files.path(two.file)).read_bytes())
    with pytest.raises(SegmentError, match="has t-1 offset 0 in the place of t-0 offsets 0 to 2999"):
        list(files.records(one))
    reason = "it has no records of t-0, and should have offsets 0 to 2999"
    assert SegmentCheck().problem(one) == ("wrong offsets", reason)


def test_segment_of_a_release_without_gaps_is_read_as_dense(tmp_path: Path) -> None:
    some = replace(sealed(tmp_path, 3, 6, ranges=(3, 7), missing=2), missing=())

    assert SegmentCheck().problem(Segment.parse("s", some.to_bytes())) is not None


def test_topics_take_turns_when_the_room_ends_within_one() -> None:
    busy, calm = Partition(PART, "id", 0), Partition(TopicPartition("u", 0), "id", 0)
    queue = UnconfirmedQueue(lambda _: 1)
    for part, offsets in ((busy, range(20)), (calm, range(1))):
        fetch = part.received(run_of(*offsets))
        assert fetch is not None
        queue.add(1, part, fetch)

    assert [[entry.part.topic for entry in queue.take(1)] for _ in range(3)] == [["t"], ["u"], ["t"]]

"""Files of the embedded log and of segments are checked: no damage is delivered, and none costs other records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.files_without_checksums import LOG_FILE, SEGMENT
from tests.support.sealed import records_in
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.fetching.polling import Fetcher
from zk_group.consumer.logs import checked_file, open_log
from zk_group.consumer.logs.base import LOG_SCHEMA, Fetch, LogError, Position
from zk_group.consumer.logs.checked_file import CheckedFile, write_checked
from zk_group.consumer.logs.embedded.log import STORED_SCHEMA, file_name
from zk_group.consumer.logs.embedded.producer import Appender, PendingRecords, stored_batches
from zk_group.consumer.logs.kafka.client import RecordRun, runs
from zk_group.consumer.logs.kafka.partition import Partition, UnconfirmedQueue
from zk_group.consumer.sealing.sealer import OpenSegment
from zk_group.consumer.sealing.segment_check import SegmentCheck
from zk_group.consumer.sealing.segment_files import SegmentFolder, sealed_rows
from zk_group.consumer.streaming.source.data_source import records
from zk_group.consumer.streaming.source.segment_index import Sealed
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.partitions import RESET, Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.segments import Missing, SealedRange, Segment

from .modelled_kafka import columns

TOPIC, ID = "flights", "id"
LARGE = 1 << 30
FILE = "g/c/abc-0000000001.arrow"


def log_file(log_dir: Path, first: int = 0, partition: int = 0) -> Path:
    return log_dir / TOPIC / ID / str(partition) / file_name(first)


def append(log_dir: Path, batches: Sequence[pa.RecordBatch], partition: int = 0) -> Path:
    return log_file(log_dir, Appender(log_dir, TOPIC, ID, partition).append(batches), partition)


def varied() -> list[pa.RecordBatch]:
    """Two batches with all that a record may have, and may lack."""
    one, other = PendingRecords(), PendingRecords()
    one.add(b"v0", b"k0", 1_700_000_000_000, [("h", b"1"), ("h", None)])
    one.add(None, None, 5000, ())
    other.add(b"v2", b"k2", 7000, ())
    return [*one.batches(), *other.batches()]


def delivered(log_dir: Path) -> Any:
    """All that a reader of the log is told: records, ends, and places by time."""
    log = open_log(str(log_dir))
    times = [log.record_of_time(TOPIC, ID, 0, ms) for ms in (0, 5001, 1_700_000_000_000, 1_700_000_000_001)]
    offset, end, found = log.earliest(TOPIC, ID, 0), log.latest(TOPIC, ID, 0), []
    while offset < end:
        fetched = log.fetch(TOPIC, ID, 0, offset, LARGE)
        found += fetched.batches
        offset = fetched.next_offset
    return found, times, offset


def flips_of_each_byte(whole: bytes) -> Iterator[bytes]:
    """One bit of each."""
    for index in range(len(whole)):
        yield whole[:index] + bytes([whole[index] ^ 1 << index * 3 % 8]) + whole[index + 1 :]


def other_lengths(whole: bytes) -> Iterator[bytes]:
    yield from (whole[:size] for size in range(len(whole)))
    yield from (whole + more for more in (b"\0", b"ARROW1", whole, whole[-200:], bytes(64)))


def damaged(
    whole: bytes, damages: Callable[[bytes], Iterator[bytes]], read: Callable[[bytes], Any], *errors: type[Exception]
) -> Iterator[Exception]:
    """The error that each damage ends with; the others change nothing that is read, and are fewer by far."""
    right, noticed, harmless = read(whole), 0, 0
    for data in damages(whole):
        try:
            assert read(data) == right
            harmless += 1
        except errors as error:
            yield error
            noticed += 1
    assert noticed > 3 * harmless


@pytest.mark.long
@pytest.mark.parametrize("damages", [flips_of_each_byte, other_lengths])
@pytest.mark.parametrize("kind", ["log", "segment"])
def test_damage_is_noticed_or_harmless(tmp_path: Path, damages: Callable[[bytes], Iterator[bytes]], kind: str) -> None:
    segment, path = seal(tmp_path, varied())
    path = path if kind == "segment" else log_file(tmp_path / "log")

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return list(records([segment], True)) if kind == "segment" else delivered(tmp_path / "log")

    for error in damaged(path.read_bytes(), damages, read, SegmentError if kind == "segment" else LogError):
        assert str(path) in str(error)


def seal(folder: Path, stored: Sequence[pa.RecordBatch], *others: Sequence[pa.RecordBatch]) -> tuple[Sealed, Path]:
    """A segment with these records of partition 0, and others of 1 and later; and where its file is."""
    found: list[pa.RecordBatch] = []
    ranges = []
    for partition, batches in enumerate([stored, *others]):
        append(folder / "log", batches, partition)
        fetched = open_log(str(folder / "log")).fetch(TOPIC, ID, partition, 0, LARGE)
        found += fetched.batches
        ranges.append(SealedRange(TOPIC, ID, partition, 0, fetched.next_offset))
    segments = SegmentFolder(str(folder / "segments"))
    size = segments.write(FILE, found)
    rows = sum(batch.num_rows for batch in found)
    segment = Segment(FILE, segments.url, rows, size, tuple(ranges), "c", "abc", 1)
    return Sealed(7, "segment-0000000000", segment), folder / "segments" / FILE


def flip(path: Path, value: bytes) -> None:
    """Flip one bit of a record's value in a file."""
    whole = path.read_bytes()
    index = whole.index(value)
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])


def values_of(log: Any, offset: int) -> list[bytes]:
    fetched = log.fetch(TOPIC, ID, 0, offset, LARGE)
    return [value for batch in fetched.batches for value in batch.column("value").to_pylist()]


# ---- what a reader does


def test_records_before_damage_in_a_log_file_are_delivered_and_none_behind_it(tmp_path: Path) -> None:
    append(tmp_path, stored_batches([b"first"]))
    path = append(tmp_path, [batch for value in (b"a", b"damaged", b"c") for batch in stored_batches([value] * 2)])
    append(tmp_path, stored_batches([b"last"]))
    flip(path, b"damaged")
    log = open_log(str(tmp_path))

    assert values_of(log, 0) == [b"first", b"a", b"a"]
    for _ in range(2):
        with pytest.raises(LogError) as error:
            log.fetch(TOPIC, ID, 0, 3, LARGE)
    words = f"cannot read {path}, which holds the records from offset 1: offsets 3 to 4 are damaged, with CRC32C "
    text, sums = str(error.value)[: len(words)], str(error.value)[len(words) :].split(", and ")
    assert (text, [len(sums[0]), sums[1][8:]]) == (words, [8, " was written"])
    assert int(sums[0], 16) != int(sums[1][:8], 16)
    assert values_of(log, 5) == [b"c", b"c", b"last"]
    assert log.latest(TOPIC, ID, 0) == 8


def test_partition_with_a_damaged_file_waits_until_the_file_is_restored(tmp_path: Path) -> None:
    path = append(tmp_path, stored_batches([b"damaged", b"b"]))
    append(tmp_path, stored_batches([b"c"]))
    append(tmp_path, stored_batches([b"other"]), partition=1)
    whole = path.read_bytes()
    flip(path, b"damaged")
    part, other = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    fetcher = Fetcher(open_log(str(tmp_path)))
    fetcher.begin({part: Position(ID, 0), other: Position(ID, 0)})

    assert [fetch.partition for fetch in fetcher.fetch(LARGE)] == [other]
    assert fetcher.fetch(LARGE) == []
    assert "offsets 0 to 1 are damaged, with CRC32C" in fetcher.complaints[part]
    assert fetcher.positions[part].offset == 0

    path.unlink()
    path.write_bytes(whole)
    (fetched,) = fetcher.fetch(LARGE)
    assert (fetched.first, fetched.next, fetcher.complaints) == (0, 3, {})


def test_a_wrong_time_in_a_log_file_is_noticed_by_a_search_by_time(tmp_path: Path) -> None:
    path = append(tmp_path, stored_batches([b"a"], timestamps_ms=7000))
    whole = path.read_bytes()
    assert whole.count(b"7000000") == 2, "the schema and the footer have it"
    path.write_bytes(whole.replace(b"7000000", b"3000000"))

    with pytest.raises(LogError, match="its checksums have CRC32C "):
        open_log(str(tmp_path)).offset_for_timestamp(TOPIC, ID, 0, 5000)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is checked."""
    sizes: list[int] = []
    crc32c = checked_file._crc32c

    def counting(data: Any, before: int = 0) -> int:
        sizes.append(len(data))
        return crc32c(data, before)

    monkeypatch.setattr(checked_file, "_crc32c", counting)
    return sizes


def test_batch_read_in_pieces_is_checked_once_and_no_other_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, [batch for _ in range(3) for batch in stored_batches([b"x" * 1000] * 100)])
    sizes = counted(monkeypatch)
    log, offset = open_log(str(tmp_path)), 100

    while offset < 200:
        offset = log.fetch(TOPIC, ID, 0, offset, max_bytes=1).next_offset

    assert len([size for size in sizes if size > 50_000]) == 1


@pytest.mark.long
def test_damaged_segment_fails_with_file_offsets_and_both_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch before it is read without any other."""
    segment, path = seal(
        tmp_path, stored_batches([b"x" * 1000] * 1000), stored_batches([b"y" * 1000] * 1000), stored_batches([b"z"])
    )
    flip(path, b"y" * 1000)
    sizes = counted(monkeypatch)

    found = records([segment], False)
    assert next(found).num_rows == 1000
    assert len([size for size in sizes if size > 50_000]) == 1
    with pytest.raises(
        SegmentError,
        match=rf"segment segment-0000000000 \(flights-0 .* the file {path} cannot be read: "
        r"flights-1 offsets 0 to 999 are damaged, with CRC32C [0-9a-f]{8}, and [0-9a-f]{8} was written$",
    ):
        next(found)
    with pytest.raises(SegmentError, match=f"{path} cannot be read: CRC32C "):
        list(records_in(SegmentFolder(segment.segment.segments_dir), FILE, segment.segment.size, 2001))


def test_rows_of_a_segment_are_named_by_their_offsets() -> None:
    ranges = (SealedRange("t", "id", 0, 100, 110), SealedRange("t", "id", 1, 5, 25), SealedRange("u", "id", 0, 0, 3))
    segment = Segment("f", "/", 23, 1, ranges, "c", "i", 1, (Missing("t", 1, 10),))

    found = {
        rows: [(item.topic, item.partition, item.first, item.next) for item in sealed_rows(segment, *rows)]
        for rows in ((0, 10), (3, 4), (9, 2), (12, 2), (20, 2), (22, 1))
    }

    assert found == {
        (0, 10): [("t", 0, 100, 110)],
        (3, 4): [("t", 0, 103, 107)],
        (9, 2): [("t", 0, 109, 110), ("t", 1, 5, 25)],
        (12, 2): [("t", 1, 5, 25)],
        (20, 2): [("u", 0, 0, 2)],
        (22, 1): [("u", 0, 2, 3)],
    }


# ---- the release before


def test_log_file_of_the_release_before_has_no_checksums_and_is_read(tmp_path: Path) -> None:
    path = append(tmp_path, varied())
    path.write_bytes(LOG_FILE)
    append(tmp_path, stored_batches([b"new"], timestamps_ms=6000))
    log = open_log(str(tmp_path))

    assert (values_of(log, 0), values_of(log, 1)) == ([b"v0", None, b"new"], [None, b"new"])
    assert log.offset_for_timestamp(TOPIC, ID, 0, 1_700_000_000_001) == 3
    assert not CheckedFile(pa.py_buffer(LOG_FILE), STORED_SCHEMA).has_checksums


def test_segment_of_the_release_before_has_no_checksums_and_is_read(tmp_path: Path) -> None:
    sealed, path = seal(tmp_path, varied())
    path.write_bytes(SEGMENT)
    sealed = sealed._replace(segment=Segment(FILE, sealed.segment.segments_dir, 2, len(SEGMENT), (), "c", "abc", 1))

    assert [row["value"] for batch in records([sealed], True) for row in batch.to_pylist()] == [b"v0", None]


def plainly(data: bytes) -> tuple[list[pa.RecordBatch], dict[bytes, bytes]]:
    """A file's batches and metadata, as the release before read them."""
    reader = pa.ipc.open_file(pa.BufferReader(data))
    return [reader.get_batch(index) for index in range(reader.num_record_batches)], reader.schema.metadata


def test_files_are_read_by_the_release_before(tmp_path: Path) -> None:
    log_batches, metadata = plainly(append(tmp_path, varied()).read_bytes())
    _, path = seal(tmp_path / "other", varied())
    segment_batches, _ = plainly(path.read_bytes())

    assert [batch.num_rows for batch in log_batches] == [2, 1, 0]
    assert (metadata[b"zk_group.rows"], metadata[b"zk_group.newest_us"]) == (b"3", b"1700000000000000")
    assert [batch.schema for batch in log_batches] == [STORED_SCHEMA] * 3
    assert pa.Table.from_batches(segment_batches).schema.equals(LOG_SCHEMA)
    assert pa.Table.from_batches(segment_batches).num_rows == 3


# ---- files that were made to deceive


def written(
    batches: Sequence[pa.RecordBatch], metadata: dict[bytes, bytes], custom: dict[bytes, bytes] | None
) -> bytes:
    """A file with any checksums, or none."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, STORED_SCHEMA.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch)
        if custom is not None:
            writer.write_batch(pa.RecordBatch.from_pylist([], STORED_SCHEMA), custom_metadata=custom)
    return bytes(sink.getvalue())


def forged(table: object, metadata: dict[bytes, bytes] | None = None, batches: Sequence[pa.RecordBatch] = ()) -> bytes:
    """A file whose checksums are right for themselves."""
    metadata = {checked_file.MARK: checked_file.ALGORITHM} if metadata is None else metadata
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    crc32c = b"%08x" % checked_file._table_crc32c(metadata, text)
    return written(batches, metadata, {b"zk_group.batches": text, b"zk_group.crc32c": crc32c})


@pytest.mark.parametrize(
    "table",
    [b"x", b"[" * 100_000, {}, 7, None, [7], [[]], [[1, 2]], [[1, 2, 3, 4]], [["1", 2, 3]], [[1, True, 3]],
     [[1.5, 2, 3]], [[0, 1, 1]], [[-8, 1, 1]], [[10**30, 1, 1]], [[1 << 40, 1, 1]], [[800, 1, 1], [800, 1, 1]],
     [[800, 1, 1], [700, 1, 1]], [[800, -1, 1]], [[800, 2**64, 1]], [[800, 1, -1]], [[800, 1, 2**32]]],
    ids=lambda table: str(table)[:20],
)  # fmt: skip
def test_checksums_that_name_no_batches_one_after_the_other_are_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"none of a kind known here|Expecting value|are nested"):
        CheckedFile(pa.py_buffer(forged(table)), STORED_SCHEMA)


@pytest.mark.parametrize("end", [8, 100, 1000])
def test_right_checksum_of_bytes_that_are_no_batch_is_refused(end: int) -> None:
    data = forged([], batches=varied()[:1])
    table = [[end, 2, checked_file._crc32c(data[:end])]]
    contents = CheckedFile(pa.py_buffer(forged(table, batches=varied()[:1])), STORED_SCHEMA)

    with pytest.raises((ValueError, OSError, pa.ArrowException)) as error:
        contents.read(0)
    assert not isinstance(error.value, checked_file.DamagedBatch)


def test_file_that_lost_its_checksums_is_not_taken_for_one_without() -> None:
    mark = {checked_file.MARK: checked_file.ALGORITHM}
    right = forged([])
    assert CheckedFile(pa.py_buffer(right), STORED_SCHEMA).rows == []

    for lost in (
        written(varied(), mark, None),
        written(varied(), mark, {b"zk_group.batches": b"[]"}),
        written(varied(), {}, {b"zk_group.batches": b"[]", b"zk_group.crc32c": b"00000000"}),
        written(varied(), {b"zk_group.checksumz": b"crc32c"}, {b"zk_group.batches": b"[]", b"zk_group.crc32c": b"0"}),
        right.replace(b"zk_group.batches", b"zk_group.batchez"),
    ):
        with pytest.raises(ValueError, match="its checksums are missing"):
            CheckedFile(pa.py_buffer(lost), STORED_SCHEMA)
    with pytest.raises(ValueError, match="none of a kind known here"):
        CheckedFile(pa.py_buffer(forged([], {checked_file.MARK: b"crc64"})), STORED_SCHEMA)


def test_batch_without_a_checksum_among_others_is_never_read() -> None:
    """As when somebody has put it into a file: it is in the footer and not among the checksums."""
    one, other = varied()
    sink = pa.BufferOutputStream()
    write_checked(sink, STORED_SCHEMA, [one])
    alone = CheckedFile(sink.getvalue(), STORED_SCHEMA)
    (entry,) = [[part.end, part.rows, part.crc32c] for part in alone._parts]

    with pytest.raises(ValueError, match="it has 2 batches, and checksums of 1"):
        CheckedFile(pa.py_buffer(forged([entry], batches=[one, other])), STORED_SCHEMA)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("has_checksums", [False, True])
def test_compressed_file_is_refused(monkeypatch: pytest.MonkeyPatch, codec: str, has_checksums: bool) -> None:
    compressed = partial(pa.ipc.new_file, options=pa.ipc.IpcWriteOptions(compression=codec))
    monkeypatch.setattr(checked_file.pa.ipc, "new_file", compressed)
    sink = pa.BufferOutputStream()
    zeros = stored_batches([bytes(1 << 24)])
    if has_checksums:
        write_checked(sink, STORED_SCHEMA, zeros)
        data = sink.getvalue()
    else:
        data = pa.py_buffer(written(zeros, {}, None))
    assert data.size < 1 << 20

    with pytest.raises(ValueError, match="a batch is compressed"):
        CheckedFile(data, STORED_SCHEMA)
    if has_checksums:  # the table of the checksums may name other batches than the footer
        monkeypatch.setattr(checked_file, "_refuse_compressed_file", lambda data, some: None)
        with pytest.raises(ValueError, match="a batch is compressed"):
            CheckedFile(data, STORED_SCHEMA).read(0)


# ---- any records


@settings(max_examples=60)
@given(
    cells=st.lists(st.tuples(st.none() | st.binary(max_size=12), st.none() | st.binary(max_size=3)), max_size=40),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
    large=st.integers(0, 3),
    data=st.data(),
)
def test_slices_of_any_records_are_read_as_written_and_one_flip_is_noticed(
    cells: list[tuple[bytes | None, bytes | None]], cuts: list[tuple[int, int]], large: int, data: st.DataObject
) -> None:
    values = [value if value is None else value * (20_000 if large == 3 else 1) for value, _ in cells]
    keys = pa.array([key for _, key in cells], pa.binary())
    at_0 = stored_batches(pa.array(values, pa.binary()), keys, 0)  # a checksum's digits would change with the time
    whole = pa.Table.from_batches(at_0, STORED_SCHEMA).combine_chunks()
    (batch,) = whole.to_batches() or [pa.RecordBatch.from_pylist([], STORED_SCHEMA)]
    batches = [batch.slice(first, rows) for first, rows in cuts]
    sink = pa.BufferOutputStream()

    size = write_checked(sink, STORED_SCHEMA, batches, {b"a": b"b"})

    file = sink.getvalue()
    contents = CheckedFile(file, STORED_SCHEMA)
    assert (size, contents.has_checksums, contents.metadata[b"a"]) == (file.size, True, b"b")
    assert [contents.read(index).to_pylist() for index in range(len(batches))] == [b.to_pylist() for b in batches]

    index = data.draw(st.integers(0, size - 1))
    damaged = bytearray(bytes(file))
    damaged[index] ^= 1 << data.draw(st.integers(0, 7))
    try:
        contents = CheckedFile(pa.py_buffer(bytes(damaged)), STORED_SCHEMA)
        found = [contents.read(index).to_pylist() for index in range(len(batches))]
    except (ValueError, OSError, pa.ArrowException):
        return
    assert found == [b.to_pylist() for b in batches]


# ---- offsets without a record, as in Kafka: a sealed range has their number, and the checks include them


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
def test_another_file_is_refused(tmp_path: Path, there: tuple[int, ...], bounds: tuple[int, int], missing: int) -> None:
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

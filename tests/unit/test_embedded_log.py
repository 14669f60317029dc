"""The embedded log as its readers see it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.base import LOG_SCHEMA, Log, LogError, OffsetAndTimestamp, OffsetOutOfRange, UnknownTopic
from zk_group.consumer.logs.embedded.log import EmbeddedLog, file_name, remove_topic
from zk_group.consumer.logs.embedded.producer import ABANDONED_AFTER_S, Appender, PendingRecords, stored_batches, sweep
from zk_group.coordinator.zk.below import opened_folder
from zk_group.coordinator.zk.errors import UsageError

TOPIC, ID = "flights", "0kqJ7XyNT_aWnRk5bWq8Zg"
LARGE = 1 << 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(str(tmp_path))
    yield log
    log.close()


def append(log_dir: Path, *values: bytes, times: list[int] | None = None, topic_id: str = ID) -> int:
    stamps = pa.array(times) if times else None
    return Appender(log_dir, TOPIC, topic_id, 0).append(stored_batches(list(values), timestamps_ms=stamps))


def values(log: Log, offset: int) -> list[bytes]:
    fetched = log.fetch(TOPIC, ID, 0, offset, LARGE)
    return [value for batch in fetched.batches for value in batch.column("value").to_pylist()]


FIRST_FETCH = """
import sys
from zk_group.consumer.consumer import records_of
from zk_group.consumer.logs.base import Fetch
from zk_group.consumer.logs import open_log
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

_, log_dir, segments_dir, topic, topic_id = sys.argv
log = open_log(log_dir)
folder = SegmentFolder(segments_dir)
before = set(sys.modules)
fetched = log.fetch(topic, topic_id, 0, 0, 1000)
fetch = Fetch(TopicPartition(topic, 0), topic_id, 0, fetched.next_offset, fetched.batches)
assert fetch.nbytes and [record.value for record in records_of(fetch)] == [b"a", b"b"]
size = folder.write("g/file", fetched.batches)
assert folder.contents("g/file", size, 2).read(0).num_rows == 2
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.long
def test_the_first_fetch_loads_no_modules_while_partitions_wait_for_it(tmp_path: Path) -> None:
    append(tmp_path / "log", b"a", b"b")

    command = [sys.executable, "-c", FIRST_FETCH, str(tmp_path / "log"), str(tmp_path / "segments"), TOPIC, ID]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def folder(log_dir: Path) -> Path:
    return log_dir / TOPIC / ID / "0"


def test_appended_batch_is_fetched_with_the_columns_of_sparks_kafka_source(tmp_path: Path, log: Log) -> None:
    records = PendingRecords()
    records.add(b"v", b"k", 1_700_000_000_123, [("h", b"1"), ("h", None)])
    records.add(None, None, 0, ())
    Appender(tmp_path, TOPIC, ID, 3).append(records.batches())

    fetched = log.fetch(TOPIC, ID, 3, 0, LARGE)

    assert fetched.next_offset == 2
    assert [batch.schema for batch in fetched.batches] == [LOG_SCHEMA]
    first, second = fetched.batches[0].to_pylist()
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": TOPIC,
        "partition": 3,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert (second["key"], second["value"], second["offset"], second["headers"]) == (None, None, 1, None)


def test_schema_is_the_one_that_spark_requires_of_sources() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    convert = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    header = types.StructType().add("key", "string").add("value", "binary")
    kafka = types.StructType()
    for name, kind in {
        "key": "binary", "value": "binary", "topic": "string", "partition": "integer", "offset": "long",
        "timestamp": "timestamp", "timestampType": "integer", "headers": types.ArrayType(header),
    }.items():  # fmt: skip
        kafka.add(name, kind)

    wanted = convert(kafka, timezone="UTC")

    assert wanted.equals(LOG_SCHEMA, check_metadata=True)


def test_offsets_continue_after_the_last_batch_of_any_appender(tmp_path: Path, log: Log) -> None:
    (tmp_path / TOPIC / ID).mkdir(parents=True)
    assert values(log, 0) == []

    assert [append(tmp_path, b"a", b"b"), append(tmp_path, b"c"), append(tmp_path, b"d")] == [0, 2, 3]

    assert values(log, 1) == [b"b", b"c", b"d"]
    assert (log.earliest(TOPIC, ID, 0), log.latest(TOPIC, ID, 0)) == (0, 4)
    assert log.fetch(TOPIC, ID, 7, 0, LARGE) == ([], 0), "of a partition that is not written"
    assert (log.earliest(TOPIC, ID, 7), log.latest(TOPIC, ID, 7)) == (0, 0)


def test_reader_at_the_end_sees_new_records_once(tmp_path: Path, log: Log) -> None:
    appender = Appender(tmp_path, TOPIC, ID, 0)
    seen: list[bytes] = []
    for number in range(100):  # more at once than are taken in one by one
        if number % 40 == 0:
            seen += values(log, len(seen))
        appender.append(stored_batches([b"%d" % number]))

    while found := values(log, len(seen)):
        seen += found

    assert seen == [b"%d" % number for number in range(100)]
    assert log.fetch(TOPIC, ID, 0, 100, LARGE) == ([], 100)


def test_a_fetch_at_the_end_costs_well_under_100_microseconds(tmp_path: Path, log: Log) -> None:
    append(tmp_path, b"a")
    best_s = min(timeit.repeat(lambda: log.fetch(TOPIC, ID, 0, 1, LARGE), number=50, repeat=20)) / 50

    assert best_s < 100e-6, f"{best_s * 1e6:.0f} microseconds"


def test_a_topic_without_data_is_unknown_and_so_is_an_old_id_of_its_name(tmp_path: Path, log: Log) -> None:
    with pytest.raises(UnknownTopic, match=f"topic {TOPIC} with id {ID} has no data in "):
        log.fetch(TOPIC, ID, 0, 0, LARGE)
    append(tmp_path, b"a", topic_id="another-id")
    with pytest.raises(UnknownTopic):
        log.latest(TOPIC, ID, 0)


@pytest.mark.parametrize(("topic", "topic_id"), [("..", ID), ("a/b", ID), (TOPIC, ".."), (TOPIC, "../x"), (TOPIC, "")])
def test_name_that_leaves_the_folder_is_refused(tmp_path: Path, log: Log, topic: str, topic_id: str) -> None:
    with pytest.raises(UsageError):
        log.fetch(topic, topic_id, 0, 0, LARGE)
    with pytest.raises(UsageError):
        Appender(tmp_path, topic, topic_id, 0)


def test_an_offset_before_the_earliest_or_after_the_latest_is_out_of_range(tmp_path: Path, log: Log) -> None:
    append(tmp_path, b"a")
    append(tmp_path, b"b")
    assert values(log, 0) == [b"a", b"b"]
    with pytest.raises(OffsetOutOfRange, match=r"offset 3 of flights-0 is out of range: .* holds 0 to 2"):
        log.fetch(TOPIC, ID, 0, 3, LARGE)

    (folder(tmp_path) / file_name(0)).unlink()

    with pytest.raises(OffsetOutOfRange, match="holds 1 to 2"):
        log.fetch(TOPIC, ID, 0, 0, LARGE)
    assert log.earliest(TOPIC, ID, 0) == 1
    assert values(log, 1) == [b"b"]


def test_recreated_log_is_read_from_its_own_beginning(tmp_path: Path, log: Log) -> None:
    append(tmp_path, b"old", b"old")
    assert values(log, 0) == [b"old", b"old"]
    shutil.rmtree(folder(tmp_path))
    append(tmp_path, b"new")

    with pytest.raises(OffsetOutOfRange):
        log.fetch(TOPIC, ID, 0, 2, LARGE)
    assert values(log, 0) == [b"new"]


def test_batches_that_were_fetched_outlive_the_log_and_its_files(tmp_path: Path) -> None:
    append(tmp_path, b"kept")
    log = open_log(f"file://{tmp_path}")
    batch = log.fetch(TOPIC, ID, 0, 0, LARGE).batches[0]
    log.close()
    shutil.rmtree(tmp_path / TOPIC)

    assert batch.column("value").to_pylist() == [b"kept"]


def test_values_are_slices_of_the_mapped_file(tmp_path: Path, log: Log) -> None:
    append(tmp_path, *[b"x" * 1000] * 3000)
    before = pa.total_allocated_bytes()

    fetched = log.fetch(TOPIC, ID, 0, 100, LARGE)

    assert sum(batch.nbytes for batch in fetched.batches) > 2_900_000
    assert pa.total_allocated_bytes() - before < 200_000, "topic, partition and offset alone take memory of their own"
    assert all(0.5e6 < batch.nbytes < 2e6 for batch in fetched.batches)


def test_a_reader_of_many_partitions_keeps_no_file_open_and_few_mapped(tmp_path: Path, log: Log) -> None:
    for partition in range(40):
        Appender(tmp_path, TOPIC, ID, partition).append(stored_batches([b"a"]))
    before = psutil.Process().num_fds()

    held = [log.fetch(TOPIC, ID, partition, 0, LARGE) for partition in [*range(40)] * 2]

    assert {(fetched.next_offset, log.latest(TOPIC, ID, n % 40)) for n, fetched in enumerate(held)} == {(1, 1)}
    assert psutil.Process().num_fds() == before
    del held
    log.fetch(TOPIC, ID, 0, 0, LARGE)
    mapped = [each.path for each in psutil.Process().memory_maps(grouped=False) if str(tmp_path) in each.path]
    assert 1 <= len(mapped) <= 16


def test_unread_records_in_an_open_file_take_no_memory(tmp_path: Path, log: Log) -> None:
    append(tmp_path, *[b"x"] * 100_000)
    before = pa.total_allocated_bytes()

    log.fetch(TOPIC, ID, 0, 0, max_bytes=1000)

    assert pa.total_allocated_bytes() - before < 100_000, "the places of those that were fetched alone"


def test_records_without_headers_store_none(tmp_path: Path) -> None:
    Appender(tmp_path, TOPIC, ID, 0).append(stored_batches([b"x" * 100] * 80_000))

    (file,) = folder(tmp_path).iterdir()
    assert file.stat().st_size < 80_000 * 130


def test_a_timestamp_finds_the_first_record_of_its_time_or_later(tmp_path: Path, log: Log) -> None:
    append(tmp_path, b"a", b"b", times=[1000, 3000])
    append(tmp_path, b"c", times=[2000])  # times need not rise
    append(tmp_path, b"d", b"e", times=[2500, 5000])

    found = {ms: log.offset_for_timestamp(TOPIC, ID, 0, ms) for ms in (0, 1000, 1001, 3000, 3001, 5000, 5001)}

    assert found == {0: 0, 1000: 0, 1001: 1, 3000: 1, 3001: 4, 5000: 4, 5001: 5}
    assert [log.record_of_time(TOPIC, ID, 0, ms) for ms in (0, 1001, 3001, 5001)] == [
        (0, 1000),
        (1, 3000),
        (4, 5000),
        None,
    ]


def test_record_written_during_a_search_by_time_is_not_skipped(tmp_path: Path) -> None:
    append(tmp_path, b"a", times=[1000])

    class Overtaken(EmbeddedLog):
        def record_of_time(
            self, topic: str, topic_id: str, partition: int, timestamp_ms: int
        ) -> OffsetAndTimestamp | None:
            found = super().record_of_time(topic, topic_id, partition, timestamp_ms)
            append(tmp_path, b"b", times=[5000])
            return found

    assert Overtaken(tmp_path).offset_for_timestamp(TOPIC, ID, 0, 5000) == 1


def arrow_file(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda whole: None,
    "emptied": lambda whole: b"",
    "cut": lambda whole: whole[:-20],
    "scrambled": lambda whole: b"?" * len(whole),
    "foreign": lambda whole: arrow_file(pa.schema([("x", pa.int32())]), []),
    "without records": lambda whole: arrow_file(pa.ipc.open_file(whole).schema, []),
    "with too many": lambda whole: arrow_file(
        pa.ipc.open_file(whole).schema, [pa.ipc.open_file(whole).get_batch(0)] * 2
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_reported_with_its_offset_and_others_are_read(tmp_path: Path, log: Log, damage: str) -> None:
    for value in (b"a", b"b", b"c"):
        append(tmp_path, value)
    path = folder(tmp_path) / file_name(1)
    data = DAMAGES[damage](path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    reason = (
        f"cannot read .*{path.name}, which holds the records from offset 1: "
        if data is not None
        else ("no file in .* holds offset 1")
    )

    assert values(log, 0) == [b"a"]
    with pytest.raises(LogError, match=reason):
        log.fetch(TOPIC, ID, 0, 1, LARGE)
    assert values(log, 2) == [b"c"], "a missing file is an error, and not a gap"


def test_leftovers_of_a_dead_producer_are_not_read_and_are_swept_when_they_are_old(tmp_path: Path, log: Log) -> None:
    append(tmp_path, b"a")
    fresh, old = folder(tmp_path) / ".tmp-fresh", folder(tmp_path) / ".tmp-old"
    for path in (fresh, old):
        path.write_bytes(b"half a batch")
    long_ago = time.time() - ABANDONED_AFTER_S - 1
    os.utime(old, (long_ago, long_ago))

    assert values(log, 0) == [b"a"]
    with opened_folder(folder(tmp_path), []) as opened:
        sweep(opened)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_removed_data_is_unavailable_at_once_to_readers_and_producers(tmp_path: Path, log: Log) -> None:
    appender = Appender(tmp_path, TOPIC, ID, 0)
    appender.append(stored_batches([b"a"]))
    assert values(log, 0) == [b"a"]

    assert remove_topic(tmp_path, TOPIC, ID)

    with pytest.raises(UnknownTopic):
        log.fetch(TOPIC, ID, 0, 1, LARGE)
    with pytest.raises(UnknownTopic):
        appender.append(stored_batches([b"b"]))
    assert list(tmp_path.iterdir()) == []
    assert not remove_topic(tmp_path, TOPIC, ID)


def test_a_log_is_opened_by_path_or_file_url_and_by_nothing_else(tmp_path: Path) -> None:
    append(tmp_path, b"a")
    for url in (str(tmp_path), f"file:{tmp_path}", f"file://localhost{tmp_path}"):
        assert values(open_log(url), 0) == [b"a"]
    for url in ("", "s3://bucket/x", "file://elsewhere/x", "file:"):
        with pytest.raises(UsageError):
            open_log(url)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=8), min_size=1, max_size=6),
    max_bytes=st.integers(1, 1500),
    start=st.integers(0, 47),
)
@pytest.mark.long
def test_fetches_join_without_gap_or_overlap_and_keep_their_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], max_bytes: int, start: int
) -> None:
    log_dir = tmp_path_factory.mktemp("log")
    written = [bytes([number % 256]) * size for number, size in enumerate(size for batch in sizes for size in batch)]
    remaining = iter(written)
    for batch_sizes in sizes:
        append(log_dir, *[next(remaining) for _ in batch_sizes])
    log, offset = open_log(str(log_dir)), min(start, len(written))
    seen: list[tuple[int, bytes]] = []

    while (fetched := log.fetch(TOPIC, ID, 0, offset, max_bytes)).batches:
        rows = sum(batch.num_rows for batch in fetched.batches)
        assert rows == 1 or sum(batch.nbytes for batch in fetched.batches) <= max_bytes
        assert all(batch.num_rows for batch in fetched.batches)
        for batch in fetched.batches:
            seen += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        assert fetched.next_offset == offset + rows
        offset = fetched.next_offset

    assert seen == list(enumerate(written))[min(start, len(written)) :]
    shutil.rmtree(log_dir)

"""`format("zk_group")` in real queries: its columns, batches, restarts, and what it does when a file is gone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.drills.broken import plain_reader
from tests.support.applications import application, batches, delivered_exactly, total
from tests.support.sealed import SealedGroup
from tests.support.sealed import batches as record_batches
from tests.support.spark import Delivered, pool, produce, query, read
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.spark import register
from zk_group.coordinator.zk.store import Delete, SetData
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Query, Segment, SegmentsRecord
from zk_group.drills.workloads import spark_app

pytestmark = pytest.mark.timeout(400)
PATHS = GroupPaths("g")


def segments(world: World) -> dict[str, Segment]:
    listing = world.store.children(PATHS.segments)
    names = sorted(listing.names) if listing else []
    nodes = world.store.get_many([PATHS.segment(name) for name in names])
    return {name: Segment.parse(name, node.data) for name, node in zip(names, nodes, strict=True) if node}


@pytest.fixture
def sealed(world: World, tmp_path: Path) -> World:
    """A group with 100 records in each of two partitions, in eight segments."""
    world.coordinator()
    world.topic("t", 2)
    group = SealedGroup(world.store, tmp_path / "segments")
    for number in range(8):
        group.seal(25, partition=number % 2)
    return world


def test_available_now_query_delivers_what_is_there_and_ends(
    spark: SparkSession, sealed: World, tmp_path: Path
) -> None:
    sink = Delivered()
    frame = read(spark, sealed, "g", query="q", maxRecordsPerTrigger="60")
    assert query(frame, sink, tmp_path / "checkpoint", availableNow=True).awaitTermination(120)
    assert sink.has_exactly("t", 2, 100)
    assert len(sink.batches) >= 4
    assert all(0 < len(rows) <= 60 for rows in sink.batches.values())
    assert query(frame, sink, tmp_path / "checkpoint", availableNow=True).awaitTermination(120)
    assert sink.count == 200


@pytest.mark.full("pools and queries in each situation")
def test_three_actions_of_one_batch_have_the_same_records(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    found: list[list[tuple[int, int]]] = []

    def acts_three_times(batch: DataFrame, _: int) -> None:
        actions = (batch.collect() for _ in range(3))
        found.extend(sorted((row.partition, row.offset) for row in rows) for rows in actions)

    writer = read(spark, sealed, "g", query="q").writeStream.foreachBatch(acts_three_times)
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    assert found == 3 * [[(partition, offset) for partition in range(2) for offset in range(100)]]


def test_two_queries_of_one_group_each_get_everything(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    one, two = Delivered(), Delivered()
    for name, sink in (("one", one), ("two", two)):
        frame = read(spark, sealed, "g", query=name, readers="3")
        assert query(frame, sink, tmp_path / name, availableNow=True).awaitTermination(120)
    assert one.has_exactly("t", 2, 100)
    assert two.has_exactly("t", 2, 100)
    for name in ("one", "two"):
        node = sealed.store.get(PATHS.query(name))
        assert node is not None and Query.parse(name, node.data).run


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 1)
    with Producer.for_store(world.store, tmp_path / "log", world.brokers) as producer:
        producer.send("t", b"value", b"key", timestamp_ms=1_700_000_000_123, headers=[("h", b"1"), ("none", None)])
        producer.send("t", None)
    rows: list[dict[str, object]] = []
    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1):
        eventually(lambda: segments(world), 90, "sealed")
    frame = read(spark, world, "g", includeHeaders="true")
    frame.writeStream.foreachBatch(lambda batch, _: rows.extend(row.asDict(True) for row in batch.collect())).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination(120)
    first, second = sorted(rows, key=lambda row: str(row["offset"]))
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123  # type: ignore[attr-defined]
    assert first == {
        "key": b"key",
        "value": b"value",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "none", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    assert read(spark, world, "g").columns == [*list(first)[:5], "timestamp", "timestampType"]


def test_a_missing_file_fails_the_query_by_name_and_offsets(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    name, segment = list(segments(sealed).items())[1]
    Path(segment.segments_dir, segment.file).unlink()
    running = query(read(spark, sealed, "g", query="q"), Delivered(), tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(StreamingQueryException, match=f"{name} \\(t-. offsets .* is missing"):
        running.awaitTermination(120)


@pytest.mark.full("pools and queries in each situation")
def test_a_damaged_file_fails_the_query_by_name_and_offsets(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    name, segment = list(segments(sealed).items())[1]
    path = Path(segment.segments_dir, segment.file)
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    running = query(read(spark, sealed, "g", query="q"), Delivered(), tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(StreamingQueryException, match=f"segment {name} \\(t-. offsets .* cannot be read"):
        running.awaitTermination(120)


@pytest.mark.full("pools and queries in each situation")
def test_a_flipped_bit_fails_the_query_with_its_checksums(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    name, segment = list(segments(sealed).items())[1]
    path = Path(segment.segments_dir, segment.file)
    whole = path.read_bytes()
    index = whole.index(f"t-{segment.ranges[0].partition}-".encode())
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
    running = query(read(spark, sealed, "g", query="q"), Delivered(), tmp_path / "checkpoint", availableNow=True)
    first, last = segment.ranges[0].first, segment.ranges[0].next - 1
    with pytest.raises(
        StreamingQueryException,
        match=rf"segment {name} \(.*: the file {path} cannot be read: t-. offsets {first} to {last}.* are damaged, "
        "with CRC32C [0-9a-f]{8}, and [0-9a-f]{8} was written",
    ):
        running.awaitTermination(120)


@pytest.mark.full("pools and queries in each situation")
def test_pool_with_a_full_backlog_pauses_until_it_is_read(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator(max_backlog_segments=5, backlog_interval_ms=100)
    world.topic("t", 2)
    sink, produced = Delivered(), 0

    def record() -> SegmentsRecord:
        return SegmentsRecord.parse("segments", world.data(PATHS.segments) or b"")

    with pool(spark, world, "g", tmp_path, {"t": 1}, seal_interval_ms=10):
        world.stable("g", 2, timeout_s=90)
        while record().paused is None:
            produce(world, tmp_path / "log", "t", 25)
            produced += 25
        produce(world, tmp_path / "log", "t", 500)
        produced += 500
        assert "no query reads the group" in str(record().paused)
        assert sum(segment.rows for segment in segments(world).values()) < 2 * produced
        running = query(read(spark, world, "g", query="q"), sink, tmp_path / "checkpoint")
        eventually(lambda: sink.has_exactly("t", 2, produced), 60, "the pool has reached the end")
        running.stop()


class StopsAfterOne(Delivered):
    """A sink that fails in every batch but the first: the query ends, and its checkpoint exists."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if batch:
            raise RuntimeError("the sink is away")
        super().__call__(frame, batch)


@pytest.mark.full("pools and queries in each situation")
def test_query_back_after_collection_fails_with_a_remedy(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    slow = read(spark, sealed, "g", query="slow", maxRecordsPerTrigger="60")
    sink = StopsAfterOne()
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        query(slow, sink, tmp_path / "slow").awaitTermination(120)
    assert 0 < sink.count <= 60
    sealed.stop_coordinator(sealed._services[0][0])
    sealed.coordinator(query_retention_ms=2000, segment_retention_ms=0, backlog_interval_ms=50, sweep_interval_ms=100)
    eventually(lambda: Query.parse("slow", sealed.data(PATHS.query("slow")) or b"").expired_ms > 0, 30, "it expired")
    fast = read(spark, sealed, "g", query="fast")
    for _ in range(2):  # the second run publishes the first one's progress
        assert query(fast, Delivered(), tmp_path / "fast", availableNow=True).awaitTermination(120)
    eventually(lambda: not segments(sealed), 30, "everything is collected")

    again = query(slow, Delivered(), tmp_path / "slow", availableNow=True)

    wanted = r"query slow of group g has lost records: segments from segment-.* on are gone.*new checkpoint and another"
    with pytest.raises(StreamingQueryException, match=wanted):
        again.awaitTermination(120)
    node = sealed.store.get(PATHS.query("slow"))
    assert node is None or Query.parse("slow", node.data).expired_ms > 0, "it holds nothing back"


def test_removed_running_query_fails_with_the_reason(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    sink = Delivered()
    running = query(read(spark, sealed, "g", query="q"), sink, tmp_path / "checkpoint")
    eventually(lambda: sink.has_exactly("t", 2, 100), 60, "it has everything, and waits for more")

    sealed.store.commit([SetData(PATHS.queries, b""), Delete(PATHS.query("q"))])

    with pytest.raises(StreamingQueryException, match="query q of group g was removed while it ran"):
        running.awaitTermination(60)
    assert sealed.store.get(PATHS.query("q")) is None


@pytest.mark.full("pools and queries in each situation")
def test_unnamed_query_without_a_checkpoint_holds_nothing_after_its_end(spark: SparkSession, sealed: World) -> None:
    sink = Delivered()
    running = read(spark, sealed, "g").writeStream.foreachBatch(sink).start()
    eventually(lambda: sink.has_exactly("t", 2, 100), 60, "it has everything")
    (name,) = sealed.names(PATHS.queries)
    assert name.startswith("query-")

    running.stop()

    eventually(lambda: sealed.names(PATHS.queries) == [], 30, "it is registered no more")


# ---- batch reads, and where a query begins


def batch(spark: SparkSession, world: World, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("zk_group").option("zk", world.zk).option("group", "g").options(**options).load()


def test_batch_read_has_the_sealed_records_and_columns(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    frame = batch(spark, sealed, readers="3")
    assert frame.schema == read(spark, sealed, "g").schema
    rows = sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
    assert rows == [(n, offset, f"t-{n}-{offset}".encode()) for n in (0, 1) for offset in range(100)]
    assert frame.where("partition = 1 and offset >= 50").count() == 50
    assert batch(spark, sealed, includeHeaders="true").columns == [*frame.columns, "headers"]
    assert sealed.names(PATHS.queries) == []
    names = sorted(segments(sealed))
    some = batch(spark, sealed, startingSegments=names[1], endingSegments=names[2]).count()
    assert some == sum(segments(sealed)[name].rows for name in names[1:3])


def test_a_batch_read_before_anything_is_sealed_is_empty(spark: SparkSession, world: World) -> None:
    ensure(world.store, PATHS.skeleton)
    assert batch(spark, world).collect() == []


@pytest.mark.full("pools and queries in each situation")
def test_a_batch_read_with_segments_collected_after_its_plan_fails(spark: SparkSession, sealed: World) -> None:
    name, segment = next(iter(segments(sealed).items()))
    frame = batch(spark, sealed)
    assert frame.count() == 200
    frame.rdd  # noqa: B018  plans it
    Path(segment.segments_dir, segment.file).unlink()
    with pytest.raises(PySparkException, match=f"segment {name} .*may have been collected since"):
        frame.collect()


@pytest.mark.full("pools and queries in each situation")
@pytest.mark.parametrize("options", [{"startingSegments": "latest"}, {"startingSegments": "newest"}])
def test_batch_read_from_a_wrong_start_is_refused(spark: SparkSession, sealed: World, options: dict[str, str]) -> None:
    with pytest.raises(PySparkException, match="startingSegments"):
        batch(spark, sealed, **options).collect()


@pytest.mark.full("pools and queries in each situation")
def test_query_from_the_latest_segment_on_has_later_records(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    sink = Delivered()
    produce(world, tmp_path / "log", "t", 100)
    with pool(spark, world, "g", tmp_path, {"t": 1}, seal_interval_ms=10):
        eventually(lambda: sum(segment.rows for segment in segments(world).values()) == 200, 90, "sealed")
        stream = query(read(spark, world, "g", startingSegments="latest"), sink, tmp_path / "checkpoint")
        eventually(lambda: stream.lastProgress is not None, 60, "it has begun")
        produce(world, tmp_path / "log", "t", 30)
        eventually(lambda: sink.count >= 60, 90, "the later ones are delivered")
    stream.stop()
    assert {partition: sorted(offsets) for (_, partition), offsets in sink.offsets.items()} == {
        0: list(range(100, 130)),
        1: list(range(100, 130)),
    }
    again = Delivered()  # with a checkpoint, it continues there
    ended = query(
        read(spark, world, "g", startingSegments="earliest"), again, tmp_path / "checkpoint", availableNow=True
    )
    assert ended.awaitTermination(120)
    assert again.count <= 60


@pytest.mark.full("pools and queries in each situation")
def test_a_stream_without_an_end_takes_no_end(spark: SparkSession, sealed: World, tmp_path: Path) -> None:
    frame = read(spark, sealed, "g", endingSegments="segment-0000000001")
    stream = query(frame, Delivered(), tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(StreamingQueryException, match="endingSegments is for batch reads"):
        stream.awaitTermination(120)


# ---- the whole application


@pytest.mark.full("applications, as users run them")
def test_killed_application_continues_from_its_checkpoint_with_the_same_batches(world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    for life in range(1, 4):
        with application(world, "g", tmp_path, "--pool", "killed", "--topic", "t", "--query", "checkpoint") as driver:
            for _ in range(4):
                so_far = len(batches(tmp_path))
                produce(world, tmp_path / "log", "t", 500)
                eventually(lambda: len(batches(tmp_path)) > so_far, 120, f"life {life} delivers", pause_s=0.3)  # noqa: B023
            if life == 3:
                eventually(lambda: total(tmp_path) >= 4 * 6000, 60, "all records are delivered")
            assert driver.is_running
            assert len(world.names(GroupPaths("g").queries)) == 1
        eventually(lambda: world.names(GroupPaths("g").queries) == [], 30, "the dead driver's query is gone")
    delivered_exactly(tmp_path, 4, 6000)


@pytest.mark.parametrize("name", ["startingSegmnts", "subscribe"])
def test_unknown_option_is_refused_in_a_stream_and_a_batch(spark: SparkSession, name: str) -> None:
    register(spark)
    for reader in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match=f"the source has no option '(?i:{name})'"):
            reader.format("zk_group").options(zk="127.0.0.1:1/x", group="g", **{name: "t"}).load()


@pytest.mark.full("pools and queries in each situation")
def test_plain_reader_of_drills_agrees_with_spark(spark: SparkSession, world: World, tmp_path: Path) -> None:
    sealed = SealedGroup(world.store, tmp_path)
    for partition, values in ((0, [b"0", b"1", b"2"]), (1, [b"0", b"0", b"7"]), (2, [b"0", b"no number", b"2"])):
        sealed.name(numbered(sealed, partition, values))
    asked = {"zk": world.zk, "group": "g", "failOnDataLoss": "true"}
    spark_app.register(spark)

    plain = plain_reader.counted(asked)

    by_spark = spark_app.counted(spark.read.format("zk_group").options(**asked).load())
    assert sorted(plain, key=str) == sorted(by_spark, key=str)
    assert {each["partition"]: (each["distinct"], each["misplaced"]) for each in plain} == {
        0: (3, 0),
        1: (2, 2),
        2: (2, 1),
    }


def numbered(sealed: SealedGroup, partition: int, values: list[bytes]) -> Segment:
    """One more file, with these values and the topic's id as key."""
    (batch,) = record_batches(partition, 0, len(values))
    for name, column in (("key", [b"id"] * len(values)), ("value", values)):
        batch = batch.set_column(
            batch.schema.get_field_index(name), batch.schema.field(name), pa.array(column, pa.binary())
        )
    return sealed.written([batch], partition)

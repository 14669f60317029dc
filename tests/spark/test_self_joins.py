"""A stream that is joined with itself: Spark makes a reader for each side, of one name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from tests.support.spark import Delivered, pool, produce, read
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.zk.znodes.paths import GroupPaths

pytestmark = pytest.mark.timeout(400)
PATHS = GroupPaths("g")


def names(world: World, path: str) -> set[str]:
    listing = world.store.children(path)
    return set(listing.names) if listing else set()


def test_named_stream_is_joined_with_itself(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 1)
    sink = Delivered()

    def fails(batch: DataFrame, number: int) -> None:
        raise OSError("no sink")

    def run(to: Callable[[DataFrame, int], None] = sink) -> None:
        frame = read(spark, world, "g", query="q").withWatermark("timestamp", "1 hour")
        joined = frame.alias("a").join(frame.alias("b"), expr("a.offset = b.offset AND a.timestamp = b.timestamp"))
        writer = joined.select("a.*").writeStream.foreachBatch(to)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, seal_interval_ms=10):
        produce(world, tmp_path / "log", "t", 50)
        eventually(lambda: names(world, PATHS.segments), 90, "sealed")
        with pytest.raises(StreamingQueryException, match="no sink"):
            run(fails)
        sealed = names(world, PATHS.segments)
        produce(world, tmp_path / "log", "t", 50)
        eventually(lambda: names(world, PATHS.segments) - sealed, 90, "sealed")
    for _ in range(2):  # the first batch is planned once more, with its own end; then there is nothing to do
        run()
        assert sorted(sink.offsets["t", 0]) == list(range(100))
    assert names(world, PATHS.queries) == {"q", "q.reader-2"}

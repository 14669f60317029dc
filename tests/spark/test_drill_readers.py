"""The plain reader of drills, used without Spark, agrees with Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.drills.broken import plain_reader
from tests.support.sealed import SealedGroup, batches
from tests.support.world import World
from zk_group.coordinator.zk.znodes.segments import Segment
from zk_group.drills.workloads import spark_app

pytestmark = [pytest.mark.full("pools and queries in each situation"), pytest.mark.timeout(300)]


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
    (batch,) = batches(partition, 0, len(values))
    for name, column in (("key", [b"id"] * len(values)), ("value", values)):
        batch = batch.set_column(
            batch.schema.get_field_index(name), batch.schema.field(name), pa.array(column, pa.binary())
        )
    return sealed.written([batch], partition)

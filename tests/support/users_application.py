"""An application as a user writes it, in a folder with a `consumer.py` and a `coordinator.py` of the user's own.

`users_application.py MASTER ZK FOLDER ROWS` runs a pool and a query until so many rows are delivered, calls the user's
functions in executors, and writes what it found to `FOLDER/found.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import Row, SparkSession

import consumer
import coordinator
from zk_group.consumer.errors import UnknownMemberId
from zk_group.consumer.spark import FetcherPool, register
from zk_group.coordinator.zk.errors import IncarnationOver


def delivered(spark: SparkSession, zk: str, folder: Path, wanted: int) -> list[Row]:
    """The partitions and offsets that a query delivers while a pool fetches."""
    places = {"log_dir": str(folder / "log"), "segments_dir": str(folder / "segments")}
    with FetcherPool(spark, {"t": 1}, zk=zk, group="g", slots=1, session_timeout_ms=4000, **places):
        frame = spark.readStream.format("zk_group").option("zk", zk).option("group", "g").load()
        query = frame.writeStream.format("memory").queryName("delivered").start()
        rows = spark.table("delivered").select("partition", "offset")
        while rows.count() < wanted:
            query.awaitTermination(1)  # raises when the query fails
        query.stop()
        return rows.collect()


def in_executor(numbers: Iterator[int]) -> Iterator[dict[str, object]]:
    """What a task sees: the user's functions, and one class by each reference."""
    import zk_group.consumer.errors

    is_same = zk_group.consumer.errors.UnknownMemberId is UnknownMemberId and issubclass(
        UnknownMemberId, IncarnationOver
    )
    yield {
        "doubled": [coordinator.checked(consumer.doubled(number)) for number in numbers],
        "module": UnknownMemberId.__module__,
        "same": is_same,
    }


def main(master: str, zk: str, folder: Path, wanted: int) -> None:
    builder = SparkSession.builder.master(master).appName("user").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    for name in ("consumer.py", "coordinator.py"):
        spark.sparkContext.addPyFile(str(Path(__file__).with_name(name)))
    register(spark)
    rows = delivered(spark, zk, folder, wanted)
    batch = spark.read.format("zk_group").option("zk", zk).option("group", "g").load()
    found = {
        "rows": sorted(rows),
        "batch": batch.count(),
        "executors": spark.sparkContext.parallelize([1, 2, 3], 1).mapPartitions(in_executor).collect(),
    }
    spark.stop()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))

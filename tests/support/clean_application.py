"""An application as a user writes it, for `spark-submit` from an environment that has only the wheel.

`clean_application.py stream ZK FOLDER ROWS` runs a pool and a query until so many rows are delivered; `batch` in its
place reads the sealed records, without a pool. Either writes its rows and the package's location to
`FOLDER/[mode].json`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import zk_group
from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool

Rows = list[tuple[int, int]]


def stream(spark: SparkSession, zk: str, folder: Path, wanted: int) -> Rows:
    """The rows of a query while a pool fetches."""
    rows: Rows = []
    is_done = threading.Event()

    def take(frame: DataFrame, batch: int) -> None:
        rows.extend((row.partition, row.offset) for row in frame.collect())
        if len(rows) >= wanted:
            is_done.set()

    log, segments = str(folder / "log"), str(folder / "segments")
    with FetcherPool(
        spark, {"t": 1}, zk=zk, group="g", slots=1, session_timeout_ms=4000, log_dir=log, segments_dir=segments
    ):
        frame = spark.readStream.format("zk_group").option("zk", zk).option("group", "g").load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(processingTime="1 second").start()
        is_done.wait(600)
        query.stop()
    return rows


def main(mode: str, zk: str, folder: Path, wanted: int) -> None:
    spark = SparkSession.builder.appName("clean").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    if mode == "stream":
        rows = stream(spark, zk, folder, wanted)
    else:
        frame = spark.read.format("zk_group").option("zk", zk).option("group", "g").load()
        rows = [(row.partition, row.offset) for row in frame.collect()]
    spark.stop()
    found = {"package": zk_group.__file__, "rows": sorted(rows)}
    (folder / f"{mode}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))

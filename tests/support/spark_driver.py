"""A Spark application of its own process, for tests that kill it: a pool, a query, or both.

`python -m tests.support.spark_driver ZK GROUP FOLDER [--pool NAME --topic TOPIC] [--slots N] [--query NAME]` runs until
it is killed, or gets SIGTERM, which ends it cleanly: the query, the pool, Spark. Log, segments and checkpoint are in
`FOLDER`. Each batch is written to `FOLDER/batches/[batch]-[process].json`, whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.runtime import on_signals


def session(name: str, folder: Path) -> SparkSession:
    local = folder / f"local-{os.getpid()}"
    local.mkdir()
    spark = (
        SparkSession.builder.master("local[4]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(local))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={local}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def pool_of(spark: SparkSession, options: argparse.Namespace) -> FetcherPool:
    folder = Path(options.folder)
    (folder / "log").mkdir(exist_ok=True)
    return FetcherPool(
        spark,
        {options.topic: 1},
        zk=options.zk,
        group=options.group,
        pool=options.pool,
        slots=options.slots,
        session_timeout_ms=4000,
        log_dir=str(folder / "log"),
        segments_dir=str(folder / "segments"),
    )


def query_of(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    folder = Path(options.folder)
    (folder / "batches").mkdir(exist_ok=True)
    register(spark)

    def write(frame: DataFrame, batch: int) -> None:
        rows = [[r.topic, r.partition, r.offset] for r in frame.select("topic", "partition", "offset").collect()]
        target = folder / "batches" / f"{batch}-{os.getpid()}.json"
        target.with_suffix(".tmp").write_text(json.dumps(rows))
        target.with_suffix(".tmp").rename(target)

    stream = spark.readStream.format("zk_group").option("zk", options.zk).option("group", options.group).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / options.query))
    return writer.trigger(processingTime="500 milliseconds").start()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("zk", "group", "folder"):
        parser.add_argument(name)
    for name in ("--pool", "--topic", "--query"):
        parser.add_argument(name, default="")
    parser.add_argument("--slots", type=int, default=2)
    options = parser.parse_args()
    stopping = threading.Event()
    spark = session(options.pool or options.query, Path(options.folder))
    on_signals([signal.SIGTERM], lambda number: stopping.set())
    fetchers = pool_of(spark, options).start() if options.pool else None
    query = query_of(spark, options) if options.query else None
    while not stopping.wait(0.1) and (query is None or query.isActive):
        pass
    if query is not None:
        query.stop() if stopping.is_set() else query.awaitTermination()
    if fetchers is not None:
        fetchers.stop()
    spark.stop()


if __name__ == "__main__":
    main()

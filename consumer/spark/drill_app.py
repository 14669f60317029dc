"""The Spark application of a drill: a fetcher pool and a streaming query on two executors of its own.

`python -m consumer.spark.drill_app CONFIG` runs until SIGTERM, which ends query, pool and Spark in order. Each batch
goes to `batches/[batch].json` in its folder, under its number: a batch that comes again replaces it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coordinator.zk.fields import Fields
from coordinator.zk.runtime import on_signals

from ..drill.process import run, tell
from .drill_reader import SHORT_LIVED, counted
from .pool import FetcherPool
from .source import register

MASTER = "local-cluster[2,2,1024]"


def main(fields: Fields) -> None:
    """`folder`, `zk`, `group` and `query`; `pool` are the options of `FetcherPool`, none for a query alone."""
    ended = threading.Event()
    folder = Path(fields.text("folder"))
    spark = session(folder / f"spark-{os.getpid()}")
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: ended.set())  # Spark's own would end the JVM first
    options = dict(fields.mapping("pool"))
    pool = FetcherPool(spark, zk=fields.text("zk"), group=fields.text("group"), **options) if options else None
    if pool is not None:
        pool.start()
    name = fields.text("query", "")
    query = start_query(spark, fields, folder, name) if name else None
    tell("started", query=name)
    while not ended.wait(0.1) and (query is None or query.isActive):
        pass
    if query is not None:
        problem = query.exception()
        query.stop()
        tell("query ended", problem=str(problem).partition("\n")[0] if problem else None)
    if pool is not None:
        pool.stop()
    spark.stop()


def session(home: Path) -> SparkSession:
    """Two executors in processes of their own, whose workers write below `home`."""
    home.mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    os.environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    temporary = home / "tmp"
    temporary.mkdir()
    spark = (
        SparkSession.builder.master(MASTER)
        .appName("drill")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.driver.extraJavaOptions", f"{SHORT_LIVED} -Djava.io.tmpdir={temporary}")
        .config("spark.executor.extraJavaOptions", f"{SHORT_LIVED} -Djava.io.tmpdir={temporary}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(spark: SparkSession, fields: Fields, folder: Path, name: str) -> StreamingQuery:
    """The group's stream, each batch counted and written down."""
    register(spark)
    batches = folder / "batches"
    batches.mkdir(exist_ok=True)

    def write(frame: DataFrame, batch: int) -> None:
        temporary = batches / f"{batch}.tmp"
        temporary.write_text(json.dumps(counted(frame)))
        temporary.replace(batches / f"{batch}.json")

    stream = spark.readStream.format("zk_group").option("zk", fields.text("zk")).option("group", fields.text("group"))
    writer = stream.option("query", name).load().writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(folder / name)).trigger(processingTime="1 second").start()


if __name__ == "__main__":
    run(main)

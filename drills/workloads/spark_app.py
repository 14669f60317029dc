"""The Spark application of a drill: a fetcher pool and a streaming query on its own two executors.

It runs until SIGTERM, which ends query, pool and Spark in order. Each batch goes to `batches/[batch].json` in its
folder, named by its number: a replayed batch replaces it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from consumer.spark.fetchers.pool import FetcherPool
from consumer.spark.source.data_source import register
from coordinator.zk.runtime import on_signals
from coordinator.zk.znodes.json_fields import Fields

from .process import emit
from .spark_reader import SHORT_LIVED, counted, session

MASTER = "local-cluster[2,2,1024]"


def main(fields: Fields) -> None:
    """The fields are `folder`, `zk`, `group`, `query`, and `pool`: the options of `FetcherPool`, or none."""
    ended = threading.Event()
    folder = Path(fields.text("folder"))
    spark = on_executors(folder / f"spark-{os.getpid()}")
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: ended.set())  # Spark's handler would end the JVM first
    options = dict(fields.mapping("pool"))
    pool = FetcherPool(spark, zk=fields.text("zk"), group=fields.text("group"), **options) if options else None
    if pool is not None:
        pool.start()
    name = fields.text("query", "")
    query = start_query(spark, fields, folder, name) if name else None
    emit("started", query=name)
    while not ended.wait(0.1) and (query is None or query.isActive):
        pass
    if query is not None:
        problem = query.exception()
        query.stop()
        emit("query ended", problem=str(problem).partition("\n")[0] if problem else None)
    if pool is not None:
        pool.stop()
    spark.stop()


def on_executors(home: Path, java: str = SHORT_LIVED, options: Mapping[str, str] = {}) -> SparkSession:
    """Two executors of two cores in their own processes, whose workers write below `home`.

    :param java: flags of all JVMs.  :param options: further ones of the session.
    """
    home.mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    temporary = home / "tmp"
    temporary.mkdir()
    flags = f"{java} -Djava.io.tmpdir={temporary}".strip()
    own = {"spark.local.dir": str(home / "local"), "spark.executor.extraJavaOptions": flags}
    return session(MASTER, flags, {**own, **options})


def start_query(spark: SparkSession, fields: Fields, folder: Path, name: str) -> StreamingQuery:
    """The group's stream, with each batch counted and written to a file."""
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

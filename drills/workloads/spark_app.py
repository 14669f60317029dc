"""The Spark application of a drill: a fetcher pool and a streaming query on its own two executors.

It runs until SIGTERM, which ends query, pool and Spark in order. Each batch goes to `batches/[batch].json` in its
folder, named by its number: a replayed batch replaces it.

`python -m zk_group.drills.workloads.spark_app` is another process: `read`, without a log of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.consumer.streaming.source.data_source import register
from zk_group.coordinator.zk.embedded.ensemble import JVM_FLAGS
from zk_group.coordinator.zk.runtime import on_signals
from zk_group.coordinator.zk.znodes.json_fields import Fields

from .process import emit

MASTER = "local-cluster[2,2,1024]"
SHORT_LIVED = " ".join(JVM_FLAGS)
"""For short-lived JVMs, which do not benefit from full optimization."""


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


def read() -> None:
    """The numbered records of a drill (`zk_group.drills.workloads.producer`) in a group's DataFrame, as Spark reads it.

    It answers each line of options on stdin (JSON) with one line, so that one Spark serves many drills.
    """
    spark = session()
    register(spark)
    emit("ready")
    for line in sys.stdin:
        sealed = spark.read.format("zk_group").options(**json.loads(line))
        try:
            emit("read", partitions=counted(sealed.load()))
        except PySparkException as error:
            emit("failed", reason=reason_of(str(error)))
    spark.stop()


def reason_of(message: str) -> str:
    """The product's message in a Spark exception, without the exception's name and SQLSTATE; else its first line."""
    lines = [line for line in message.splitlines() if line and not line.startswith((" ", "JVM stacktrace"))]
    own = [line for line in lines if line.startswith("zk_group.")]
    return (own or lines or [""])[-1 if own else 0]


def session(master: str = "local[1]", java: str = SHORT_LIVED, options: Mapping[str, str] = {}) -> SparkSession:
    """A session without a UI, by default on one core; `java` are the flags of the driver's JVM."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": java, "spark.sql.shuffle.partitions": "1"}
    spark = SparkSession.builder.master(master).appName("drill").config(map={**own, **options}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def counted(frame: DataFrame) -> list[dict[str, Any]]:
    """For each partition of each topic id: `rows`, `distinct` numbers, their `least` and `most`, and the number of
    `misplaced` records: their number is not their offset."""
    number = F.col("value").cast("string").try_cast("long")
    rows = frame.select("topic", F.col("key").cast("string").alias("id"), "partition", "offset", number.alias("number"))
    counts = rows.groupBy("topic", "id", "partition").agg(
        F.count("*").alias("rows"),
        F.countDistinct("number").alias("distinct"),
        F.min("number").alias("least"),
        F.max("number").alias("most"),
        F.count(F.when(F.col("number").isNull() | (F.col("number") != F.col("offset")), 1)).alias("misplaced"),
    )
    return [row.asDict() for row in counts.collect()]


if __name__ == "__main__":
    read()

"""Spark's own Kafka source as a peer of `bench stream`: its connector, and one run over the whole topic.

A run is a streaming query from the earliest offsets into the `noop` sink with the trigger `availableNow`, in the same
Spark session as ours. The time is from the call of `start()` to the query's end, the CPU seconds are those of the
driver, the executors and their Python workers: as of ours.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from coordinator.zk.embedded.kafka import Artifact, cache_directory, fetched
from coordinator.zk.embedded.processes import class_path
from coordinator.zk.errors import MissingProgram

from .peers import PATIENCE_S, Took

SPARK = "spark"
MODULE = "spark-sql-kafka-0-10"
JARS = "ZK_GROUP_BENCH_SPARK_KAFKA_JARS"
"""A folder with the connector's jars; without it they are fetched once into the user's cache folder."""


def connector_jars() -> list[Path]:
    """The jars of the connector of PySpark's Scala and Spark, without those that PySpark has itself.

    :raises MissingProgram: when they cannot be had; the message says how to provide them.
    """
    sql = Path(class_path(("spark-sql_",)))
    scala, version = _versions(sql.name)
    given = os.environ.get(JARS, "")
    artifact = Artifact(f"{MODULE}_{scala} {version}", "org.apache.spark", f"{MODULE}_{scala}", version)
    try:
        folder = Path(given) if given else fetched(artifact, cache_directory() / f"{artifact.module}-{version}")
    except MissingProgram as error:
        raise MissingProgram(f"{error}, or name a folder that has them in {JARS}") from error
    if not list(folder.glob(f"{MODULE}_{scala}-*.jar")):
        raise MissingProgram(
            f"{JARS} names {folder}, which has no {MODULE}_{scala}-*.jar: put the connector's jars there"
        )
    own = {_module(jar.name) for jar in sql.parent.glob("*.jar")}
    return sorted(jar for jar in folder.glob("*.jar") if _module(jar.name) not in own)


def _versions(name: str) -> tuple[str, str]:
    """The versions of Scala and Spark, from the name of Spark's jar."""
    match = re.fullmatch(r"spark-sql_([\d.]+)-(.+)\.jar", name)
    if match is None:
        raise MissingProgram(f"PySpark's {name} does not tell its version: install pyspark>=4.2,<5")
    return match[1], match[2]


def _module(name: str) -> str:
    """A jar's name without its version."""
    return re.sub(r"-\d.*$", "", name)


def run_spark(
    spark: SparkSession, cpu_s: Callable[[], float], servers: str, topic: str, records: int, checkpoint: Path
) -> Took:
    """One run of Spark's source.

    :param cpu_s: the CPU seconds of the application so far.
    :raises RuntimeError: when it fails, or reads another number of records.
    """
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    sink = source.option("startingOffsets", "earliest").load().writeStream.format("noop").trigger(availableNow=True)
    sink = sink.option("checkpointLocation", str(checkpoint))
    cpu, began = cpu_s(), time.monotonic()
    query = sink.start()
    try:
        has_ended = query.awaitTermination(int(PATIENCE_S))
        took = Took(time.monotonic() - began, cpu_s() - cpu)
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        if not has_ended or rows != records:
            raise RuntimeError(f"Spark's Kafka source has read {rows} of {records} records: {query.exception()}")
        return took
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)

"""The numbered records of a drill (`drills.workloads.producer`) in a group's DataFrame, as Spark reads it.

A process, `python -m drills.workloads.spark_reader`: it answers each line of options on stdin (JSON) with one line, so
that one Spark serves many drills.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from consumer.spark.source.data_source import register
from coordinator.zk.embedded.ensemble import JVM_FLAGS

from .process import emit

SHORT_LIVED = " ".join(JVM_FLAGS)
"""For short-lived JVMs, which do not benefit from full optimization."""


def main() -> None:
    """Answer until stdin ends."""
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
    own = [line for line in lines if line.startswith(("consumer.", "coordinator."))]
    return (own or lines or [""])[-1 if own else 0]


def session(master: str = "local[1]", java: str = SHORT_LIVED, options: Mapping[str, str] = {}) -> SparkSession:
    """A session without a UI, by default on one core; `java` are the flags of the driver's JVM."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .appName("drill")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.sql.shuffle.partitions", "1")
        .config(map=dict(options))
        .getOrCreate()
    )
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
    main()

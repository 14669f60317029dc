"""What a group's DataFrame holds of the numbered records of a drill (`consumer.drill.producer`), as Spark reads it.

A process of its own, `python -m consumer.spark.drill_reader`: for each line of options, as JSON, that it reads
it answers with one line, so that one Spark serves many drills.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coordinator.zk.java import JVM_FLAGS

from .source import register

SHORT_LIVED = " ".join(JVM_FLAGS)
"""For JVMs that end before it would pay to compile well."""


def main() -> None:
    """Answer until standard input ends."""
    spark = session()
    register(spark)
    answer({"event": "ready"})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer({"event": "read", "partitions": counted(frame_of(spark, asked))})
        except PySparkException as error:
            answer({"event": "failed", "reason": reason_of(str(error))})
    spark.stop()


def reason_of(message: str) -> str:
    """What the product says in Spark's message, which ends with its exception and a SQLSTATE; else its first line."""
    lines = [line for line in message.splitlines() if line and not line.startswith((" ", "JVM stacktrace"))]
    own = [line for line in lines if line.startswith(("consumer.", "coordinator."))]
    return (own or lines or [""])[-1 if own else 0]


def session() -> SparkSession:
    """One core, nothing to look at."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .appName("drill")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def frame_of(spark: SparkSession, asked: dict[str, str]) -> DataFrame:
    """All that is sealed of a group; `asked` are the options of the source."""
    return spark.read.format("zk_group").options(**asked).load()


def counted(frame: DataFrame) -> list[dict[str, Any]]:
    """For each partition of each topic id: `rows`, `distinct` numbers, `least` and `most` of them, and how many are
    `misplaced`: their number is not their offset."""
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


def answer(values: dict[str, Any]) -> None:
    """One line to whoever asked."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()

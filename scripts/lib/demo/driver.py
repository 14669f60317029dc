"""The demo's Spark application: a fetcher pool and a streaming query, in its own process.

Usage: python -m demo.driver CONFIG.json. It prints one JSON line for each event. A line `resize N` on its standard
input resizes the pool; any other line, or the end of the input, stops the application.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.drills.workloads.spark_app import on_executors

STARTS = 5
LOOK_S = 0.5
TOO_LATE = "failed to connect back"

SCHEMA = "row long, carrier string, origin string, dest string, dep_delay double, arr_delay double"


def emit(event: str, **values: Any) -> None:
    """Print one event as a JSON line."""
    print(json.dumps({"event": event, "time": time.time(), **values}), flush=True)


def main() -> None:
    """Run until the end is requested on standard input."""
    config = json.loads(Path(sys.argv[1]).read_text())
    spark = session(Path(config["folder"]))
    emit("spark", application=spark.sparkContext.applicationId)
    register(spark)
    pool = FetcherPool(
        spark,
        zk=config["zk"],
        group=config["group"],
        topics={config["topic"]: 1},
        slots=config["slots"],
        log_dir=config["log_dir"],
        segments_dir=config["segments_dir"],
        session_timeout_ms=config["session_timeout_ms"],
    )
    pool.start()
    emit("pool", slots=config["slots"])
    stopping = threading.Event()
    threading.Thread(target=obey, args=(pool, stopping), name="requests", daemon=True).start()
    query = run_query(spark, config, stopping)
    query.stop()
    emit("stopped", query="ok" if query.exception() is None else str(query.exception()))
    pool.stop()
    emit("released")
    spark.stop()


def obey(pool: FetcherPool, stopping: threading.Event) -> None:
    """Process the requests on standard input; sets `stopping` at the last one."""
    for line in sys.stdin:
        verb, _, slots = line.strip().partition(" ")
        if verb != "resize":
            break
        pool.resize(int(slots))
        emit("resized", slots=int(slots))
    stopping.set()


def run_query(spark: SparkSession, config: dict[str, Any], stopping: threading.Event) -> StreamingQuery:
    """The query, until `stopping` is set, or it fails, which is an event.

    Spark waits 10 s for a new Python process. If that is too short, the query has not started, and is
    restarted.
    """
    for tries_left in reversed(range(STARTS)):
        query = start_query(spark, config)
        emit("query", id=query.id)
        while query.isActive and not stopping.wait(LOOK_S):
            pass
        if stopping.is_set():
            break
        reason = str(query.exception())
        is_late = TOO_LATE in reason and tries_left > 0
        emit("again" if is_late else "failed", reason=reason[:1000])
        if not is_late:
            stopping.wait()
            break
    return query


def session(folder: Path) -> SparkSession:
    """Spark with two executors of two cores, in their own processes."""
    options = {
        "spark.app.name": "flights",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = on_executors(folder / "spark-home", options=options)
    spark.sparkContext.setLogLevel("WARN")
    return spark


def start_query(spark: SparkSession, config: dict[str, Any]) -> StreamingQuery:
    """Flights and mean delay per carrier. A batch's result is written under its number: a replay replaces it."""
    results = Path(config["results"])
    source = (
        spark.readStream.format("zk_group")
        .option("zk", config["zk"])
        .option("group", config["group"])
        .option("query", "carriers")
        .load()
    )

    def each(batch: DataFrame, number: int) -> None:
        flights = batch.select("partition", "offset", F.from_json(F.col("value").cast("string"), SCHEMA).alias("f"))
        flights = flights.select("partition", "offset", "f.*").persist()
        seen = flights.select("partition", "offset", "row").toArrow()
        carriers = flights.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.count("arr_delay").alias("delayed"), F.sum("arr_delay").alias("delay_sum")
        )
        write(results / f"seen-{number:06d}.parquet", seen)
        write(results / f"carriers-{number:06d}.parquet", carriers.toArrow())
        flights.unpersist()
        emit("batch", number=number, rows=seen.num_rows)

    return (
        source.writeStream.foreachBatch(each)
        .option("checkpointLocation", config["checkpoint"])
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def write(path: Path, table: pa.Table) -> None:
    """Write `table` atomically."""
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main()

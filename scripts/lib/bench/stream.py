"""`bench stream`: from the embedded log to a DataFrame, through fetcher slots and sealed segments on real executors.

A round takes a new group over the whole log: from the start of the pool and of the query to the last record that Spark
has processed (`noop` sink). CPU seconds are those of the driver, the executors and their Python workers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from demo.processes import descendants, spark_home
from pyspark.sql import SparkSession

from consumer.logs.append import Appender
from consumer.logs.columns import STORED_SCHEMA
from consumer.spark import FetcherPool, register
from coordinator.topics import create_topic
from coordinator.zk.ensemble import Ensemble, EnsembleConfig
from coordinator.zk.kazoo_store import open_kazoo
from coordinator.zk.paths import Brokers

from .figures import cpu_seconds, machine, summary
from .group import Process

TOPIC = "load"
PARTITIONS = 8
FILE_BYTES = 8 << 20
PATIENCE_S = 600.0


def write_log(log_dir: Path, topic_id: str, records: int, record_bytes: int) -> int:
    """Fill the topic with records of random bytes; how many there are."""
    rows = max(1, FILE_BYTES // record_bytes)
    written = 0
    noise = np.random.default_rng(1)
    appenders = [Appender(log_dir, TOPIC, topic_id, number) for number in range(PARTITIONS)]
    while written < records:
        some = min(rows, records - written)
        data = pa.py_buffer(noise.bytes(some * record_bytes))
        offsets = pa.py_buffer(np.arange(0, (some + 1) * record_bytes, record_bytes, dtype=np.int32).tobytes())
        values = pa.Array.from_buffers(pa.binary(), some, [None, offsets, data])
        columns = [values if field.name == "value" else _column(field, some) for field in STORED_SCHEMA]
        appenders[written // rows % PARTITIONS].append([pa.record_batch(columns, schema=STORED_SCHEMA)])
        written += some
    return written


def _column(field: pa.Field, rows: int) -> pa.Array:
    if field.name == "timestamp":
        return pa.array(np.full(rows, time.time_ns() // 1000), pa.int64()).cast(field.type)
    if pa.types.is_integer(field.type):
        return pa.array(np.zeros(rows, np.int64)).cast(field.type)
    return pa.nulls(rows, field.type)


class Round:
    """One round: a group of its own."""

    def __init__(self, spark: SparkSession, zk: str, folder: Path, number: int, slots: int) -> None:
        self._spark = spark
        self._zk = zk
        self._folder = folder
        self._name = f"bench-{number}"
        self._slots = slots

    def run(self, records: int) -> tuple[float, float]:
        """Seconds, and CPU seconds."""
        segments, checkpoint = self._folder / "segments" / self._name, self._folder / "checkpoints" / self._name
        cpu, began = tree_cpu(), time.monotonic()
        pool = FetcherPool(
            self._spark,
            zk=self._zk,
            group=self._name,
            topics=[TOPIC],
            slots=self._slots,
            log_dir=str(self._folder / "log"),
            segments_dir=str(segments),
            pool=self._name,
        ).start()
        source = self._spark.readStream.format("zk_group").option("zk", self._zk).option("group", self._name)
        query = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            self._wait(query, records)
            took = time.monotonic() - began, tree_cpu() - cpu
        finally:
            query.stop()
            pool.stop()
            for made in (segments, checkpoint):
                shutil.rmtree(made, ignore_errors=True)
        return took

    def _wait(self, query: Any, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # `recentProgress` keeps a hundred batches, far more than a round has.
            done = sum(progress["numInputRows"] for progress in query.recentProgress)
            if done >= records:
                break
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"the query has seen {done} of {records} records: {query.exception()}")
            time.sleep(0.05)
        if done > records:
            raise RuntimeError(f"the query has seen {done} records, and there are {records}")


def tree_cpu() -> float:
    """CPU seconds of this process and of everything below it."""
    total = 0.0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        try:
            total += cpu_seconds(pid)
        except OSError:
            continue  # it has ended: its parent has its time
    return total


def session(folder: Path) -> SparkSession:
    """Spark with two executors of two cores, in processes of their own."""
    os.environ |= {"SPARK_HOME": str(spark_home(folder)), "PYSPARK_PYTHON": sys.executable}
    spark = (
        SparkSession.builder.master("local-cluster[2,2,1024]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder / "spark-local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def measure(
    folder: Path, records: int, record_bytes: int, slots: int, rounds: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure, and return one object for `--json`."""
    loaded = machine()
    per_s, per_cpu_s = [], []
    with Ensemble(folder / "zookeeper", EnsembleConfig(servers=1)) as ensemble:
        store = open_kazoo(ensemble.hosts, 10_000)
        topic = create_topic(store, Brokers(), TOPIC, PARTITIONS)
        write_log(folder / "log", topic.id, records, record_bytes)
        node = Process(folder, "node", "coordinator.cli", "run", "--zk", ensemble.hosts, "--node", "node")
        spark = session(folder)
        try:
            for number in range(rounds + 1):
                seconds, cpu_s = Round(spark, ensemble.hosts, folder, number, slots).run(records)
                if number:
                    per_s.append(records / seconds)
                    per_cpu_s.append(records / cpu_s)
                tell(f"round {number}{' (warms up)' if number == 0 else ''}: {records / seconds:,.0f} records/s")
        finally:
            spark.stop()
            node.end()
            store.close()
    return {
        "bench": "stream",
        "records": records,
        "record_bytes": record_bytes,
        "slots": slots,
        "rounds": rounds,
        "records_per_s": summary(per_s, 0),
        "records_per_cpu_s": summary(per_cpu_s, 0),
        **loaded,
    }

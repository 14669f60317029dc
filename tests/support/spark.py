"""Helpers of tests with real Spark executors: the session, data, and a query's delivered records."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.world import World
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.embedded.ensemble import command_line, descendants

SESSION_MS = 4000
EXECUTOR = "CoarseGrainedExecutorBackend"
PYTHON = "pyspark.daemon"


def spark_home(folder: Path) -> Path:
    """A home for Spark in `folder`, so that workers write there and not into the installed package."""
    installed = Path(pyspark.__file__).parent
    for entry in installed.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def produce(world: World, log_dir: Path, topic: str, records: int, size: int = 20) -> None:
    """Add `records` records to each partition of a topic."""
    with Producer.for_store(world.store, log_dir, world.brokers) as producer:
        for partition in producer.topic(topic).partitions:
            values = [f"{topic}-{partition}-{number}".encode().ljust(size, b".") for number in range(records)]
            producer.send_batch(topic, partition, values)


class ContinuousRecords:
    """Records that are added to each partition of topic `t` all the time, until `stop`.

    :ivar count: so many in each partition.
    """

    def __init__(self, world: World, log_dir: Path) -> None:
        self.count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(world, log_dir), daemon=True)
        self._thread.start()

    @classmethod
    @contextmanager
    def produced(cls, world: World, log_dir: Path) -> Iterator[ContinuousRecords]:
        """Stopped at the end."""
        records = cls(world, log_dir)
        try:
            yield records
        finally:
            records.stop()

    def _run(self, world: World, log_dir: Path) -> None:
        while not self._stopping.wait(0.1):
            produce(world, log_dir, "t", 20)
            self.count += 20

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)


class Delivered:
    """Collects (batch, topic, partition, offset) in foreachBatch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches: dict[int, list[tuple[str, int, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("topic", "partition", "offset").collect()
        with self._lock:
            self.batches[batch] = [(row.topic, row.partition, row.offset) for row in rows]

    @property
    def offsets(self) -> dict[tuple[str, int], list[int]]:
        """Everything delivered, per partition in the order of its delivery."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        with self._lock:
            for _, rows in sorted(self.batches.items()):
                for topic, partition, offset in rows:
                    found[topic, partition].append(offset)
        return dict(found)

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.offsets.values())

    def has_exactly(self, topic: str, partitions: int, records: int) -> bool:
        """Whether each partition's records were delivered, each once, in order."""
        found = self.offsets
        return all(found.get((topic, number)) == list(range(records)) for number in range(partitions))


def pool(
    spark: SparkSession, world: World, group: str, folder: Path, topics: dict[str, int], **options: Any
) -> FetcherPool:
    """A pool on the folders `log` and `segments` in `folder`; records may be produced later."""
    (folder / "log").mkdir(exist_ok=True)
    places = {"log_dir": str(folder / "log"), "segments_dir": str(folder / "segments")}
    options = {"zk": world.zk, "slots": 2, "session_timeout_ms": SESSION_MS, "pool": "p", **places, **options}
    return FetcherPool(spark, topics, group=group, **options)


def read(spark: SparkSession, world: World, group: str, **options: Any) -> DataFrame:
    """The group's stream."""
    register(spark)
    reader = spark.readStream.format("zk_group").option("zk", world.zk).option("group", group)
    return reader.option("sessionTimeoutMs", str(SESSION_MS)).options(**options).load()


def query(frame: DataFrame, sink: Delivered, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """Start a query that gives its batches to `sink`."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "300 milliseconds"})).start()


def executors(root: int) -> list[int]:
    """The executor JVMs below a process."""
    return [pid for pid in descendants(root) if EXECUTOR in command_line(pid)]


def slots(root: int, zk_port: int) -> list[int]:
    """The Python workers below a process that talk to ZooKeeper: those that run fetcher slots."""
    return [pid for pid in descendants(root) if PYTHON in command_line(pid) and zk_port in _remote_ports(pid)]


def _remote_ports(pid: int) -> set[int]:
    """The ports that a process is connected to."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return set()
    return {each.raddr.port for each in connections if each.raddr}

"""The environment of `bench stream` and `bench latency`: one ZooKeeper server, a coordinator node, Spark with two
executors, and a topic in the embedded log or in a real Kafka broker."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from common import start_node
from confluent_kafka import Producer as KafkaClient
from pyspark.sql import SparkSession

from zk_group.consumer.logs.embedded.log import STORED_SCHEMA
from zk_group.consumer.logs.embedded.producer import Appender
from zk_group.consumer.spark import register
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, descendants
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig
from zk_group.coordinator.zk.embedded.kafka_client import TrialKafka
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.drills.base.processes import end_all
from zk_group.drills.workloads.spark_app import on_executors

from .figures import cpu_seconds

TOPIC = "load"
SMALL_TOPIC = "little"
PARTITIONS = 8
FILE_BYTES = 8 << 20
EMBEDDED, KAFKA = "embedded", "kafka"

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""As docs/deploy.md advises for checkpoints in a local folder: Spark's default starts some twenty processes a batch."""


class Ground:
    """Servers, and topics `load` and `little`. The context manager stops all of them.

    :param source: the group's log: `embedded` or `kafka`.
    :param partitions: of each topic.
    :param with_broker: start a broker with the topic also when the group reads the embedded log.
    :ivar zk: the chroot of the group; with `kafka` the broker's.
    :ivar servers: the broker's address, empty without a broker.
    """

    def __init__(self, folder: Path, source: str, with_broker: bool = False, partitions: int = PARTITIONS) -> None:
        self._partitions = partitions
        self._folder = folder
        self._source = source
        self._has_broker = with_broker or source == KAFKA
        self.servers = ""
        self.log_dir = "kafka:" if source == KAFKA else str(folder / "log")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            hosts = stack.enter_context(Ensemble(self._folder / "zookeeper", EnsembleConfig(servers=1))).hosts
            kafka_zk = f"{hosts}/kafka"
            self.zk = kafka_zk if self._source == KAFKA else hosts
            if self._has_broker:
                # The heap size of Kafka's own scripts.
                config = KafkaConfig(zookeeper=kafka_zk, heap_mb=1024)
                self.servers = stack.enter_context(Broker(self._folder / "kafka", config)).address
                for name in (TOPIC, SMALL_TOPIC):
                    TrialKafka(self.servers).make_topic(name, self._partitions)
            if self._source == EMBEDDED:
                with closing(open_kazoo(self.zk, 10_000)) as store:
                    made = [create_topic(store, Brokers(), name, self._partitions) for name in (TOPIC, SMALL_TOPIC)]
                self._ids = {TOPIC: made[0].id, SMALL_TOPIC: made[1].id}
            stack.callback(end_all, [start_node(self._folder, "node", self.zk)])
            self._others = set(descendants(os.getpid()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def fill(self, records: int, record_bytes: int, topic: str = TOPIC) -> None:
        """Write the records to the group's log."""
        if self._source == EMBEDDED:
            fill_embedded(Path(self.log_dir), topic, self._ids[topic], self._partitions, records, record_bytes)
        if self._has_broker:
            fill_kafka(self.servers, topic, self._partitions, records, record_bytes)

    def cpu_s(self) -> float:
        """CPU seconds of this process and its descendants, without the servers and the coordinator node."""
        total = 0.0
        for pid in {os.getpid(), *descendants(os.getpid())} - self._others:
            try:
                total += cpu_seconds(pid)
            except OSError:
                continue  # it has ended: its time is counted by its parent
        return total


def fill_embedded(
    log_dir: Path,
    topic: str,
    topic_id: str,
    partitions: int,
    records: int,
    record_bytes: int,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Fill the topic with records of random bytes, in chunks of bytes per partition."""
    rows = max(1, file_bytes // record_bytes)
    written = 0
    noise = np.random.default_rng(1)
    appenders = [Appender(log_dir, topic, topic_id, number) for number in range(partitions)]
    while written < records:
        some = min(rows, records - written)
        data = pa.py_buffer(noise.bytes(some * record_bytes))
        offsets = pa.py_buffer(np.arange(0, (some + 1) * record_bytes, record_bytes, dtype=np.int32).tobytes())
        values = pa.Array.from_buffers(pa.binary(), some, [None, offsets, data])
        columns = [values if field.name == "value" else _column(field, some) for field in STORED_SCHEMA]
        appenders[written // rows % partitions].append([pa.record_batch(columns, schema=STORED_SCHEMA)])
        written += some


def _column(field: pa.Field, rows: int) -> pa.Array:
    if field.name == "timestamp":
        return pa.array(np.full(rows, time.time_ns() // 1000), pa.int64()).cast(field.type)
    if pa.types.is_integer(field.type):
        return pa.array(np.zeros(rows, np.int64)).cast(field.type)
    return pa.nulls(rows, field.type)


def fill_kafka(servers: str, topic: str, partitions: int, records: int, record_bytes: int) -> None:
    """The same in Kafka, uncompressed, in batches like those of a producer under load.

    :raises RuntimeError: when the broker does not acknowledge them.
    """
    options = {"bootstrap.servers": servers, "log_level": 0, "linger.ms": 20, "batch.size": 1 << 18}
    producer = KafkaClient({**options, "queue.buffering.max.messages": 200_000})
    data = np.random.default_rng(1).bytes((1 << 20) + record_bytes)
    for number in range(records):
        first = number * 997 % (1 << 20)
        while True:
            try:
                producer.produce(topic, data[first : first + record_bytes], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if left := producer.flush(60):
        raise RuntimeError(f"the broker has not acknowledged {left} records")


def session(folder: Path, jars: Sequence[Path] = ()) -> SparkSession:
    """Spark with two executors of two cores, in their own processes.

    :param jars: further jars of driver and executors.
    """
    options = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "200",  # Spark's own; a drill's session has one
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    }
    spark = on_executors(folder / "spark-home", "", options)
    register(spark)
    return spark

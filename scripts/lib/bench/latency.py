"""`bench latency`: from a record's write to its row in the sink, with default settings.

A producer writes at a constant rate; each record contains its timestamp. The sink (`foreachBatch`) collects its rows'
timestamps to the driver, and then reads the clock: the collection is part of the latency.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer as KafkaClient
from pyspark.sql import DataFrame

from consumer.logs.embedded.producer import Producer
from consumer.spark import FetcherPool
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.znodes.paths import Brokers

from .figures import machine
from .ground import EMBEDDED, PARTITIONS, TOPIC, Ground, session

GROUP = "bench"
TICK_S = 0.01
"""Records of this period are written together. Their timestamps are their scheduled times."""

PATIENCE_S = 120.0


class Sink:
    """The latency of each row in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took: list[np.ndarray[Any, Any]] = []
        self._rows = 0

    def __call__(self, frame: DataFrame, batch: int) -> None:
        written = [int(row[0]) for row in frame.selectExpr("substring(value, 1, 20)").collect()]
        now = time.time_ns()
        with self._lock:
            self._rows += len(written)
            self._took.append((now - np.array(written, np.int64)) / 1e9)

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        with self._lock:
            return self._rows

    def reset(self) -> None:
        """Discard the latencies, but not the number of rows."""
        with self._lock:
            self._took.clear()

    @property
    def took_s(self) -> np.ndarray[Any, Any]:
        """Of all rows since the last reset."""
        with self._lock:
            return np.concatenate([np.empty(0), *self._took])


class Load:
    """Writes `rate` records a second, evenly over time and partitions."""

    def __init__(self, ground: Ground, source: str, rate: int, record_bytes: int) -> None:
        self._ground = ground
        self._source = source
        self._rate = rate
        self._bytes = record_bytes
        self.written = 0

    def run(self, seconds: float) -> None:
        """Write for this duration."""
        began, first = time.monotonic(), self.written
        offset_ns = time.time_ns() - time.monotonic_ns()
        with self._writer() as write:
            while (passed := time.monotonic() - began) < seconds:
                due = first + int(passed * self._rate)
                for number in range(self.written, due):
                    at_ns = offset_ns + int((began + (number - first) / self._rate) * 1e9)
                    write(number % PARTITIONS, f"{at_ns:020d}".encode().ljust(self._bytes, b"."))
                self.written = due
                write.flush()
                time.sleep(TICK_S)

    def _writer(self) -> _Writer:
        return _ToFiles(self._ground) if self._source == EMBEDDED else _ToKafka(self._ground)


class _Writer:
    def __call__(self, partition: int, value: bytes) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ToKafka(_Writer):
    """A producer with librdkafka's defaults."""

    def __init__(self, ground: Ground) -> None:
        self._client = KafkaClient({"bootstrap.servers": ground.servers, "log_level": 0})

    def __call__(self, partition: int, value: bytes) -> None:
        self._client.produce(TOPIC, value, partition=partition)

    def flush(self) -> None:
        self._client.poll(0)

    def close(self) -> None:
        self._client.flush(30)


class _ToFiles(_Writer):
    """A producer of the embedded log."""

    def __init__(self, ground: Ground) -> None:
        self._store = open_kazoo(ground.zk, 10_000)
        self._producer = Producer.for_store(self._store, ground.log_dir, Brokers())
        self._values: dict[int, list[bytes]] = {}

    def __call__(self, partition: int, value: bytes) -> None:
        self._values.setdefault(partition, []).append(value)

    def flush(self) -> None:
        for partition, values in self._values.items():
            self._producer.send_batch(TOPIC, partition, values)
        self._values.clear()
        self._producer.flush()

    def close(self) -> None:
        self.flush()
        self._store.close()


def measure(
    folder: Path,
    source: str,
    rate: int,
    record_bytes: int,
    warm_up_s: float,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, and return one object for `--json`.

    :raises RuntimeError: when records are missing in the sink.
    """
    loaded = machine()
    sink = Sink()
    with Ground(folder, source) as ground:
        load = Load(ground, source, rate, record_bytes)
        spark = session(folder)
        try:
            places = {"log_dir": ground.log_dir, "segments_dir": str(folder / "segments")}
            with FetcherPool(spark, [TOPIC], zk=ground.zk, group=GROUP, slots=2, **places):
                stream = spark.readStream.format("zk_group").option("zk", ground.zk).option("group", GROUP).load()
                writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
                query = writer.start()
                load.run(warm_up_s)
                _wait(query, sink, load)
                sink.reset()
                tell(f"{load.written:,} warm-up records delivered")
                load.run(seconds)
                _wait(query, sink, load)
                query.stop()
        finally:
            spark.stop()
    took = sink.took_s
    p50, p99, worst = (round(float(value), 3) for value in (*np.percentile(took, (50, 99)), took.max()))
    return {
        "bench": "latency",
        "source": source,
        "rate": rate,
        "record_bytes": record_bytes,
        "records": len(took),
        "latency_s": {"p50": p50, "p99": p99, "max": worst},
        **loaded,
    }


def _wait(query: Any, sink: Sink, load: Load) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sink.rows < load.written:
        if not query.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the sink has {sink.rows} of {load.written} records: {query.exception()}")
        time.sleep(0.05)

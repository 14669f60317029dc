"""`bench latency`: from a record's write to its row in the sink, with default settings.

A producer writes at a constant rate; each record contains its timestamp. The sink (`foreachBatch`) collects its rows'
timestamps to the driver, and then reads the clock: the collection is part of the latency. `stages.py` divides it.
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
from consumer.spark.fetchers.pool import FetcherPool
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.znodes.paths import Brokers

from .figures import machine
from .ground import EMBEDDED, PARTITIONS, TOPIC, Ground, session
from .stages import Numbers, Span, Times, batches_of, fetch_spans, seal_spans, stages, table, times_of

GROUP = "bench"
TICK_S = 0.01
"""Records of this period are written together, and to one partition, as by Kafka's default partitioner. Their
timestamps are their scheduled times."""

PATIENCE_S = 120.0


class Sink:
    """The rows' scheduled times, with the batch and the time of their arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: list[tuple[int, float, Times]] = []
        self._rows = 0

    def __call__(self, frame: DataFrame, batch: int) -> None:
        written = [int(row[0]) for row in frame.selectExpr("substring(value, 1, 20)").collect()]
        now = time.time_ns()
        with self._lock:
            self._rows += len(written)
            self._batches.append((batch, now / 1e9, np.array(written, np.int64) / 1e9))

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        with self._lock:
            return self._rows

    def arrivals(self, scheduled: Times) -> tuple[Times, Times]:
        """The batch and the time of arrival of each record."""
        batches, arrived = np.full(len(scheduled), np.nan), np.full(len(scheduled), np.nan)
        with self._lock:
            for batch, at_s, written in self._batches:
                numbers = np.searchsorted(scheduled, written)
                batches[numbers], arrived[numbers] = batch, at_s
        return batches, arrived


class Load:
    """Writes `rate` records a second, evenly over time, and over partitions in turns."""

    def __init__(self, ground: Ground, source: str, rate: int, record_bytes: int) -> None:
        self._ground = ground
        self._source = source
        self._rate = rate
        self._bytes = record_bytes
        self.written = 0
        self._run = max(1, int(rate * TICK_S))
        self._scheduled_ns: list[int] = []
        self._appended: list[float] = []

    @property
    def scheduled(self) -> Times:
        """The scheduled time of each record."""
        return np.array(self._scheduled_ns, np.int64) / 1e9

    def partition(self, number: int) -> int:
        """The partition of a record."""
        return number // self._run % PARTITIONS

    @property
    def partitions(self) -> Numbers:
        """The partition of each record."""
        return np.array([self.partition(number) for number in range(self.written)], np.int64)

    @property
    def appended(self) -> Times:
        """When each was written, as far as the producer knows."""
        return np.array([*self._appended, *[np.nan] * (self.written - len(self._appended))])

    def run(self, seconds: float) -> None:
        """Write for this duration."""
        began, first = time.monotonic(), self.written
        offset_ns = time.time_ns() - time.monotonic_ns()
        with self._writer() as write:
            while (passed := time.monotonic() - began) < seconds:
                due = first + int(passed * self._rate)
                for number in range(self.written, due):
                    at_ns = offset_ns + int((began + (number - first) / self._rate) * 1e9)
                    self._scheduled_ns.append(at_ns)
                    write(self.partition(number), f"{at_ns:020d}".encode().ljust(self._bytes, b"."))
                self.written = due
                self._note(first + write.flush())
                time.sleep(TICK_S)
        self._note(self.written)

    def _note(self, appended: int) -> None:
        """So many records are written by now."""
        self._appended += [time.time()] * (appended - len(self._appended))

    def _writer(self) -> _Writer:
        return _ToFiles(self._ground) if self._source == EMBEDDED else _ToKafka(self._ground)


class _Writer:
    def __call__(self, partition: int, value: bytes) -> None: ...

    def flush(self) -> int:
        """Write; the number of records that are written so far."""
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ToKafka(_Writer):
    """A producer with librdkafka's defaults."""

    def __init__(self, ground: Ground) -> None:
        self._client = KafkaClient({"bootstrap.servers": ground.servers, "log_level": 0})
        self._given = 0

    def __call__(self, partition: int, value: bytes) -> None:
        self._client.produce(TOPIC, value, partition=partition)
        self._given += 1

    def flush(self) -> int:
        self._client.poll(0)
        return self._given - len(self._client)

    def close(self) -> None:
        self._client.flush(30)


class _ToFiles(_Writer):
    """A producer of the embedded log."""

    def __init__(self, ground: Ground) -> None:
        self._store = open_kazoo(ground.zk, 10_000)
        self._producer = Producer.for_store(self._store, ground.log_dir, Brokers())
        self._values: dict[int, list[bytes]] = {}
        self._given = 0

    def __call__(self, partition: int, value: bytes) -> None:
        self._values.setdefault(partition, []).append(value)
        self._given += 1

    def flush(self) -> int:
        for partition, values in self._values.items():
            self._producer.send_batch(TOPIC, partition, values)
        self._values.clear()
        self._producer.flush()
        return self._given

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
            history = folder / "history"
            places = {"log_dir": ground.log_dir, "segments_dir": str(folder / "segments"), "history_dir": str(history)}
            with FetcherPool(spark, [TOPIC], zk=ground.zk, group=GROUP, slots=2, **places):
                stream = spark.readStream.format("zk_group").option("zk", ground.zk).option("group", GROUP).load()
                writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
                query = writer.start()
                load.run(warm_up_s)
                _wait(query, sink, load)
                warm = load.written
                tell(f"{warm:,} warm-up records delivered")
                load.run(seconds)
                _wait(query, sink, load)
                query.processAllAvailable()  # the progress of the last batch comes after its rows
                batches = batches_of(query.recentProgress)
                query.stop()
            spans = [fetch_spans(history, time.time() - time.monotonic()), _sealed(ground)]
        finally:
            spark.stop()
    scheduled = load.scheduled
    batch_of, arrived = sink.arrivals(scheduled)
    fetched, sealed = (times_of(each, load.partitions) for each in spans)
    took = (arrived - scheduled)[warm:]
    found = stages(scheduled, load.appended, fetched, sealed, batches, batch_of)[:, warm:]
    known = ~np.isnan(found.sum(axis=0))
    return {
        "bench": "latency",
        "source": source,
        "rate": rate,
        "record_bytes": record_bytes,
        "records": len(took),
        "latency_s": _percentiles(took),
        "since_append_s": _percentiles((took - found[0])[known]),
        "stages_s": table(found[:, known], took[known]),
        "records_in_stages": int(known.sum()),
        **loaded,
    }


def _percentiles(values: Times) -> dict[str, float]:
    named = {"p50": np.percentile(values, 50), "p99": np.percentile(values, 99), "max": values.max()}
    return {name: round(float(value), 3) for name, value in named.items()}


def _sealed(ground: Ground) -> list[Span]:
    store = open_kazoo(ground.zk, 10_000)
    try:
        return seal_spans(store, GROUP)
    finally:
        store.close()


def _wait(query: Any, sink: Sink, load: Load) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sink.rows < load.written:
        if not query.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the sink has {sink.rows} of {load.written} records: {query.exception()}")
        time.sleep(0.05)

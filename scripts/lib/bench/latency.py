"""`bench latency`: from a record's write to its row in the sink, with default settings.

A producer writes at a constant rate; each record contains its timestamp. The sink (`foreachBatch`) collects its rows'
timestamps to the driver, and then reads the clock: the collection is part of the latency.
It is divided into the stages of each record:

| stage | from | to |
|---|---|---|
| append | the record's scheduled time | the producer has written it (Kafka: the broker has acknowledged it) |
| fetch | | a slot has fetched it (event `fetch` of the slot's history) |
| seal | | its segment's znode exists (`ctime`) |
| trigger | | the batch that reads it begins (`timestamp` of the query's progress) |
| plan | | the batch's job begins (`latestOffset`, `walCommit`, `getBatch`, `queryPlanning` of the progress) |
| read | | its row is in the sink |

A record sealed after the begin of its batch did not wait for a trigger, and its plan is shorter.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer as KafkaClient
from pyspark.sql import DataFrame

from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.segments import Segment

from .figures import machine
from .ground import EMBEDDED, PARTITIONS, TOPIC, Ground, session

GROUP = "bench"
TICK_S = 0.01
"""Records of this period are written together, and to one partition, as by Kafka's default partitioner. Their
timestamps are their scheduled times."""

PATIENCE_S = 120.0


class Sink:
    """The rows' scheduled times, with the batch and the time of their arrival.

    :ivar rows: their number so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: list[tuple[int, float, Times]] = []
        self.rows = 0

    def __call__(self, frame: DataFrame, batch: int) -> None:
        written = [int(row[0]) for row in frame.selectExpr("substring(value, 1, 20)").collect()]
        now = time.time_ns()
        with self._lock:
            self.rows += len(written)
            self._batches.append((batch, now / 1e9, np.array(written, np.int64) / 1e9))

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
        """The time of each record's write, by the producer's knowledge."""
        return np.array([*self._appended, *[np.nan] * (self.written - len(self._appended))])

    def run(self, seconds: float) -> None:
        """Write for this duration."""
        began, first = time.monotonic(), self.written
        offset_ns = time.time_ns() - time.monotonic_ns()
        writer = _ToFiles if self._source == EMBEDDED else _ToKafka
        with closing(writer(self._ground)) as write:
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
        """Note the time of the records written since the last call."""
        self._appended += [time.time()] * (appended - len(self._appended))


class _ToKafka:
    """A producer with librdkafka's defaults."""

    def __init__(self, ground: Ground) -> None:
        self._client = KafkaClient({"bootstrap.servers": ground.servers, "log_level": 0})
        self._given = 0

    def __call__(self, partition: int, value: bytes) -> None:
        self._client.produce(TOPIC, value, partition=partition)
        self._given += 1

    def flush(self) -> int:
        """The number of records written so far."""
        self._client.poll(0)
        return self._given - len(self._client)

    def close(self) -> None:
        self._client.flush(30)


class _ToFiles:
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
        """Write; returns the number of written records."""
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
            with closing(open_kazoo(ground.zk, 10_000)) as store:
                spans = [fetch_spans(history, time.time() - time.monotonic()), seal_spans(store, GROUP)]
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


def _wait(query: Any, sink: Sink, load: Load) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sink.rows < load.written:
        if not query.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the sink has {sink.rows} of {load.written} records: {query.exception()}")
        time.sleep(0.05)


STAGES = ("append", "fetch", "seal", "trigger", "plan", "read")
BEFORE_JOB = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
Times = np.ndarray[Any, np.dtype[np.float64]]
"""Seconds since the epoch, by the record's number; NaN where a time is unknown."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Span(NamedTuple):
    """The records of a partition with offsets `first` to `end - 1`, and the time of their stage."""

    partition: int
    first: int
    end: int
    at_s: float


class Batch(NamedTuple):
    """A micro-batch of the query: its begin, and its job's begin; seconds since the epoch."""

    began_s: float
    job_s: float


def fetch_spans(history_dir: Path, clock_offset_s: float) -> list[Span]:
    """The fetches in the slots' histories.

    :param clock_offset_s: the epoch's time at 0 of the monotonic clock.
    """
    events = [json.loads(line) for path in history_dir.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [
        Span(item["partition"], item["first"], item["next"], event["at"] + clock_offset_s)
        for event in events
        if event["event"] == "fetch"
        for item in event["ranges"]
    ]


def seal_spans(store: Store, group: str) -> list[Span]:
    """The ranges of the group's segments still in ZooKeeper: of the last hour, up to 1,000."""
    paths = GroupPaths(group)
    listing = store.children(paths.segments)
    names = [paths.segment(name) for name in (listing.names if listing else ())]
    spans = []
    for path, node in zip(names, store.get_many(names), strict=True):
        try:
            ranges = Segment.parse(path, node.data).ranges if node else ()
        except BadData:
            continue
        spans += [Span(item.partition, item.first, item.next, node.stat.ctime_ms / 1000) for item in ranges if node]
    return spans


def batches_of(progress: Iterable[Any]) -> dict[int, Batch]:
    """Batch id -> its times, from a query's progress."""
    found = {}
    for each in progress:
        if each.numInputRows:
            began = datetime.fromisoformat(each.timestamp.replace("Z", "+00:00")).timestamp()
            before_ms = sum(each.durationMs.get(name, 0) for name in BEFORE_JOB)
            found[each.batchId] = Batch(began, began + before_ms / 1000)
    return found


def times_of(spans: Iterable[Span], partition_of: Numbers) -> Times:
    """The time of each record.

    :param partition_of: the partition of each record; those of a partition are at its offsets, in order.
    """
    found = np.full(len(partition_of), np.nan)
    numbers = {partition: np.flatnonzero(partition_of == partition) for partition in np.unique(partition_of).tolist()}
    for span in spans:
        found[numbers[span.partition][span.first : span.end]] = span.at_s
    return found


def stages(
    scheduled: Times, appended: Times, fetched: Times, sealed: Times, batches: Mapping[int, Batch], batch_of: Times
) -> Times:
    """The seconds of `STAGES` but `read`, which is the rest: a row for each stage, a column for each record.

    :param batch_of: the id of each record's batch.
    """
    began, job = (
        np.array([getattr(batches.get(int(batch)), name, np.nan) if batch == batch else np.nan for batch in batch_of])
        for name in ("began_s", "job_s")
    )
    # The producer is notified of an append after the log has it; a batch may list a concurrently sealed segment.
    marks = [scheduled, np.fmin(appended, fetched), fetched, sealed, np.fmax(began, sealed), np.fmax(job, sealed)]
    return np.diff(np.array(marks), axis=0)


def table(found: Times, latencies: Times) -> dict[str, dict[str, float]]:
    """Of each stage: its own percentiles, and its mean in the records around the latency's p50, and from its p99 on.

    The latter two add up to those records' latency.

    :param found: as of `stages`, without records without a time.
    """
    rows = [*found, latencies - found.sum(axis=0)]
    low, high, slow = np.percentile(latencies, (45, 55, 99))
    middle, last = (latencies >= low) & (latencies <= high), latencies >= slow
    return {
        name: {
            "p50": round(float(np.percentile(row, 50)), 3),
            "p99": round(float(np.percentile(row, 99)), 3),
            "at_p50": round(float(row[middle].mean()), 3),
            "at_p99": round(float(row[last].mean()), 3),
        }
        for name, row in zip(STAGES, rows, strict=True)
    }

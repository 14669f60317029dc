"""`bench poll`: the time of `Consumer.poll` on the embedded log, and a consumer's memory without polls, also on Kafka.

All components are real: a consumer in a group with a coordinator, on one embedded server. The time is that of full
polls, of the maximum number of records; the whole log is written before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from common import coordinated, measured_by

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.fetching.poll_order import HEURISTICS, ORDERS
from zk_group.consumer.logs.embedded.producer import Appender, stored_batches
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers

from .figures import machine, peak_memory_mb
from .group import eventually, says

BUSY, MANY, QUIET = "busy", "many", "quiet"
PARTITIONS = 8
RECORD_BYTES = 100
MANY_RECORDS = 700
KAFKA_RECORDS = 400
KAFKA_RECORD_BYTES = 1000
QUIET_RECORDS = 5
WORK_S = 0.005
SILENT_S = 5.0
MB = 1_000_000


class Stage:
    """A server, a node, and a log. The context manager stops all of them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        started = coordinated(folder, "a", "--group-initial-rebalance-delay-ms", "0", servers=1)
        self.hosts, _, (node,) = stack.enter_context(started)
        self._store = stack.enter_context(contextlib.closing(open_kazoo(self.hosts, 30_000)))
        self.log_dir = folder / "log"
        eventually(lambda: says(folder, node, "elected"), "the node is elected")

    def write(self, topic: str, partitions: int, records: int) -> str:
        """Create a topic with records in each partition; returns its id."""
        topic_id = create_topic(self._store, Brokers(), topic, partitions).id
        batches = stored_batches([b"%0*d" % (RECORD_BYTES, number) for number in range(records)])
        for number in range(partitions if records else 0):
            self.append(topic, topic_id, number, batches)
        return topic_id

    def append(self, topic: str, topic_id: str, partition: int, batches: list[Any]) -> None:
        """Add records to one partition."""
        Appender(self.log_dir, topic, topic_id, partition).append(batches)

    @contextlib.contextmanager
    def consumer(self, group: str, topics: list[str], partitions: int, **options: Any) -> Iterator[Consumer]:
        """A consumer with all partitions assigned, after its first returned records."""
        config = ConsumerConfig(self.hosts, group, "c1", log_dir=str(self.log_dir), **options)
        with Consumer(config, Subscription(dict.fromkeys(topics, 1))) as consumer:
            eventually(lambda: consumer.poll(20) and len(consumer.assignment()) == partitions, "assigned")
            yield consumer


def measure(folder: Path, polls: int, partitions: int, kafka: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """All measurements of `bench poll`, by name."""
    found: dict[str, Any] = {"machine": machine()}
    with contextlib.ExitStack() as stack:
        stage = Stage(folder, stack)
        tell("writing the log")
        stage.write(BUSY, PARTITIONS, polls * 500 // PARTITIONS + 1000)
        quiet_id = stage.write(QUIET, 1, 0)
        stage.write(MANY, partitions, MANY_RECORDS)
        measurements = {"own_ms": partial(own_time, stage, polls), "quiet": partial(quiet, stage, quiet_id)}
        for (what, measured), order, prefetch in product(measurements.items(), ORDERS, HEURISTICS):
            name = f"{what}_{order}_{prefetch}"
            tell(name)
            found[name] = measured(name, poll_order=order, prefetch=prefetch)
        for prefetch in HEURISTICS:
            tell(f"{partitions} partitions, without polls: {prefetch}")
            found[f"memory_mb_{prefetch}"] = memory(stage.hosts, str(stage.log_dir), MANY, partitions, prefetch)
    return found | (on_kafka(folder / "kafka", partitions, tell) if kafka else {})


def on_kafka(folder: Path, partitions: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The memory of a consumer of a Kafka broker."""
    from .ground import TOPIC, Ground  # and Spark

    folder.mkdir()
    with Ground(folder, "kafka", partitions=partitions) as ground:
        tell("writing to Kafka")
        ground.fill(KAFKA_RECORDS * partitions, KAFKA_RECORD_BYTES)
        found = {}
        for prefetch in HEURISTICS:
            tell(f"{partitions} partitions of Kafka, without polls: {prefetch}")
            found[f"memory_mb_kafka_{prefetch}"] = memory(ground.zk, ground.log_dir, TOPIC, partitions, prefetch)
    return found


def own_time(stage: Stage, polls: int, group: str, **options: Any) -> dict[str, float]:
    """Milliseconds of polls of 500 records, and the number of prefetched records after them."""
    times, retained = [], []
    with stage.consumer(group, [BUSY], PARTITIONS, **options) as consumer:
        for _ in range(polls - 20):
            began = time.perf_counter()
            polled = consumer.poll(1000)
            took = time.perf_counter() - began
            if sum(map(len, polled.values())) == 500:
                times.append(1000 * took)
                retained.append(consumer.retained[0])
    parts = quantiles(times, n=100)
    figures = {"min": min(times), "median": median(times), "p90": parts[89], "p99": parts[98], "max": max(times)}
    return {name: round(value, 3) for name, value in figures.items()} | {
        "polls": len(times),
        "retained_max": max(retained),
    }


def quiet(stage: Stage, topic_id: str, group: str, **options: Any) -> dict[str, float]:
    """The delay of a record in a quiet partition, in polls and ms, while the other partitions are saturated.

    The application needs `WORK_S` for each poll's records.
    """
    partition, waited = TopicPartition(QUIET, 0), []
    with stage.consumer(group, [BUSY, QUIET], PARTITIONS + 1, **options) as consumer:
        consumer.seek_to_end(partition)
        for _ in range(QUIET_RECORDS):
            stage.append(QUIET, topic_id, 0, stored_batches([b"x"]))
            began, polls = time.perf_counter(), 1
            while partition not in consumer.poll(1000):
                time.sleep(WORK_S)
                polls += 1
            waited.append((polls, round(1000 * (time.perf_counter() - began))))
    polls_all, ms = zip(*waited, strict=True)
    return {"polls_median": median(polls_all), "polls_max": max(polls_all), "ms_median": median(ms), "ms_max": max(ms)}


def memory(zk: str, log_dir: str, topic: str, partitions: int, prefetch: str) -> dict[str, float]:
    """The memory growth of a process whose prefetch queues are full, and whose application does not poll."""
    return measured_by("bench.poll", [zk, log_dir, topic, str(partitions), prefetch], 300.0)


def _never_polls(zk: str, log_dir: str, topic: str, partitions: int, prefetch: str) -> dict[str, float]:
    before = _resident()
    config = ConsumerConfig(zk, f"memory-{prefetch}", "c1", log_dir=log_dir, prefetch=prefetch)
    with Consumer(config, Subscription({topic: 1})) as consumer:
        eventually(lambda: consumer.poll(20, 1) and len(consumer.assignment()) == partitions, "assigned")
        retained = [consumer.retained[1]]
        while len(retained) < 20 or retained[-1] > retained[-20]:
            consumer.poll(1000, 1)
            retained.append(consumer.retained[1])
            time.sleep(0.05)
        time.sleep(SILENT_S)
        after, held = _resident(), consumer.retained[1] / MB
    bound = (config.buffer_memory + (kafka_bound() if log_dir == "kafka:" else 0)) / MB
    grown = {f"grown_{name}": value - before[name] for name, value in after.items()}
    found = {"bound": bound, "retained": held, **grown, "over_bound": grown["grown_all"] - bound}
    return {name: round(value, 1) for name, value in {**found, "over_retained": grown["grown_all"] - held}.items()}


def kafka_bound() -> int:
    """The limit of a Kafka source in bytes, of Arrow and of librdkafka: docs/kafka.md."""
    from zk_group.consumer.logs.kafka.options import kafka_options
    from zk_group.consumer.logs.kafka.source import UNCONFIRMED_BYTES

    options = kafka_options({})
    return UNCONFIRMED_BYTES + (int(options["queued.max.messages.kbytes"]) << 10) + int(options["fetch.max.bytes"])


def _resident() -> dict[str, float]:
    """Resident memory of this process in MB: total, mapped files, and peak."""
    memory = psutil.Process().memory_info()
    return {"all": memory.rss / MB, "files": memory.shared / MB, "peak": peak_memory_mb(os.getpid())}


if __name__ == "__main__":
    print(json.dumps(_never_polls(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])))

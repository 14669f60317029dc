"""Groups on a real Kafka: what they are given, and what an independent client finds there."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from tests.support.kafka import Kafka
from tests.support.processes import ProjectProcess
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World
from zk_group.consumer.logs import KafkaPlace, open_log
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.slot import PoolPost
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Segment


class Writing:
    """Writes numbers into every partition of a new topic all the time; brokers have each once, also when they go away.

    :param records: of each partition, 20 times a second.
    :ivar ends: partition -> the offset after the last record that its leader has acknowledged.
    """

    def __init__(self, kafka: Kafka, topic: str, partitions: int, records: int = 10) -> None:
        once = {"enable.idempotence": True, "message.timeout.ms": 0, "reconnect.backoff.max.ms": 200}
        self._client = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 0, "log_level": 0, **once})
        self.ends = dict.fromkeys(range(partitions), 0)
        self.topic = topic
        self._records = records
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.05):
            for partition in self.ends:
                for value in range(number, number + self._records):
                    self._client.produce(
                        self.topic, str(value).encode(), partition=partition, on_delivery=self._on_delivery
                    )
            number += self._records
            self._client.poll(0)

    def _on_delivery(self, error: object, message: Any) -> None:
        if error is None:  # without an offset when a broker has it from before its death: a duplicate
            self.ends[message.partition()] += 1

    def stop(self) -> None:
        """Write no more, and wait until the brokers have all of it."""
        self._stop.set()
        self._thread.join(10)
        assert self._client.flush(30) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join(10)


def joins(
    world: World,
    group: str,
    name: str,
    topic: str,
    url: str = "kafka:",
    kafka: Mapping[str, str] | None = None,
    **options: Any,
) -> PollingConsumer:
    """A consumer of a topic.

    :param kafka: librdkafka's options.  :param options: the consumer's.
    """
    log = open_log(url, KafkaPlace(zk=world.zk, options=kafka or {}))
    return world.consumer(group, name, {topic: 1}, log=log, **options)


def numbered(first: int, count: int) -> list[bytes]:
    """The values of so many records."""
    return [str(number).encode() for number in range(first, first + count)]


def all_delivered(kafka: Kafka, consumers: list[PollingConsumer], topic: str, partitions: int) -> None:
    """The records of an independent Kafka client were polled, and committed once."""
    there = kafka.read_all(topic, partitions)
    wanted = {(TopicPartition(topic, number), read.offset) for number, rows in there.items() for read in rows}
    assert wanted

    def is_whole() -> bool:
        missing = wanted - {item for consumer in consumers for item in consumer.polled.copy()}
        assert not missing, f"{len(missing)} of {len(wanted)} records are missing: {sorted(missing)[:3]}"
        return True

    eventually(is_whole, 30, "every record is delivered", pause_s=0.05)
    counts = Counter(item for consumer in consumers for item in consumer.records.copy())
    assert {item: count for item, count in counts.items() if count > 1} == {}
    assert set(counts) <= wanted


def segments(world: World, group: str) -> list[Segment]:
    """The named segments, in the order of their seals."""
    paths = GroupPaths(group)
    listing = world.store.children(paths.segments)
    found = [world.store.get(paths.segment(name)) for name in (listing.names if listing else [])]
    nodes = sorted((node for node in found if node), key=lambda node: node.stat.czxid)
    return [Segment.parse("segment", node.data) for node in nodes]


def rows_of(world: World, group: str, folder: SegmentFolder) -> Iterator[dict[str, Any]]:
    """The sealed records, in the order of the seals."""
    for segment in segments(world, group):
        for batch in folder.records(segment):
            yield from batch.to_pylist()


@contextmanager
def two_slots(folder: Path, world: World, group: str, topic: str, segments_dir: str) -> Iterator[list[ProjectProcess]]:
    """Two slots of a pool, each in a process, that have joined the group."""
    config = {
        "zk": world.zk,
        "group": group,
        "pool": "p",
        "log_dir": "kafka:",
        "segments_dir": segments_dir,
        "session_timeout_ms": SESSION_MS,
        "seal_interval_ms": 50,
        "topics": {topic: 1},
        "run": "run-1",
    }
    with ExitStack() as stack:
        post = PoolPost(kazoo_factory(world.zk, SESSION_MS), ThreadRuntime(), group, "p", "run-1")
        post.keep(10)
        stack.callback(post.close)
        slots = [
            ProjectProcess(
                folder,
                f"slot-{number}",
                "zk_group.drills.workloads",
                "slot.main",
                json.dumps({**config, "number": number}),
            )
            for number in range(2)
        ]
        for slot in slots:
            stack.enter_context(slot)
        world.stable(group, members=2, timeout_s=30)
        yield slots

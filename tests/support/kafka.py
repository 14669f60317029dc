"""A real Kafka broker for tests, and what a test does with it besides what it tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from consumer.logs import Fetched, KafkaPlace, Log, LogError, open_log
from consumer.logs.kafka.client import topic_id_text
from coordinator.zk.embedded.kafka import Broker, KafkaConfig
from coordinator.zk.embedded.kafka_jars import fetch_kafka
from coordinator.zk.errors import MissingProgram
from coordinator.zk.session.kazoo_store import open_kazoo
from tests.support.ci import in_ci
from tests.support.wait import PATIENCE, Waiting, eventually

USERS = {"alice": "a secret of alice"}


class Read(NamedTuple):
    """A record as an independent client reads it."""

    offset: int
    key: bytes | None
    value: bytes | None


class Kafka:
    """A broker with clients. Topics are the test's own: `name` gives a unique one.

    :ivar zk: the chroot in which it registers, as a group in the same chroot names it.
    """

    def __init__(self, broker: Broker, zk: str = "") -> None:
        self.broker = broker
        self.zk = zk
        self.servers = broker.address
        self.url = f"kafka://{self.servers}"
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self.producer = self._producer()
        self._named = 0

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0})

    def wait_ready(self) -> None:
        """Wait until there is a controller: without one librdkafka waits for it for long before it asks again."""

        def has_controller() -> bool:
            return int(self.admin.list_topics(timeout=1).controller_id) >= 0

        eventually(has_controller, 30, "the broker has a controller", ignoring=(KafkaException,))

    def restart(self) -> None:
        """Start the killed broker: it ends at once while its former registration is in ZooKeeper."""
        with closing(open_kazoo(self.zk, 6000)) as store:
            eventually(lambda: store.get("/brokers/ids/0") is None, 20, "the killed broker's session has expired")
        self.broker.start()
        self.broker.wait_ready()
        self.wait_ready()

    def name(self, prefix: str = "t") -> str:
        self._named += 1
        return f"{prefix}-{self._named}"

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic, once its name is free; its id, once it can be written to."""
        options = {key.replace("_", "."): value for key, value in config.items()}

        def create() -> bool:
            self.admin.create_topics([NewTopic(name, partitions, 1, config=options)])[name].result(10)
            return True

        eventually(create, 20, f"topic {name} is created", ignoring=(KafkaException,))
        return eventually(lambda: self.topic_id(name, partitions), 10, f"{name} is known", ignoring=(KafkaException,))

    def topic_id(self, name: str, partitions: int = 1) -> str:
        found = self.admin.describe_topics(TopicCollection([name]))[name].result(10)
        has_leaders = all(part.leader is not None and part.leader.id >= 0 for part in found.partitions)
        return topic_id_text(found.topic_id) if has_leaders and len(found.partitions) >= partitions else ""

    def more_partitions(self, name: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(10)
        eventually(lambda: self.topic_id(name, partitions), 10, f"{name} has grown", ignoring=(KafkaException,))
        self.producer = self._producer()  # the old one would hear of it in minutes

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(10)

    def write(self, topic: str, values: Iterable[bytes | None], partition: int = 0, **options: Any) -> None:
        """Write records, and wait until the broker has them."""
        for value in values:
            self.producer.produce(topic, value, partition=partition, **options)
        assert self.producer.flush(30) == 0

    def transaction(self, topic: str, values: Sequence[bytes], commit: bool = True) -> None:
        """Write records in a transaction of their own."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": self.name("tx"), "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def read_all(self, topic: str, partitions: int) -> dict[int, list[Read]]:
        """All records, as a consumer reads them that has nothing of this project."""
        options = {"bootstrap.servers": self.servers, "group.id": "independent", "enable.partition.eof": True}
        consumer = Consumer({**options, "enable.auto.commit": False, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: dict[int, list[Read]] = {number: [] for number in range(partitions)}
        ended: set[int] = set()
        deadline = time.monotonic() + 30 * PATIENCE
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} was not read to its end: {sorted(ended)} were"
            for message in consumer.consume(1000, 0.1):
                if message.error() is not None:
                    ended.add(message.partition())
                else:
                    found[message.partition()].append(Read(message.offset(), message.key(), message.value()))
        consumer.close()
        return found

    @contextmanager
    def log(self, **options: str) -> Iterator[Log]:
        log = open_log(self.url, KafkaPlace(options={key.replace("_", "."): value for key, value in options.items()}))
        try:
            yield log
        finally:
            log.close()


def require_kafka() -> None:
    """Skip where no broker can be had; in CI that is an error."""
    try:
        fetch_kafka()
    except MissingProgram as error:
        if in_ci():
            raise
        pytest.skip(str(error))


@contextmanager
def a_kafka(folder: Path, zk: str = "", extra: Mapping[str, str] | None = None) -> Iterator[Kafka]:
    """A broker that registers in `zk`, in KRaft mode where that is empty. Skipped where none can be had; not in CI."""
    require_kafka()
    with Broker(folder, KafkaConfig(zookeeper=zk, users=USERS, extra=extra or {})) as broker:
        kafka = Kafka(broker, zk)
        kafka.wait_ready()
        yield kafka


def fetched(
    log: Log,
    topic: str,
    topic_id: str,
    offset: int = 0,
    partition: int = 0,
    *,
    upto: int,
    most: int = 1000,
    wait: Waiting = eventually,
) -> list[dict[str, Any]]:
    """Records from `offset` on, until the next offset is `upto`: 20 s at most."""
    rows: list[dict[str, Any]] = []

    def look() -> bool:
        nonlocal offset
        batches, offset = log.fetch(topic, topic_id, partition, offset, 1 << 20, most)
        rows.extend(row for batch in batches for row in batch.to_pylist())
        return offset >= upto

    wait(look, 20, f"{topic}-{partition} is fetched up to {upto}", pause_s=0.002)
    assert offset == upto
    return rows


def refused(log: Log, topic: str, topic_id: str, offset: int = 0, partition: int = 0) -> LogError:
    """The error of a fetch; no record may be returned before it."""

    came: list[Fetched] = []

    def look() -> LogError | None:
        try:
            found = log.fetch(topic, topic_id, partition, offset, 1 << 20, 1000)
        except LogError as error:
            return error
        if found != Fetched([], offset):
            came.append(found)
        return None

    found = eventually(look, 20, f"{topic}-{partition} cannot be fetched", pause_s=0.002)
    assert found is not None
    assert came == []
    return found

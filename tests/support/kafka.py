"""A real Kafka broker for tests, and what a test does with it besides what it tests."""

from __future__ import annotations

import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.ci import in_ci
from tests.support.wait import PATIENCE, Waiting, eventually
from zk_group.consumer.logs import KafkaPlace, open_log
from zk_group.consumer.logs.base import Log, Position
from zk_group.consumer.logs.kafka.requests import topic_id_text
from zk_group.coordinator.zk.embedded.directory import HOST, Ports, choose_ports
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig, fetch_kafka
from zk_group.coordinator.zk.errors import CoordinatorError, MissingProgram
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.partitions import TopicPartition as PartitionKey

USERS = {"alice": "a secret of alice"}


class Read(NamedTuple):
    """A record as an independent client reads it."""

    offset: int
    key: bytes | None
    value: bytes | None


class Kafka:
    """A cluster with clients. Topics are the test's own: `name` gives a unique one.

    :ivar broker: its first broker, most often the only one.
    :ivar sasl_address: of the listener with SASL.
    :ivar zk: the chroot in which it registers, as a group in the same chroot names it.
    """

    def __init__(self, broker: Broker, zk: str = "", others: Sequence[Broker] = ()) -> None:
        self.broker = broker
        self.brokers = {each.id: each for each in (broker, *others)}
        self.zk = zk
        self.sasl_address = ""
        self.servers = ",".join(each.address for each in self.brokers.values())
        self.url = f"kafka://{self.servers}"
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self.producer = self._producer()
        self._named = 0

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0})

    def wait_ready(self) -> None:
        """Wait until there is a controller: without one librdkafka waits for it for long before it asks again."""

        def is_whole() -> bool:
            found = self.admin.list_topics(timeout=1)
            return int(found.controller_id) >= 0 and len(found.brokers) >= len(self.brokers)

        eventually(is_whole, 30, "the brokers have a controller", ignoring=(KafkaException,))

    def restart(self, broker_id: int = 0) -> None:
        """Start a killed broker: it ends at once while its former registration is in ZooKeeper."""
        with closing(open_kazoo(self.zk, 6000)) as store:
            path = f"/brokers/ids/{broker_id}"
            eventually(lambda: store.get(path) is None, 20, "the killed broker's session has expired")
        self.brokers[broker_id].start()
        self.brokers[broker_id].wait_ready()
        self.wait_ready()

    def name(self, prefix: str = "t") -> str:
        self._named += 1
        return f"{prefix}-{self._named}"

    def topic(
        self, name: str, partitions: int = 1, *, replicas: Sequence[Sequence[int]] | None = None, **config: str
    ) -> str:
        """Create a topic, once its name is free; its id, once it can be written to.

        :param replicas: for each partition the brokers that have it, its leader first.
        """
        options = {key.replace("_", "."): value for key, value in config.items()}
        if replicas is None:
            made = NewTopic(name, partitions, 1, config=options)
        else:
            assert len(replicas) == partitions
            made = NewTopic(name, partitions, replica_assignment=[list(each) for each in replicas], config=options)

        def create() -> bool:
            self.admin.list_topics(timeout=5)  # told that another is the controller, librdkafka does not look for it
            self.admin.create_topics([made])[name].result(10)
            return True

        eventually(create, 20, f"topic {name} is created", ignoring=(KafkaException,))
        return eventually(lambda: self.topic_id(name, partitions), 10, f"{name} is known", ignoring=(KafkaException,))

    def new_topic(self, partitions: int = 1, **config: str) -> tuple[str, str]:
        """Create a topic; its name and its id."""
        name = self.name()
        return name, self.topic(name, partitions, replicas=None, **config)

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

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """As `kafka-delete-records`: the log of a partition begins at offset `before` when this returns."""
        wanted = TopicPartition(topic, partition, before)
        assert self.admin.delete_records([wanted])[wanted].result(10).low_watermark == before

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
                partition, offset = message.partition(), message.offset()
                if partition is None:
                    continue  # an error of the client's, and the end of no partition
                if message.error() is not None:
                    ended.add(partition)
                else:
                    assert offset is not None
                    found[partition].append(Read(offset, message.key(), message.value()))
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


def sasl_lines(ports: Ports, users: Mapping[str, str]) -> dict[str, str]:
    """Lines of a broker's configuration: a second listener, with SASL/PLAIN, for users with these passwords."""
    listeners = f"PLAINTEXT://{HOST}:{ports.client},SASL_PLAINTEXT://{HOST}:{ports.quorum}"
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {known};",
    }


def kraft_lines(ports: Ports) -> dict[str, str]:
    """Lines of a broker's configuration: its own controller instead of ZooKeeper, beside the listeners above."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports.election}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "listeners": f"{sasl_lines(ports, {})['listeners']},CONTROLLER://{HOST}:{ports.election}",
    }


def _short_uuid() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


@contextmanager
def a_kafka(folder: Path, zk: str = "", extra: Mapping[str, str] | None = None) -> Iterator[Kafka]:
    """A broker that registers in `zk`, in KRaft mode where that is empty. Skipped where none can be had; not in CI."""
    require_kafka()
    ports = choose_ports(1, None)[0]
    lines = {**sasl_lines(ports, USERS), **({} if zk else kraft_lines(ports)), **(extra or {})}
    made = Broker(folder, KafkaConfig(zookeeper=zk, extra=lines, broker_id=0 if zk else 1), ports.client)
    if not zk:
        storage = {"version": "1", "cluster.id": _short_uuid(), "node.id": "1", "directory.id": _short_uuid()}
        # What `kafka-storage.sh format` writes.
        (made.directory / "data" / "meta.properties").write_text("".join(f"{k}={v}\n" for k, v in storage.items()))
    with made as broker:
        kafka = Kafka(broker, zk)
        kafka.sasl_address = f"{HOST}:{ports.quorum}"
        kafka.wait_ready()
        yield kafka


class Reader:
    """The source of a log, and the next offset of each partition that it was asked for."""

    def __init__(self, log: Log) -> None:
        self.source = log.source()
        self.next: dict[PartitionKey, int] = {}
        self._ids: dict[str, str] = {}

    def look(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int = 1 << 20
    ) -> list[dict[str, Any]]:
        """Records from `offset` on, as one poll returns them; those of other partitions are passed over.

        :raises CoordinatorError: the partition's problem, when there are none.
        """
        key = PartitionKey(topic, partition)
        if self.next.get(key) != offset or self._ids.get(topic) != topic_id:
            self._ids[topic] = topic_id
            self.source.assign({key: Position(topic_id, offset)})
            self.next[key] = offset
        rows: list[dict[str, Any]] = []
        for fetch in self.source.poll(max_bytes):
            assert fetch.first == self.next[fetch.partition]
            self.next[fetch.partition] = fetch.next
            if fetch.partition == key:
                rows += [row for batch in fetch.batches for row in batch.to_pylist()]
        if self.next[key] == offset and (problem := self.source.problems.get(key)) is not None:
            raise problem
        return rows


_READERS: WeakKeyDictionary[Log, Reader] = WeakKeyDictionary()


def reader(log: Log) -> Reader:
    """The one reader of a log."""
    if log not in _READERS:
        _READERS[log] = Reader(log)
    return _READERS[log]


def fetched(
    log: Log,
    topic: str,
    topic_id: str,
    offset: int = 0,
    partition: int = 0,
    *,
    upto: int,
    max_bytes: int = 1 << 20,
    wait: Waiting = eventually,
) -> list[dict[str, Any]]:
    """Records from `offset` on, until the next offset is `upto` or later: 20 s at most."""
    rows: list[dict[str, Any]] = []
    key, following = PartitionKey(topic, partition), offset

    def look() -> bool:
        nonlocal following
        rows.extend(reader(log).look(topic, topic_id, partition, following, max_bytes))
        following = reader(log).next[key]
        return following >= upto

    wait(look, 20, f"{topic}-{partition} is fetched up to {upto}", pause_s=0.002)
    return [row for row in rows if row["offset"] < upto]


def refused(log: Log, topic: str, topic_id: str, offset: int = 0, partition: int = 0) -> CoordinatorError:
    """The error of a partition; no record may be returned before it."""

    def look() -> CoordinatorError | None:
        try:
            assert reader(log).look(topic, topic_id, partition, offset) == []
        except CoordinatorError as error:
            return error
        return None

    found = eventually(look, 20, f"{topic}-{partition} cannot be fetched", pause_s=0.002)
    assert found is not None
    return found

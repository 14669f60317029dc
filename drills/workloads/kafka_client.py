"""A real Kafka's records, written and read with confluent-kafka alone, independent of this project's Kafka client code.

The producer, as `producer.py`, creates the topic, and is idempotent: after a broker restart every record exists once,
in order. Reported are the acknowledged records of each partition. The reader reads whole topics, and reports the
correctly numbered records, with which the group's delivered ones are compared.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka import Producer as Client

from zk_group.coordinator.zk.embedded.kafka_client import TrialKafka
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.records import Topic

from .process import HangGate, emit
from .producer import Ends, produce

FLUSHED_S = 3.0
READ_S = 20.0
GROUP = "drill-independent"
"""`group.id` is mandatory; the consumer neither joins the group nor commits."""


def main(fields: Fields) -> None:
    """Produce to the brokers `servers`; creates the topics with `partitions`."""
    gate, servers = HangGate(), fields.text("servers")
    options = {"bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True}
    patient = {"message.timeout.ms": 0, "reconnect.backoff.max.ms": 200, "linger.ms": 0}
    client = Client({**options, **patient})
    sent: Counter[tuple[str, int]] = Counter()
    ends: Ends = {}

    def acknowledged(topic: Topic, partition: int, error: Any, message: Any) -> None:
        if error is not None:
            emit("not written", ends=ends, reason=str(error))
            return
        written = ends.setdefault(topic.name, {}).setdefault(topic.id, {})
        written[str(partition)] = written.get(str(partition), 0) + 1

    def write(topic: Topic, count: int) -> None:
        for partition in topic.partitions:
            first = sent[topic.id, partition]
            done = partial(acknowledged, topic, partition)
            for number in range(first, first + count):
                client.produce(topic.name, b"%d" % number, topic.id.encode(), partition, on_delivery=done)
            sent[topic.id, partition] = first + count
        client.poll(0)

    for name in sorted(fields.mapping("topics")):
        TrialKafka(servers).make_topic(name, fields.number("partitions"))
    produce(gate, fields, write, ends)
    client.flush(FLUSHED_S)
    emit("produced", ends=ends)


def read(fields: Fields) -> None:
    """Report the records by their key, which is the topic's id, and the number of those not numbered as their offset.

    :raises TimeoutError: when the ends of the `partitions` of `topics` are not reached.
    """
    remaining = {(name, number) for name in fields.mapping("topics") for number in range(fields.number("partitions"))}
    counts: Counter[tuple[str, str, int]] = Counter()
    misplaced = 0
    servers = {"bootstrap.servers": fields.text("servers")}
    client = Consumer({**servers, "group.id": GROUP, "enable.auto.commit": False, "enable.partition.eof": True})
    client.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in sorted(remaining)])
    deadline = time.monotonic() + READ_S
    while remaining:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the ends of {len(remaining)} partitions were not reached within {READ_S:g} s")
        for message in client.consume(1000, 0.1):
            if (error := message.error()) is None:
                key = (message.key() or b"").decode(errors="replace")
                counts[str(message.topic()), key, int(message.partition() or 0)] += 1
                misplaced += message.value() != str(message.offset()).encode()
            elif error.code() == KafkaError._PARTITION_EOF:
                remaining.discard((message.topic(), message.partition()))
    client.close()
    ends: Ends = {}
    for (topic, key, partition), count in counts.items():
        ends.setdefault(topic, {}).setdefault(key, {})[str(partition)] = count
    emit("read", ends=ends, misplaced=misplaced)

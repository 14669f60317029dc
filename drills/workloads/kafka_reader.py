"""Reads whole Kafka topics with confluent-kafka alone, and reports the correctly numbered records.

The group's delivered records are compared with them. Independent of this project's Kafka client code.
"""

from __future__ import annotations

import time
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from coordinator.zk.znodes.json_fields import Fields

from .process import emit, run
from .producer import Ends

READ_S = 20.0
GROUP = "drill-independent"
"""`group.id` is mandatory; the consumer neither joins the group nor commits."""


def main(fields: Fields) -> None:
    """Read the `partitions` of `topics` from `servers` to their ends; see `read`."""
    ends, misplaced = read(fields.text("servers"), sorted(fields.mapping("topics")), fields.number("partitions"))
    emit("read", ends=ends, misplaced=misplaced)


def read(servers: str, names: list[str], partitions: int) -> tuple[Ends, int]:
    """Records by their key, which is the topic's id, and the number of records whose number is not their offset.

    :raises TimeoutError: when their ends are not reached.
    """
    remaining = {(name, number) for name in names for number in range(partitions)}
    counts: Counter[tuple[str, str, int]] = Counter()
    misplaced = 0
    client = Consumer(
        {"bootstrap.servers": servers, "group.id": GROUP, "enable.auto.commit": False, "enable.partition.eof": True}
    )
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
    return ends, misplaced


if __name__ == "__main__":
    run(main)

"""Reads all that Kafka holds of some topics, with confluent-kafka alone, and tells what is numbered as it should be.

What a drill's group has delivered is held against that. Nothing of this project's way to Kafka is in it.
"""

from __future__ import annotations

import time
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from coordinator.zk.fields import Fields

from .process import run, tell
from .producer import Ends

READ_S = 20.0
GROUP = "drill-independent"
"""A consumer must name one; it neither joins it nor commits anything."""


def main(fields: Fields) -> None:
    """Read the `partitions` of `topics` from `servers` to their ends; see `read`."""
    ends, misplaced = read(fields.text("servers"), sorted(fields.mapping("topics")), fields.number("partitions"))
    tell("read", ends=ends, misplaced=misplaced)


def read(servers: str, names: list[str], partitions: int) -> tuple[Ends, int]:
    """Records by their key, which is the topic's id, and how many of them have another number than their offset.

    :raises TimeoutError: when their ends are not reached.
    """
    left = {(name, number) for name in names for number in range(partitions)}
    found: Counter[tuple[str, str, int]] = Counter()
    misplaced = 0
    client = Consumer(
        {"bootstrap.servers": servers, "group.id": GROUP, "enable.auto.commit": False, "enable.partition.eof": True}
    )
    client.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in sorted(left)])
    deadline = time.monotonic() + READ_S
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the ends of {len(left)} partitions were not reached within {READ_S:g} s")
        for message in client.consume(1000, 0.1):
            if (error := message.error()) is None:
                key = (message.key() or b"").decode(errors="replace")
                found[str(message.topic()), key, int(message.partition() or 0)] += 1
                misplaced += message.value() != str(message.offset()).encode()
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard((message.topic(), message.partition()))
    client.close()
    ends: Ends = {}
    for (topic, key, partition), count in found.items():
        ends.setdefault(topic, {}).setdefault(key, {})[str(partition)] = count
    return ends, misplaced


if __name__ == "__main__":
    run(main)

"""Sets of partitions, and their form in records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import ranges


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionSet = frozenset[TopicPartition]
NONE: PartitionSet = frozenset()


def partition_set(by_topic: Mapping[str, Iterable[int]]) -> PartitionSet:
    """`{"t": [0, 1]}` as a set of `TopicPartition`."""
    return frozenset(TopicPartition(topic, partition) for topic, parts in by_topic.items() for partition in parts)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The inverse of `partition_set`; topics and partitions in order."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


def range_texts(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Topic -> ranges, as in commands and marks."""
    return {topic: ranges.encode(numbers) for topic, numbers in by_topic(partitions).items()}

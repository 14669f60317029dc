"""Sets of partitions, and their form in records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import Any, Final, NamedTuple

from . import ranges
from .ranges import Ranges

EXPANDED: Final = 64
"""Up to this number a record's partitions are always a plain set: it is faster, and 8 kB at most."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


PartitionSet = Set[TopicPartition]
NONE: PartitionSet = frozenset()

RESET, LOST = "reset", "lost"
CAUSE = "[cause, number]"


class Discontinuity(NamedTuple):
    """Why a partition's position does not continue where its last sealed range ended.

    :ivar cause: `RESET`, set by an operator, or `LOST`, offsets that the log did not have.
    :ivar number: of a reset its transaction's zxid, 0 in the operator's own znode, whose mzxid it is; else the first
        lost offset.
    """

    cause: str
    number: int

    @classmethod
    def read(cls, value: object) -> Discontinuity:
        """
        :raises ValueError: when `value` is no pair of a cause and a number.
        """
        match value:
            case [str(cause), int(number)] if len(cause) <= 64 and 0 <= number < 2**63 and number is not True:
                return cls(cause, number)
        raise ValueError


Discontinuities = Mapping[TopicPartition, Discontinuity]


class PartitionRanges(Set[TopicPartition]):
    """The partitions of a record: in memory in proportion to its bytes, for any number of partitions.

    Equal to the set of its partitions. Its operations take either, and expand none.

    :ivar topics: topic -> its partitions, none without one.
    """

    __slots__ = ("_count", "topics")

    def __init__(self, topics: Mapping[str, Ranges]) -> None:
        self.topics: Final = {topic: numbers for topic, numbers in topics.items() if numbers}
        self._count = sum(map(len, self.topics.values()))

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> PartitionRanges:
        """The ranges of `partitions`."""
        if isinstance(partitions, cls):
            return partitions
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        return cls({topic: Ranges.of(numbers) for topic, numbers in topics.items()})

    def __contains__(self, partition: object) -> bool:
        if not isinstance(partition, tuple) or len(partition) != 2:
            return False
        return partition[1] in self.topics.get(partition[0], ())

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic, numbers in self.topics.items():
            for number in numbers:
                yield TopicPartition(topic, number)

    def __len__(self) -> int:
        return self._count

    def __and__(self, other: Set[Any]) -> PartitionSet:
        if not isinstance(other, PartitionRanges):
            return frozenset(partition for partition in other if partition in self)
        both = self.topics.keys() & other.topics.keys()
        return PartitionRanges({topic: self.topics[topic] & other.topics[topic] for topic in both})

    def __or__(self, other: Set[Any]) -> PartitionRanges:
        return union((self, other))

    def __sub__(self, other: Set[Any]) -> PartitionSet:
        if isinstance(other, frozenset | set) and len(self) <= 2 * len(other):
            return frozenset(self) - other  # as large as the existing partitions: a plain set is faster
        removed = PartitionRanges.of(self & other).topics
        return PartitionRanges({topic: mine - removed.get(topic, Ranges()) for topic, mine in self.topics.items()})

    def __rsub__(self, other: Set[Any]) -> PartitionSet:
        return frozenset(partition for partition in other if partition not in self)

    def __le__(self, other: Set[Any]) -> bool:
        if isinstance(other, PartitionRanges):
            return not self - other
        return len(self) <= len(other) and all(partition in other for partition in self)

    __rand__, __ror__ = __and__, __or__
    __hash__ = Set._hash


def union(sets: Iterable[PartitionSet]) -> PartitionRanges:
    """All partitions of `sets`."""
    topics: dict[str, list[Ranges]] = {}
    for partitions in sets:
        for topic, numbers in PartitionRanges.of(partitions).topics.items():
            topics.setdefault(topic, []).append(numbers)
    ranges = {topic: Ranges(chain.from_iterable(each.pairs for each in several)) for topic, several in topics.items()}
    return PartitionRanges(ranges)


def united(sets: Iterable[PartitionSet]) -> PartitionSet:
    """All partitions of `sets`, as a plain set where all of them are."""
    every = tuple(sets)
    return union(every) if any(isinstance(each, PartitionRanges) for each in every) else frozenset().union(*every)


def partition_set(by_topic: Mapping[str, Iterable[int]]) -> PartitionSet:
    """`{"t": [0, 1]}` as a set of `TopicPartition`. Many partitions in ranges stay ranges."""
    topics = {topic: numbers for topic, numbers in by_topic.items() if isinstance(numbers, Ranges)}
    if len(topics) == len(by_topic) and sum(map(len, topics.values())) > EXPANDED:
        return PartitionRanges(topics)
    return frozenset(TopicPartition(topic, partition) for topic, parts in by_topic.items() for partition in parts)


def topics_of(partitions: Iterable[TopicPartition]) -> list[str]:
    """The topics of `partitions`, in order."""
    if isinstance(partitions, PartitionRanges):
        return sorted(partitions.topics)
    return sorted({topic for topic, _ in partitions})


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The inverse of `partition_set`; topics and partitions in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def nested(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Topic -> partition -> value, in order, as in records."""
    topics: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def range_texts(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Topic -> ranges, as in commands and eviction holds."""
    topics = partitions.topics if isinstance(partitions, PartitionRanges) else by_topic(partitions)
    return {topic: ranges.encode(topics[topic]) for topic in sorted(topics)}

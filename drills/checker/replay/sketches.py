"""Sketches of the records that stateful applications have processed: their number, the sum of their offsets, and that
of their squares.

For a range of offsets, each once, these three are known in advance; a missing or duplicate record changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

Key = tuple[str, str, int]
"""Topic, its id, and partition."""


class Sketch(NamedTuple):
    """Number of records, sum of their offsets, and sum of the squares."""

    records: int = 0
    sum: int = 0
    squares: int = 0

    def to_json(self) -> dict[str, int]:
        """The fields of an event, beside the names of its partition."""
        return {"count": self.records, "sum": self.sum, "squares": self.squares}

    def __str__(self) -> str:
        return f"{self.records} records (offsets add up to {self.sum})"

    def plus(self, other: Sketch) -> Sketch:
        """The sum of both."""
        return Sketch(self.records + other.records, self.sum + other.sum, self.squares + other.squares)


NOTHING = Sketch()


def of_range(first: int, following: int) -> Sketch:
    """Of every offset from `first` up to, not including, `following`, each once."""
    return Sketch(following - first, _sum(following) - _sum(first), _squares(following) - _squares(first))


def _sum(end: int) -> int:
    return end * (end - 1) // 2


def _squares(end: int) -> int:
    return (end - 1) * end * (2 * end - 1) // 6


def sketch_of(item: Mapping[str, Any]) -> Sketch:
    """Of one partition of an event."""
    return Sketch(item["count"], item["sum"], item["squares"])


def by_partition(items: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, Sketch]:
    """Topic and partition -> sketch, of an event."""
    return {TopicPartition(item["topic"], item["partition"]): sketch_of(item) for item in items}


def by_topic_id(items: Iterable[Mapping[str, Any]]) -> dict[Key, Sketch]:
    """Topic, its id, and partition -> sketch, of an event."""
    return {(item["topic"], item["topic_id"], item["partition"]): sketch_of(item) for item in items}


def add(found: dict[Key, Sketch], more: Mapping[Key, Sketch]) -> None:
    """Add another member's sketches to `found`."""
    for key, sketch in more.items():
        found[key] = found.get(key, NOTHING).plus(sketch)


def difference(reported: Mapping[Any, Sketch], known: Mapping[Any, Sketch]) -> str:
    """The difference of two states, in words; empty when they are equal."""
    for key in sorted(reported.keys() | known.keys()):
        own, other = reported.get(key, NOTHING), known.get(key, NOTHING)
        if own != other:
            return f"{own} of {'-'.join(map(str, key))}, and it was given and took in {other}"
    return ""

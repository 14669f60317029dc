"""What a stateful application has taken in, without keeping it: how many records, the sum of their offsets, and that of
their squares.

Of all offsets from one to another, each once, these three are known at once; a record twice or never shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Key = tuple[str, str, int]
"""Topic, its id, and partition."""


class Sketch(NamedTuple):
    """How many records, the sum of their offsets, and the sum of the squares."""

    records: int = 0
    sum: int = 0
    squares: int = 0

    def plus(self, other: Sketch) -> Sketch:
        """What both have taken in."""
        return Sketch(self.records + other.records, self.sum + other.sum, self.squares + other.squares)


NOTHING = Sketch()


def of_range(first: int, following: int) -> Sketch:
    """Of every offset from `first` on, up to `following`, each once."""
    return Sketch(following - first, _sum(following) - _sum(first), _squares(following) - _squares(first))


def _sum(end: int) -> int:
    return end * (end - 1) // 2


def _squares(end: int) -> int:
    return (end - 1) * end * (2 * end - 1) // 6


def sketch_of(item: Mapping[str, Any]) -> Sketch:
    """Of one partition, as an event has it."""
    return Sketch(item["count"], item["sum"], item["squares"])


def by_partition(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Sketch]:
    """Topic and partition -> sketch, as an event has them."""
    return {(item["topic"], item["partition"]): sketch_of(item) for item in items}


def by_topic_id(items: Iterable[Mapping[str, Any]]) -> dict[Key, Sketch]:
    """Topic, its id, and partition -> sketch, as an event has them."""
    return {(item["topic"], item["topic_id"], item["partition"]): sketch_of(item) for item in items}

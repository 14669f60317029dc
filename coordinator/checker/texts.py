"""What znode data is read with: JSON without detours, and partition ranges that are decoded once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coordinator.zk import ranges
from coordinator.zk.errors import BadData

T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and partition; equal to the `TopicPartition` of the records."""

UNUSUAL = (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration)
"""What reading data fast may raise when it is not as this release writes it."""

MOST_TEXTS = 20_000
scan: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009  no stub has it
"""Reads the JSON that begins at a place of a text, and says where it ends."""


class _Numbers(dict[str, int]):
    """Partition numbers by their text."""

    def __missing__(self, text: str) -> int:
        if not ranges.is_partition(text):
            raise ValueError(text)
        number = self[text] = int(text)
        return number


class _Decoded(dict[str, tuple[int, ...]]):
    """Partition numbers by the text of their ranges."""

    def __missing__(self, text: str) -> tuple[int, ...]:
        if len(self) >= MOST_TEXTS:
            self.clear()
        numbers = self[text] = tuple(sorted(ranges.decode(text)))
        return numbers


NUMBERS = _Numbers()
DECODED = _Decoded()


def loads(text: str) -> Any:
    """The JSON in `text`, which is nothing else."""
    values, end = scan(text, 0)
    if end != len(text):
        raise ValueError(text)
    return values


def partitions(by_topic: Mapping[str, str]) -> frozenset[Partition]:
    """Topic -> ranges as a set."""
    return frozenset([(topic, number) for topic, text in by_topic.items() for number in DECODED[text]])


def strictly(parse: Callable[[str, bytes], T], path: str, text: str) -> T | None:
    """What a record's own parser makes of data; None when it refuses it."""
    try:
        return parse(path, text.encode())
    except (BadData, *UNUSUAL):
        return None

"""Fast parsing of znode data: JSON by the scanner, and cached partition ranges."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coordinator.zk.errors import BadData
from coordinator.zk.znodes import ranges

T = TypeVar("T")
Partition = tuple[str, int]
"""Topic and partition; equal to the `TopicPartition` of the records."""

UNUSUAL = (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration)
"""Exceptions of fast parsing for data of another release."""

MOST_TEXTS = 20_000
MOST_EXPANDED = 50_000
"""Partitions of a range text; one with more is no data of ours, and stays ranges."""

scan: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009  no stub has it
"""Scans the JSON at an index of a text, and returns its end."""


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
        decoded = ranges.decode(text)
        if len(decoded) > MOST_EXPANDED:
            raise ValueError(text)
        numbers = self[text] = tuple(sorted(decoded))
        return numbers


NUMBERS = _Numbers()
DECODED = _Decoded()


def loads(text: str) -> Any:
    """The JSON in `text`, without anything else."""
    values, end = scan(text, 0)
    if end != len(text):
        raise ValueError(text)
    return values


def partitions(by_topic: Mapping[str, str]) -> frozenset[Partition]:
    """Topic -> ranges as a set."""
    return frozenset([(topic, number) for topic, text in by_topic.items() for number in DECODED[text]])


def strictly(parse: Callable[[str, bytes], T], path: str, text: str) -> T | None:
    """The result of a record's own parser; None when it refuses the data."""
    try:
        return parse(path, text.encode())
    except (BadData, *UNUSUAL):
        return None

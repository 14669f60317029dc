"""Partition numbers as text: `0-3,7`."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_PARTITION = 1_000_000
_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")


def is_partition(text: str) -> bool:
    """Whether untrusted `text` is a canonical partition number: no sign, no leading zero, no `²`."""
    return bool(_NUMBER.fullmatch(text)) and int(text) <= MAX_PARTITION


def encode(partitions: Iterable[int]) -> str:
    """`{0,1,2,3,7}` as `0-3,7`; empty for none."""
    parts: list[str] = []
    first = last = None
    for partition in sorted(set(partitions)):
        if last is not None and partition == last + 1:
            last = partition
            continue
        if first is not None:
            parts.append(_part(first, last))
        first = last = partition
    if first is not None:
        parts.append(_part(first, last))
    return ",".join(parts)


def _part(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def decode(text: str) -> frozenset[int]:
    """The inverse of `encode`.

    :raises ValueError: when `text` has another form, names a partition twice, or one over `MAX_PARTITION`.
    """
    partitions: set[int] = set()
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part)
        first = int(match[1]) if match else -1
        last = int(match[2] or match[1]) if match else -1
        if not 0 <= first <= last <= MAX_PARTITION or not partitions.isdisjoint((first, last)):
            raise ValueError(f"{part!r} is no partition range")
        before = len(partitions)
        partitions.update(range(first, last + 1))
        if len(partitions) != before + last - first + 1:
            raise ValueError(f"{part!r} is no partition range: it names a partition again")
    return frozenset(partitions)

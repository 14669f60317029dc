"""Partition numbers as text: `0-3,7`."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain, pairwise
from typing import Any

MAX_PARTITION = 1_000_000
_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")


def is_partition(text: str) -> bool:
    """Whether untrusted `text` is a canonical partition number: no sign, no leading zero, no `²`."""
    return bool(_NUMBER.fullmatch(text)) and int(text) <= MAX_PARTITION


def encode(partitions: Iterable[int]) -> str:
    """`{0,1,2,3,7}` as `0-3,7`; empty for none."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in Ranges.of(partitions).pairs)


def _joined(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted numbers as ranges."""
    if numbers:
        first = last = numbers[0]
        for number in numbers:
            if number > last + 1:
                yield first, last
                first = number
            last = number
        yield first, last


def decode(text: str) -> Ranges:
    """The inverse of `encode`, in memory in proportion to `text`, for any number of partitions.

    :raises ValueError: when `text` has another form, names a partition twice, or one over `MAX_PARTITION`.
    """
    pairs: list[tuple[int, int]] = []
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part)
        first = int(match[1]) if match else -1
        last = int(match[2] or match[1]) if match else -1
        if not 0 <= first <= last <= MAX_PARTITION:
            raise ValueError(f"{part!r} is no partition range")
        pairs.append((first, last))
    pairs.sort()
    if any(before[1] >= after[0] for before, after in pairwise(pairs)):
        raise ValueError(f"{text[:80]!r} names a partition twice")
    return Ranges(pairs)


class Ranges(Set[int]):
    """Partition numbers as ranges. Equal to the set of its numbers; its operations take either, and expand none.

    :param pairs: first and last number of each range, in any order; ranges may overlap.
    """

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        firsts, lasts = array("q"), array("q")
        for first, last in sorted(pairs):
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        self._firsts, self._lasts = firsts, lasts
        self._count = sum(lasts) - sum(firsts) + len(firsts)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """The ranges of `numbers`."""
        return numbers if isinstance(numbers, cls) else cls(_joined(sorted(numbers)))

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """First and last number of each range, in order; none touches another."""
        return zip(self._firsts, self._lasts, strict=True)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.pairs)

    def __len__(self) -> int:
        return self._count

    def __and__(self, other: Set[Any]) -> Ranges:
        others, found = Ranges.of(other), []
        for first, last in self.pairs:
            at = bisect_left(others._lasts, first)
            while at < len(others._firsts) and others._firsts[at] <= last:
                found.append((max(first, others._firsts[at]), min(last, others._lasts[at])))
                at += 1
        return Ranges(found)

    def __or__(self, other: Set[Any]) -> Ranges:
        return Ranges(chain(self.pairs, Ranges.of(other).pairs))

    def __sub__(self, other: Set[Any]) -> Ranges:
        found = []
        removed = list((self & other).pairs)
        at = 0
        for first, last in self.pairs:
            while at < len(removed) and removed[at][0] <= last:
                found.append((first, removed[at][0] - 1))
                first = removed[at][1] + 1
                at += 1
            found.append((first, last))
        return Ranges(pair for pair in found if pair[0] <= pair[1])

    def __rsub__(self, other: Set[Any]) -> Ranges:
        return Ranges.of(other) - self

    def __le__(self, other: Set[Any]) -> bool:
        return len(self) <= len(other) and not self - other

    __rand__, __ror__ = __and__, __or__
    __hash__ = Set._hash

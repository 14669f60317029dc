"""Which of the records that are there a poll returns, when it may not return all of them: KIP-41's two orders.

Both are pure. `pick` is told, partition by partition in the order of their turns, how many records are there, and how
many may be returned; `behind` says who then goes to the end of that order, where also those come that had nothing.
Bounds, with n partitions that have records, whatever else comes in meanwhile:

- greedy: each poll serves the partition whose turn it is, which is drained by it or goes to the end. So every
  partition with records is served within n polls.
- proportional: each poll serves min(n, most) partitions, and those that wait are before these next time. So every
  partition with records is served within ceil(n / most) polls: by the very next one as soon as `most` is n or more.

Where a bound on bytes ends polls early, it is n polls for both: the first is served, and one that was served is drained
or goes to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from coordinator.zk.partitions import TopicPartition

Key = TypeVar("Key")

GREEDY = "greedy"
PROPORTIONAL = "proportional"

UNBOUNDED = 2**31
"""What -1 stands for."""


def greedy(there: Iterable[tuple[Key, int]], most: int) -> list[tuple[Key, int]]:
    """As many as possible of the first, then of the next: 300 are A's 300, or A's 100 and B's 200 (KIP-41).

    :param there: partition and records that are there, one or more, in the order of turns.
    :returns: partition and records, in that order.
    """
    picked = []
    for key, rows in there:
        if most <= 0:
            break
        picked.append((key, min(rows, most)))
        most -= rows
    return picked


def proportional(there: Iterable[tuple[Key, int]], most: int) -> list[tuple[Key, int]]:
    """The same of each, and what one has not goes to the others: 300 are 100 each, or 150 and 150 (KIP-41's ideal).

    What cannot be divided goes to the first ones. Arguments and result as of `greedy`.
    """
    asked = dict(there)
    given = dict.fromkeys(asked, 0)
    open_ = list(asked)
    while open_:
        share, extra = divmod(most, len(open_))
        drained = [key for key in open_ if asked[key] <= share]
        if not drained:
            given |= {key: share + (index < extra) for index, key in enumerate(open_)}
            break
        for key in drained:
            given[key] = asked[key]
            most -= asked[key]
        open_ = [key for key in open_ if asked[key] > share]
    return [(key, rows) for key, rows in given.items() if rows]


def behind_after_greedy(picked: Sequence[tuple[Key, int]], left: Mapping[Key, int]) -> list[Key]:
    """Who has its turn behind all others from now on, of those that have more.

    A poll goes on where the last one left off; only a partition that had one to itself lets the others go first.
    """
    return [key for key, _ in picked if left.get(key)] if len(picked) == 1 else []


def behind_after_proportional(picked: Sequence[tuple[Key, int]], left: Mapping[Key, int]) -> list[Key]:
    """The same: those that were given most, and so what could not be divided."""
    largest = max((rows for _, rows in picked), default=0)
    return [key for key, rows in picked if rows == largest and left.get(key)]


class Order(NamedTuple):
    """One of the two."""

    pick: Callable[[Iterable[tuple[TopicPartition, int]], int], list[tuple[TopicPartition, int]]]
    behind: Callable[[Sequence[tuple[TopicPartition, int]], Mapping[TopicPartition, int]], list[TopicPartition]]


ORDERS = {
    GREEDY: Order(greedy, behind_after_greedy),
    PROPORTIONAL: Order(proportional, behind_after_proportional),
}

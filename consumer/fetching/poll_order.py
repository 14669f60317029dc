"""The order in which a poll returns buffered records, when its limits exclude some: KIP-41's two orders.

Both are pure. The first function gets, of each partition in the order of turns, its number of buffered records,
and the number to return. The second names the partitions that go to the end of that order, where empty ones return too.
Limits, with n partitions that have records, independent of new records:

- greedy: each poll serves the partition at the head, which is drained by it or goes to the end. So every
  partition with records is served within n polls.
- proportional: each poll serves min(n, most) partitions; those that wait precede them in the next poll. So every
  partition with records is served within ceil(n / most) polls: by the next one as soon as `most` is n or more.

When a limit on bytes ends polls early, it is n polls for both: the first is served, and a served partition is
drained or goes to the end.

Both heuristics of prefetching are pure, too, and fetch every partition when the buffer is empty. With 1,000 records of
A, none of B and one record a poll, `total` fetches B again after A's thousandth record, and `share` at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

Key = TypeVar("Key")

GREEDY = "greedy"
PROPORTIONAL = "proportional"

TOTAL = "total"
SHARE = "share"

UNBOUNDED = 2**31
"""The number that -1 means."""


def greedy(there: Iterable[tuple[Key, int]], most: int) -> list[tuple[Key, int]]:
    """As many as possible of the first, then of the next: 300 are A's 300, or A's 100 and B's 200 (KIP-41).

    :param there: partition and its buffered records, one or more, in the order of turns.
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
    """Equal shares; the unused part of a share goes to the others: 300 are 100 each, or 150 and 150 (KIP-41's ideal).

    The remainder goes to the first ones. Arguments and result as of `greedy`.
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
    """The partitions that go to the end of the order, of those with records left.

    A poll continues where the last one ended; only a partition that had a whole poll lets the others go first.
    """
    return [key for key, _ in picked if left.get(key)] if len(picked) == 1 else []


def behind_after_proportional(picked: Sequence[tuple[Key, int]], left: Mapping[Key, int]) -> list[Key]:
    """The same: those with the largest share, and so with the remainder."""
    largest = max((rows for _, rows in picked), default=0)
    return [key for key, rows in picked if rows == largest and left.get(key)]


ORDERS = {GREEDY: (greedy, behind_after_greedy), PROPORTIONAL: (proportional, behind_after_proportional)}


# ---- the partitions that are fetched while records are buffered: the two heuristics of KIP-41


def total(
    waiting: Mapping[TopicPartition, int], fetchable: Collection[TopicPartition], assigned: int, most: int
) -> Collection[TopicPartition]:
    """All of them, when fewer records are buffered than the next poll may return: KIP-41's first heuristic.

    :param waiting: buffered records, by partition, except paused partitions.
    :param fetchable: the partitions to choose from.
    :param assigned: number of assigned partitions, paused ones included.
    :param most: maximum records of one poll.
    """
    return fetchable if sum(waiting.values()) < most else ()


def share(
    waiting: Mapping[TopicPartition, int], fetchable: Collection[TopicPartition], assigned: int, most: int
) -> Collection[TopicPartition]:
    """Each one with fewer buffered records than its share of the next poll: KIP-41's second heuristic.

    Parameters as of `total`.
    """
    each = most / max(assigned, 1)
    return {partition for partition in fetchable if waiting.get(partition, 0) < each}


HEURISTICS = {TOTAL: total, SHARE: share}

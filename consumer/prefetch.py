"""Which partitions are fetched while records wait to be returned: the two heuristics of KIP-41.

Both are pure, and both fetch every partition when nothing waits. With 1,000 records of A, none of B and one record a
poll, `total` looks at B again after A's thousandth record, and `share` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from coordinator.zk.partitions import TopicPartition

TOTAL = "total"
SHARE = "share"


def total(
    waiting: Mapping[TopicPartition, int], fetchable: Collection[TopicPartition], assigned: int, most: int
) -> Collection[TopicPartition]:
    """All of them, when fewer records wait than the next poll may return: KIP-41's first heuristic.

    :param waiting: records that wait, by partition; those of paused partitions do not count.
    :param fetchable: the partitions to choose from.
    :param assigned: how many partitions there are, the paused ones too.
    :param most: records that one poll may return.
    """
    return fetchable if sum(waiting.values()) < most else ()


def share(
    waiting: Mapping[TopicPartition, int], fetchable: Collection[TopicPartition], assigned: int, most: int
) -> Collection[TopicPartition]:
    """Each one of which fewer records wait than its share of the next poll: KIP-41's second heuristic.

    Parameters as of `total`.
    """
    each = most / max(assigned, 1)
    return {partition for partition in fetchable if waiting.get(partition, 0) < each}


Heuristic = Callable[[Mapping[TopicPartition, int], Collection[TopicPartition], int, int], Collection[TopicPartition]]
HEURISTICS: dict[str, Heuristic] = {TOTAL: total, SHARE: share}

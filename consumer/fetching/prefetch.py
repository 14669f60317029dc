"""The partitions that are fetched while records are buffered: the two heuristics of KIP-41.

Both are pure, and both fetch every partition when the buffer is empty. With 1,000 records of A, none of B and one
record a poll, `total` fetches B again after A's thousandth record, and `share` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from coordinator.zk.znodes.partitions import TopicPartition

TOTAL = "total"
SHARE = "share"


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


Heuristic = Callable[[Mapping[TopicPartition, int], Collection[TopicPartition], int, int], Collection[TopicPartition]]
HEURISTICS: dict[str, Heuristic] = {TOTAL: total, SHARE: share}

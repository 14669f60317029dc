"""Range: for each topic, its partitions in order over the consumer threads in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from coordinator.zk.znodes.partitions import TopicPartition

from . import Assignment, Subscriber, in_order


class RangeAssignor:
    """Kafka's original strategy (seed 000, `rebalance` step 2; `RangeAssignor` in Kafka).

    Each topic by itself: n partitions over t threads give every thread n // t, and the first n % t one more.
    """

    name = "range"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """See `Assignor.assign`."""
        members = in_order(subscribers)
        given: dict[str, dict[str, list[TopicPartition]]] = {member.consumer: {} for member in members}
        for topic in sorted(topics):
            threads = [
                (member.consumer, member.thread(number))
                for member in members
                for number in range(member.threads.get(topic, 0))
            ]
            # Of more threads than partitions the last ones get none.
            for (consumer, thread), numbers in zip(threads, _shares(sorted(topics[topic]), len(threads)), strict=False):
                given[consumer].setdefault(thread, []).extend(TopicPartition(topic, number) for number in numbers)
        return {
            consumer: {thread: frozenset(parts) for thread, parts in threads.items()}
            for consumer, threads in given.items()
        }


def _shares(numbers: Sequence[int], threads: int) -> list[Sequence[int]]:
    """`numbers` cut into `threads` runs, the first ones longer by one where it does not divide."""
    if not threads:
        return []
    size, longer = divmod(len(numbers), threads)
    ends = [index * size + min(index, longer) for index in range(min(threads, len(numbers)) + 1)]
    return [numbers[first:last] for first, last in pairwise(ends)]

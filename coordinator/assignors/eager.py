"""Range and round-robin: partitions in order over the consumer threads in order, by topic or all together."""

from __future__ import annotations

from bisect import bisect_left
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


class RoundRobinAssignor:
    """Kafka's `RoundRobinAssignor`, over consumer threads.

    The partitions of all topics in order; each goes to the next subscribed thread after the previous one's. With equal
    subscriptions the threads differ by one partition at most.
    """

    name = "round-robin"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """See `Assignor.assign`."""
        members = in_order(subscribers)
        ring = [(member, number) for member in members for number in range(max(member.threads.values(), default=0))]
        dealt: dict[int, set[TopicPartition]] = {}
        after = 0
        for topic in sorted(topics):
            taking_part = [at for at, (member, number) in enumerate(ring) if member.threads.get(topic, 0) > number]
            if not taking_part:
                continue
            turn = bisect_left(taking_part, after)
            for number in sorted(topics[topic]):
                at = taking_part[turn % len(taking_part)]
                dealt.setdefault(at, set()).add(TopicPartition(topic, number))
                turn += 1
                after = at + 1
        assignment: dict[str, dict[str, frozenset[TopicPartition]]] = {member.consumer: {} for member in members}
        for at, parts in dealt.items():
            member, number = ring[at]
            assignment[member.consumer][member.thread(number)] = frozenset(parts)
        return assignment

"""Round-robin: all partitions in order, assigned to the consumer threads in turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from coordinator.zk.znodes.partitions import TopicPartition

from . import Assignment, Subscriber, in_order


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

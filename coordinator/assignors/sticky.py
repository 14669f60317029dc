"""Sticky: balanced first, then as little moved as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.zk.partitions import TopicPartition

from . import Assignment, Subscriber, in_order
from .balance import balanced
from .claims import claims_of
from .even import Shares, evenly


class StickyAssignor:
    """Kafka's `StickyAssignor`, over consumer threads.

    With equal subscriptions the threads differ by one partition at most, and of what may stay all that can does.
    Otherwise no partition could go from one thread to another that takes part in its topic and has two or more less,
    and nothing has moved that could go back, alone or in a circle.
    """

    name = "sticky"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """See `Assignor.assign`."""
        members = in_order(subscribers)
        wanted = [member for member in members if any(member.threads.get(topic, 0) for topic in topics)]
        claims = claims_of(wanted, topics)
        if _are_equal(wanted, topics):
            threads = [max(member.threads.get(topic, 0) for topic in topics) for member in wanted]
            partitions = [TopicPartition(topic, n) for topic in sorted(topics) for n in sorted(topics[topic])]
            shares: Shares = evenly(threads, claims, partitions) if wanted else {}
        else:
            shares = balanced(wanted, topics, claims)
        assignment: dict[str, dict[str, frozenset[TopicPartition]]] = {member.consumer: {} for member in members}
        for (number, place), parts in shares.items():
            if parts:
                assignment[wanted[place].consumer][wanted[place].thread(number)] = frozenset(parts)
        return assignment


def _are_equal(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> bool:
    """Whether every thread of every member takes part in every topic."""
    return all(len({member.threads.get(topic, 0) for topic in topics}) == 1 for member in members)

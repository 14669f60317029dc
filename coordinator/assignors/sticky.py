"""Sticky: balanced first, then with minimal moves; cooperative sticky: the same, with incremental revocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.zk.znodes.partitions import TopicPartition

from . import Assignment, Subscriber, in_order
from .balance import Shares, balanced, claims_of, evenly


class StickyAssignor:
    """Kafka's `StickyAssignor`, over consumer threads.

    With equal subscriptions the threads differ by one partition at most, with minimal moves. Otherwise no partition
    could move to a subscribed thread with two or more fewer, and none has moved that could move back, alone or in a
    cycle.
    """

    name = "sticky"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """See `Assignor.assign`."""
        members = in_order(subscribers)
        subscribed = [member for member in members if any(member.threads.get(topic, 0) for topic in topics)]
        claims = claims_of(subscribed, topics)
        if all(len({member.threads.get(topic, 0) for topic in topics}) == 1 for member in subscribed):
            threads = [max(member.threads.get(topic, 0) for topic in topics) for member in subscribed]
            partitions = [TopicPartition(topic, n) for topic in sorted(topics) for n in sorted(topics[topic])]
            shares: Shares = evenly(threads, claims, partitions) if subscribed else {}
        else:
            shares = balanced(subscribed, topics, claims)
        assignment: dict[str, dict[str, frozenset[TopicPartition]]] = {member.consumer: {} for member in members}
        for (number, place), parts in shares.items():
            if parts:
                assignment[subscribed[place].consumer][subscribed[place].thread(number)] = frozenset(parts)
        return assignment


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `CooperativeStickyAssignor`. Its rounds are the plan's turns: a moved partition starts once its previous
    owner has stopped it, and unmoved ones are fetched without a break."""

    name = "cooperative-sticky"
    is_eager = False

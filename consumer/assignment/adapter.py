"""Coordinator-side strategies as client assignors, and a view of the group for `lag` and `rack`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zk_group.coordinator import assignors
from zk_group.coordinator.assignors import Assignor, Subscriber, in_order
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import shown
from zk_group.coordinator.zk.znodes.topic_filter import GroupFilters

from .base import Assignment, ClientAssignor, Cluster, Held
from .metadata import ConsumerMetadata

log = logging.getLogger(__name__)
NOTHING = ConsumerMetadata({})


class CoordinatorStrategy(ClientAssignor):
    """A coordinator-side `Assignor` as a client assignor, with the same result."""

    def __init__(self, strategy: Assignor) -> None:
        self.name = strategy.name
        self.is_cooperative = not strategy.is_eager
        self._strategy = strategy

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        """See `ClientAssignor.assign`.

        :raises RebalanceFailed: when the strategy fails or gives an invalid assignment.
        """
        group = group_subscription(self.name, cluster, metadata)
        return to_assignments(group, assignors.assigned(self._strategy, group.members, group.topics))


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """Input of an assignor: members and topics.

    :ivar members: every member, unsubscribed ones included, in the order of strategies.
    :ivar topics: topic -> its partition numbers; each topic has a partition and a subscriber.
    :ivar racks: consumer -> its rack; empty when unknown.
    """

    members: Sequence[Subscriber]
    topics: Mapping[str, Sequence[int]]
    racks: Mapping[str, str]

    def partitions(self) -> list[TopicPartition]:
        """Every partition, in order."""
        return [TopicPartition(topic, number) for topic in sorted(self.topics) for number in sorted(self.topics[topic])]

    def pieces(self) -> list[GroupSubscription]:
        """The group in pieces without a topic in common: topics are in one piece when a member subscribes to both."""
        leads = {topic: topic for topic in self.topics}

        def root(topic: str) -> str:
            while leads[topic] != topic:
                leads[topic] = topic = leads[leads[topic]]
            return topic

        members = [member for member in self.members if member.threads]
        for member in members:
            first = root(min(member.threads))
            leads.update({root(topic): first for topic in member.threads})
        found: dict[str, tuple[list[Subscriber], dict[str, Sequence[int]]]] = {}
        for topic in sorted(leads):
            found.setdefault(root(topic), ([], {}))[1][topic] = self.topics[topic]
        for member in members:
            found[root(min(member.threads))][0].append(member)
        return [GroupSubscription(among, topics, self.racks) for among, topics in found.values()]


def group_subscription(protocol: str, cluster: Cluster, metadata: Mapping[str, bytes]) -> GroupSubscription:
    """The input of a coordinator-side strategy: wildcards resolved, topics without partitions dropped.

    A member with unreadable metadata is logged, and subscribes to nothing.
    """
    shares = {name: topic.partitions for name, topic in cluster.topics.items() if topic.partitions}
    read = {consumer: _read(protocol, consumer, metadata[consumer]) for consumer in sorted(metadata)}
    filters = GroupFilters(wildcard for subscription in read.values() for wildcard in subscription.wildcards)
    members, racks = [], {}
    for consumer, subscription in read.items():
        try:
            threads = subscription.threads_in(shares, filters)
        except BadData as error:
            threads = {}
            _log_unreadable(protocol, consumer, error)
        racks[consumer] = subscription.rack
        held, text = cluster.members.get(consumer, Held()), _text(subscription.user_data)
        has = held.running, held.generation, text, held.instance_id, held.on_thread
        members.append(Subscriber(consumer, threads, *has))
    subscribed = {topic for member in members for topic in member.threads}
    return GroupSubscription(in_order(members), {topic: shares[topic] for topic in sorted(subscribed)}, racks)


def to_assignments(group: GroupSubscription, found: assignors.Assignment) -> dict[str, Assignment]:
    """A strategy's result, for every member; threads without partitions are left out."""
    return {
        member.consumer: Assignment(
            {thread: parts for thread, parts in sorted(found.get(member.consumer, {}).items()) if parts}
        )
        for member in sorted(group.members, key=lambda member: member.consumer)
    }


def _read(protocol: str, consumer: str, data: bytes) -> ConsumerMetadata:
    try:
        return ConsumerMetadata.parse(f"metadata of {consumer}", data)
    except BadData as error:
        _log_unreadable(protocol, consumer, error)
        return NOTHING


def _log_unreadable(protocol: str, consumer: str, error: BadData) -> None:
    log.warning("ignoring unreadable metadata: consumer=%s protocol=%s reason=%s", shown(consumer), protocol, error)


def _text(user_data: bytes) -> str:
    """`user_data` as text for a coordinator-side strategy; empty for invalid UTF-8."""
    try:
        return user_data.decode("utf-8")
    except UnicodeDecodeError:
        return ""


class Threads:
    """A group's threads as numbers; topics with the same subscribed threads are of one kind.

    :ivar units: the threads, (number, member's place): every member's thread 0 comes before the second of any.
    :ivar unit_at: the inverse of `units`.
    :ivar ids: thread -> its id.
    :ivar kinds: kind -> its threads.
    :ivar kind_of: topic -> its kind.
    """

    def __init__(self, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> None:
        most = [max(member.threads.values(), default=0) for member in members]
        self.units = sorted((number, place) for place, count in enumerate(most) for number in range(count))
        self.ids = [members[place].thread(number) for number, place in self.units]
        self.unit_at = {at: unit for unit, at in enumerate(self.units)}
        self.kinds: list[list[int]] = []
        self.kind_of: dict[str, int] = {}
        known: dict[tuple[int, ...], int] = {}
        for topic in sorted(topics):
            counts = tuple(member.threads.get(topic, 0) for member in members)
            self.kind_of[topic] = kind = known.setdefault(counts, len(known))
            if kind == len(self.kinds):
                self.kinds.append([unit for unit, (number, place) in enumerate(self.units) if number < counts[place]])

    def shares(self, members: Sequence[Subscriber], seats: Mapping[TopicPartition, int]) -> assignors.Assignment:
        """A strategy's result, of the thread of each partition."""
        found: dict[str, dict[str, set[TopicPartition]]] = {member.consumer: {} for member in members}
        for part, unit in seats.items():
            found[members[self.units[unit][1]].consumer].setdefault(self.ids[unit], set()).add(part)
        return {name: {thread: frozenset(parts) for thread, parts in has.items()} for name, has in found.items()}

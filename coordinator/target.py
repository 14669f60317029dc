"""Steps 1 and 2 of the seed's `rebalance`: which topics a group wants, and who shall run which partition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .assignors import Assignor, Subscriber, checked
from .snapshot import ChannelView, Member, Snapshot
from .zk.errors import BadData
from .zk.partitions import PartitionSet, TopicPartition
from .zk.paths import GroupPaths
from .zk.patterns import TopicFilter
from .zk.ranges import MAX_PARTITION
from .zk.records import STATIC, Registration, Topic
from .zk.state import Target

OWNER_PATHS_A_SESSION = 256_000
"""Bytes of owner paths that one session may hold: a server cannot restart from a session whose end is larger than its
buffer (ZOOKEEPER-4306: 30,000 owners broke a 3.9.5, 10,000 did not)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a group shall look like.

    :ivar target: consumer -> its target, for every live member, also those that shall be idle.
    :ivar topics: the ids of the topics that have a subscriber.
    :ivar left_out: member, topic or partition -> why it has no part.
    """

    target: Mapping[str, Target]
    topics: Mapping[str, str]
    left_out: Mapping[str, str]


def threads_of(registration: Registration, topics: Mapping[str, Topic]) -> dict[str, int]:
    """Topic -> threads of one member, with a wildcard resolved against the topics that exist.

    :raises BadData: when the pattern does not compile.
    """
    if registration.pattern == STATIC:
        return dict(registration.subscription)
    ((text, threads),) = registration.subscription.items()
    topic_filter = TopicFilter(registration.pattern, text)
    return {name: threads for name in topics if topic_filter.allows(name)}


def is_live(member: Member, view: ChannelView | None) -> bool:
    """Whether the registered incarnation is the one that the channel shows, not ended."""
    return (
        member.registration is not None
        and view is not None
        and view.channel is not None
        and view.channel.is_live
        and view.channel.incarnation == member.registration.incarnation
    )


def wanted(snapshot: Snapshot, live: Mapping[str, Registration], assignor: Assignor) -> Wanted:
    """The assignment of every assignable partition to the live members.

    :raises RebalanceFailed: when the assignor does not keep its promise.
    """
    left_out: dict[str, str] = {}
    subscribers = []
    for consumer in sorted(live):
        try:
            threads = threads_of(live[consumer], snapshot.topics)
        except BadData as error:
            left_out[consumer] = str(error)
            threads = {}
        view = snapshot.channels[consumer]
        generation = view.channel.generation if view.channel else 0
        subscribers.append(Subscriber(consumer, threads, view.running, generation, live[consumer].user_data))
    topics = _assignable(subscribers, snapshot.topics, left_out)
    shares = {name: topic.partitions for name, topic in topics.items()}
    assigning = [_only(subscriber, topics) for subscriber in subscribers]
    assignment = assignor.assign(assigning, shares)
    checked(assignor.name, assignment, assigning, shares)
    target = {
        consumer: Target(live[consumer].incarnation, _bounded(snapshot.group, assignment.get(consumer, {}), left_out))
        for consumer in sorted(live)
    }
    return Wanted(target, {name: topic.id for name, topic in sorted(topics.items())}, left_out)


def _assignable(
    subscribers: Iterable[Subscriber], topics: Mapping[str, Topic], left_out: dict[str, str]
) -> dict[str, Topic]:
    found = {}
    for name in sorted({name for subscriber in subscribers for name in subscriber.threads}):
        if name not in topics:
            left_out[name] = "no such topic (yet)"
        elif not topics[name].partitions:
            left_out[name] = "the topic has no partitions"
        else:
            found[name] = topics[name]
    return found


def _only(subscriber: Subscriber, topics: Mapping[str, Topic]) -> Subscriber:
    threads = {topic: count for topic, count in subscriber.threads.items() if topic in topics}
    return Subscriber(subscriber.consumer, threads, subscriber.running, subscriber.generation, subscriber.user_data)


def _bounded(group: str, threads: Mapping[str, PartitionSet], left_out: dict[str, str]) -> dict[str, PartitionSet]:
    """`threads` cut to what one session may own; what is over is left out with the reason."""
    paths = GroupPaths(group)
    room = OWNER_PATHS_A_SESSION
    topics = {part.topic for parts in threads.values() for part in parts}
    longest = max((len(paths.owner(topic, MAX_PARTITION)) + 4 for topic in topics), default=0)
    if longest * sum(len(parts) for parts in threads.values()) <= room:
        return {thread: parts for thread, parts in threads.items() if parts}
    kept: dict[str, set[TopicPartition]] = {}
    for thread, partition in sorted((thread, part) for thread, parts in threads.items() for part in parts):
        room -= len(paths.owner(*partition)) + 4
        if room >= 0:
            kept.setdefault(thread, set()).add(partition)
        else:
            left_out[str(partition)] = "its consumer's session holds all the owner znodes that ZooKeeper bears"
    return {thread: frozenset(parts) for thread, parts in kept.items()}

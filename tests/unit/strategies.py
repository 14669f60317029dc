"""Groups in a line each, for tests of assignment strategies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from zk_group.coordinator.assignors import Assignment, Assignor, RangeAssignor, RoundRobinAssignor, Subscriber, assigned
from zk_group.coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition, partition_set
from zk_group.coordinator.zk.znodes.ranges import decode

STRATEGIES: dict[str, Assignor] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}
STICKY = ("sticky", "cooperative-sticky")


def parts(text: str) -> PartitionSet:
    """`t1:0-2,5 t2:0` as partitions."""
    return partition_set({topic: decode(numbers) for topic, _, numbers in (one.partition(":") for one in text.split())})


def member(name: str, topics: str, owns: str = "", generation: int = 0, instance: str = "") -> Subscriber:
    """One thread for each of `topics`."""
    return Subscriber(name, dict.fromkeys(topics.split(), 1), parts(owns), generation, instance_id=instance)


def numbered(topics: str) -> dict[str, range]:
    """`t1:3 t2:2` as topics with so many partitions."""
    return {topic: range(int(count)) for topic, _, count in (one.partition(":") for one in topics.split())}


def known_to(members: Iterable[Subscriber], topics: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The topics that the coordinator passes to a strategy: subscribed ones only."""
    wanted = {topic for each in members for topic, threads in each.threads.items() if threads}
    return {topic: numbers for topic, numbers in topics.items() if topic in wanted}


def given(strategy: str, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
    """The assignment of a strategy, checked against its contract."""
    known = known_to(members, topics)
    there = [replace(one, threads={t: n for t, n in one.threads.items() if t in known}) for one in members]
    return assigned(STRATEGIES[strategy], there, known)


def by_consumer(assignment: Assignment) -> dict[str, PartitionSet]:
    """Without the threads."""
    return {consumer: frozenset().union(*threads.values()) for consumer, threads in assignment.items()}


def shares(strategy: str, members: Sequence[Subscriber], topics: str) -> dict[str, PartitionSet]:
    """Consumer -> its partitions, for `t1:3 t2:2`."""
    return by_consumer(given(strategy, members, numbered(topics)))


def after(members: Iterable[Subscriber], assignment: Assignment, generation: int = 1) -> list[Subscriber]:
    """The members once they run their assignment, as read by a coordinator without a last target."""
    runs = by_consumer(assignment)
    return [replace(one, running=runs.get(one.consumer, frozenset()), generation=generation) for one in members]


def with_running(members: Iterable[Subscriber], assignment: Assignment) -> list[Subscriber]:
    """The members with the last assignment, which may not be running yet."""
    return [
        replace(
            one, on_thread={part: thread for thread, has in assignment.get(one.consumer, {}).items() for part in has}
        )
        for one in members
    ]


def loads(members: Iterable[Subscriber], assignment: Assignment) -> dict[str, int]:
    """Thread -> how many partitions."""
    return {
        thread: len(assignment.get(one.consumer, {}).get(thread, ())) for one in members for thread in one.thread_ids()
    }


def improvable(members: Sequence[Subscriber], assignment: Assignment) -> list[tuple[TopicPartition, str, str]]:
    """Partitions that could go from a thread to one that has two or more less (Kafka's `verifyValidityAndBalance`)."""
    sizes = loads(members, assignment)
    takers = [(number, thread, one.threads) for one in members for number, thread in enumerate(one.thread_ids())]
    return [
        (part, giver, taker)
        for threads in assignment.values()
        for giver, has in threads.items()
        for part in has
        for number, taker, topics in takers
        if number < topics.get(part.topic, 0) and sizes[giver] - sizes[taker] >= 2
    ]

"""Assignment strategies: pure functions from members and topics to an assignment. Range and round-robin are here.

Imports the records of `zk`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

from zk_group.coordinator.zk.errors import RebalanceFailed
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import error_text

Assignment = Mapping[str, Mapping[str, PartitionSet]]
"""Consumer -> thread -> partitions."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member, as input of an assignor.

    :ivar threads: topic -> number of threads; wildcards are resolved.
    :ivar running: its current partitions.
    :ivar generation: the generation that assigned them.
    :ivar user_data: opaque bytes of the consumer for its assignor.
    :ivar instance_id: of a static member; empty for a dynamic one.
    :ivar on_thread: its last assignment, partition -> thread. It may not run yet, and `running` may differ: an assignor
        with the same result in every turn of a rebalance prefers this over `running`.
    """

    consumer: str
    threads: Mapping[str, int]
    running: PartitionSet = NONE
    generation: int = 0
    user_data: str = ""
    instance_id: str = ""
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)

    def thread(self, number: int) -> str:
        """The id of one of its threads, as in Kafka 0.8: consumer, dash, number from 0."""
        return f"{self.consumer}-{number}"

    def thread_ids(self) -> list[str]:
        """The ids of all its threads; thread k consumes a topic that has more than k threads."""
        return [self.thread(number) for number in range(max(self.threads.values(), default=0))]


def in_order(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """The members in the order of Kafka's strategies: static ones by instance id, then the others by name."""
    return sorted(subscribers, key=lambda one: (not one.instance_id, one.instance_id, one.consumer))


class Assignor(Protocol):
    """A strategy. Pure and deterministic, independent of input order; several threads may use one at once.

    :ivar name: as in consumers' `protocols`.
    :ivar is_eager: whether each member stops all its partitions before it starts any.
    """

    name: str
    is_eager: bool

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """Assign all partitions to the subscribers.

        :param topics: topic -> its partition numbers; every topic has a subscriber.
        """


def assigned(assignor: Assignor, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
    """An assignor's result, checked against the contract.

    :raises RebalanceFailed: when it breaks the contract, or raises.
    """
    try:
        assignment = assignor.assign(subscribers, MappingProxyType(topics))
    except (Exception, SystemExit) as error:  # it may be third-party code: only its own group fails
        raise RebalanceFailed(f"assignor {assignor.name} failed: {error_text(error)}") from error
    try:
        checked(assignor.name, assignment, subscribers, topics)
    except RebalanceFailed:
        raise
    except Exception as error:
        raise RebalanceFailed(f"assignor {assignor.name} gives what is no assignment: {error_text(error)}") from error
    return assignment


def checked(
    name: str, assignment: Assignment, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]
) -> None:
    """Check an assignor's result against the contract.

    :raises RebalanceFailed: when it has an unknown member or thread, assigns a partition twice or to a thread without a
        part in its topic, or omits one.
    """
    known = {subscriber.consumer: subscriber for subscriber in subscribers}
    seen: set[TopicPartition] = set()
    for consumer, threads in assignment.items():
        if consumer not in known:
            raise RebalanceFailed(f"assignor {name} names {shown(consumer)}, which is no member")
        member = known[consumer]
        numbers = {thread: number for number, thread in enumerate(member.thread_ids())}
        for thread, parts in threads.items():
            if thread not in numbers:
                raise RebalanceFailed(f"assignor {name} names {shown(thread)}, which is no thread of {consumer}")
            if not all(isinstance(part, TopicPartition) and type(part.partition) is int for part in parts):
                raise RebalanceFailed(f"assignor {name} gives {thread} something that is no TopicPartition")
            if seen & parts or any(part.topic not in member.threads for part in parts):
                raise RebalanceFailed(f"assignor {name} gives {consumer} a partition twice or without a subscription")
            wrong = min((part for part in parts if member.threads[part.topic] <= numbers[thread]), default=None)
            if wrong is not None:
                raise RebalanceFailed(
                    f"assignor {name} gives {wrong} to {thread}, but {consumer} has {member.threads[wrong.topic]} "
                    f"threads for {wrong.topic}"
                )
            seen |= parts
    expected = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    if seen != expected:
        raise RebalanceFailed(f"assignor {name} leaves out or invents {len(seen ^ expected)} partitions")


# ---- partitions in order over the consumer threads in order, by topic or all together


class RangeAssignor:
    """Kafka's original strategy (sources D23; `RangeAssignor` in Kafka).

    Each topic by itself: n partitions over t threads give every thread n // t, and the first n % t one more.
    """

    name = "range"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
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
    """`numbers` cut into `threads` runs, the first ones longer by one where `threads` does not divide them."""
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

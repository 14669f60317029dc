"""Assignment strategies: pure functions from members and topics to an assignment.

Imports the records of `zk`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.values import shown
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import error_text

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
        whose result shall be the same in every turn of a rebalance prefers this over `running`.
    """

    consumer: str
    threads: Mapping[str, int]
    running: PartitionSet = NONE
    generation: int = 0
    user_data: str = ""
    instance_id: str = ""
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)

    def thread(self, number: int) -> str:
        """The id of one of its threads, as in the seed: consumer, dash, number from 0."""
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

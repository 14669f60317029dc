"""Assignment strategies: pure functions from members and topics to who runs what, one file each."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.names import printable, shown
from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition

Assignment = Mapping[str, Mapping[str, PartitionSet]]
"""Consumer -> thread -> partitions."""

LONGEST_FAULT = 300
"""Characters that are kept of what an assignor says when it fails."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member, as an assignor sees it.

    :ivar threads: topic -> how many threads; wildcards are resolved.
    :ivar running: what it runs now.
    :ivar generation: in which generation it got that.
    :ivar user_data: what the consumer wants its assignor to know.
    :ivar instance_id: of a static consumer; empty for a dynamic one.
    :ivar on_thread: what it was to run by the last assignment, and on which thread. It may run other things by now, or
        nothing: they are stopped and not started yet. Whoever wants the same answer in every turn of a rebalance goes
        by this first.
    """

    consumer: str
    threads: Mapping[str, int]
    running: PartitionSet = NONE
    generation: int = 0
    user_data: str = ""
    instance_id: str = ""
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)

    def thread(self, number: int) -> str:
        """The id of one of its threads, as the seed writes them: consumer, dash, number from 0."""
        return f"{self.consumer}-{number}"

    def thread_ids(self) -> list[str]:
        """The ids of all its threads; the one at k takes part in a topic for which there are more than k."""
        # `range` is a module of this package, and so a name in here once that is imported.
        return [self.thread(number) for number in builtins.range(max(self.threads.values(), default=0))]


def in_order(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    """The order that strategies go by, as Kafka's do: static consumers by instance id, then the others by name."""
    return sorted(subscribers, key=lambda one: (not one.instance_id, one.instance_id, one.consumer))


class Assignor(Protocol):
    """A strategy. Pure and deterministic, blind to the order of its input; several threads may use one at once.

    :ivar name: as consumers list it in `protocols`.
    :ivar is_eager: whether everything stops before anything starts.
    """

    name: str
    is_eager: bool

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """Who runs what.

        :param topics: topic -> its partition numbers; every topic here has a subscriber.
        """


def assigned(assignor: Assignor, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
    """What an assignor makes of a group, once it has kept its promise.

    :raises RebalanceFailed: when it has not, or has raised anything.
    """
    try:
        assignment = assignor.assign(subscribers, MappingProxyType(topics))
    except (Exception, SystemExit) as error:  # it may be a third party's: only its own group may suffer
        raise RebalanceFailed(f"assignor {assignor.name} failed: {told(error)}") from error
    try:
        checked(assignor.name, assignment, subscribers, topics)
    except RebalanceFailed:
        raise
    except Exception as error:
        raise RebalanceFailed(f"assignor {assignor.name} gives what is no assignment: {told(error)}") from error
    return assignment


def told(error: BaseException) -> str:
    """What an error of somebody else's says: its kind and its message, bounded and printable."""
    try:
        text = printable(str(error)[:LONGEST_FAULT])
    except Exception:  # noqa: BLE001  somebody's own `__str__`
        text = ""
    kind = printable(type(error).__name__[:LONGEST_FAULT])
    return f"{kind}: {text[:LONGEST_FAULT]}" if text else kind


def checked(
    name: str, assignment: Assignment, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]
) -> None:
    """Hold an assignor to its promise.

    :raises RebalanceFailed: when it names a stranger or a thread that is none, hands a partition out twice or to a
        thread without a part in its topic, or leaves one out.
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
    wanted = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    if seen != wanted:
        raise RebalanceFailed(f"assignor {name} leaves out or invents {len(seen ^ wanted)} partitions")

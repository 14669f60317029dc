"""Assignment strategies: pure functions from members and topics to who runs what, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition

Assignment = Mapping[str, Mapping[str, PartitionSet]]
"""Consumer -> thread -> partitions."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member, as an assignor sees it.

    :ivar threads: topic -> how many threads; wildcards are resolved.
    :ivar running: what it runs now.
    :ivar generation: in which generation it got that.
    :ivar user_data: what the consumer wants its assignor to know.
    """

    consumer: str
    threads: Mapping[str, int]
    running: PartitionSet = NONE
    generation: int = 0
    user_data: str = ""

    def thread(self, number: int) -> str:
        """The id of one of its threads, as the seed writes them: consumer, dash, number from 0."""
        return f"{self.consumer}-{number}"


class Assignor(Protocol):
    """A strategy. Pure and deterministic, blind to the order of its input.

    :ivar name: as consumers list it in `protocols`.
    :ivar is_eager: whether everything stops before anything starts.
    """

    name: str
    is_eager: bool

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        """Who runs what.

        :param topics: topic -> its partition numbers; every topic here has a subscriber.
        """


def checked(
    name: str, assignment: Assignment, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]
) -> None:
    """Hold an assignor to its promise.

    :raises RebalanceFailed: when it names a stranger, hands a partition out twice, or leaves one out.
    """
    known = {subscriber.consumer: subscriber for subscriber in subscribers}
    seen: set[TopicPartition] = set()
    for consumer, threads in assignment.items():
        if consumer not in known:
            raise RebalanceFailed(f"assignor {name} names {consumer}, which is no member")
        for parts in threads.values():
            if seen & parts or any(part.topic not in known[consumer].threads for part in parts):
                raise RebalanceFailed(f"assignor {name} gives {consumer} a partition twice or without a subscription")
            seen |= parts
    wanted = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    if seen != wanted:
        raise RebalanceFailed(f"assignor {name} leaves out or invents {len(seen ^ wanted)} partitions")

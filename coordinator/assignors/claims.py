"""Claims of members on partitions: the input of sticky strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.zk.znodes.partitions import TopicPartition

from . import Subscriber

ANY = -1
"""The thread of a claim for any thread of its member."""


class Claim(NamedTuple):
    """A claim of a member, by its place in the order, and of one of its threads."""

    member: int
    thread: int


Claims = dict[TopicPartition, Claim]


def claims_of(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Claims:
    """Partition -> its claim.

    The last assignment has precedence, though it may not have been carried out yet: the turns of one rebalance come to
    the same result. Any other running partition belongs to the member with the highest generation; a tie voids the
    claim.
    """
    there = {topic: frozenset(numbers) for topic, numbers in topics.items()}
    planned: dict[TopicPartition, Claim | None] = {}
    running: dict[TopicPartition, tuple[int, Claim | None]] = {}
    for place, member in enumerate(members):
        threads = {thread: number for number, thread in enumerate(member.thread_ids())}
        for part, thread in member.on_thread.items():
            if part.partition in there.get(part.topic, ()) and (count := member.threads.get(part.topic, 0)):
                number = threads.get(thread, ANY)
                claim = Claim(place, number if number < count else ANY)
                planned[part] = None if part in planned else claim
        for part in member.running:
            if part.partition in there.get(part.topic, ()) and member.threads.get(part.topic, 0):
                generation = running[part][0] if part in running else None
                if generation is None or member.generation > generation:
                    running[part] = member.generation, Claim(place, ANY)
                elif member.generation == generation:
                    running[part] = generation, None
    found = {part: claim for part, claim in planned.items() if claim is not None}
    for part, (_, ran) in running.items():
        if ran is not None and part not in planned:
            found[part] = ran
    return found


def by_number(part: TopicPartition) -> tuple[int, str]:
    """The order in which partitions are kept under a quota: low numbers of every topic first, as in Kafka."""
    return part.partition, part.topic

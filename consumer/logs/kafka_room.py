"""Who gives way when what comes of Kafka's partitions fills the room that there is for it.

Records of all partitions come out of librdkafka in one queue. Those of a partition that nobody asks for just then are
kept until it is asked for: fetched again, they would be taken from the broker twice. But they must not stand before
those of another for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from .errors import LogError
from .kafka import LATEST, KafkaClient, Pending
from .kafka_partition import Partition, Room

STARVED_S = 1.0
"""Who asks and gets nothing waits so long before others give way: mostly these are asked for themselves till then."""


class Mark(NamedTuple):
    """A moment: seconds in which somebody has fetched, and bytes that had come."""

    at: float
    came: int


class Starved:
    """Partitions that are asked for and get nothing, while others do, though Kafka has records of them.

    What stands before theirs in librdkafka's queue is one reason: nobody takes it out while the buffer is full. The
    other is that nothing of them comes into it: whenever it was full, librdkafka begins with the same partitions anew,
    and the first of them fill it, as long as the reader is slower than the brokers.

    :param room: of the buffer.
    :param bound: bytes with which it is full: twice of what the queue holds.
    """

    def __init__(self, room: Room, bound: int) -> None:
        self._room = room
        self._bound = bound
        self._since: dict[Partition, Mark] = {}
        self._behind: dict[Partition, Mark] = {}
        self._asked: Pending[tuple[str, int], int | LogError] | None = None
        self._not_before = float("-inf")

    def forget(self, part: Partition) -> None:
        """It has been given something, or is held no more."""
        self._since.pop(part, None)
        self._behind.pop(part, None)

    def note(self, part: Partition, now: float) -> int | None:
        """Such a partition was asked for: whether others must give way.

        They must when it waits in vain, Kafka was found to have records of it, and it has waited in vain since then: a
        record that is new has come by then.

        :param now: seconds in which somebody has fetched.
        :returns: what had come when it was found so: who has been given something since then stands before it.
        """
        self._since.setdefault(part, Mark(now, self._room.came))
        mark = self._behind.get(part)
        if mark is None or not self._is_long_ago(mark, now):
            return None
        self._behind.clear()  # it is the turn of all of them
        return mark.came

    def inquire(self, client: KafkaClient, now: float) -> None:
        """Ask the brokers for the ends of such partitions, once in `STARVED_S` at most, and note what they said."""
        if self._asked is None and now >= self._not_before:
            waiting = [part for part, since in self._since.items() if self._is_long_ago(since, now)]
            self._not_before = now + STARVED_S
            if waiting:
                self._asked = client.offsets({(part.topic, part.number): LATEST for part in waiting})
        elif self._asked is not None and self._asked.is_done:
            ends, self._asked = dict(self._asked.results()), None
            for part in self._since:
                end = ends.get((part.topic, part.number))
                if isinstance(end, int) and end > part.tail:
                    self._behind.setdefault(part, Mark(now, self._room.came))
                elif end is not None:
                    self._behind.pop(part, None)
                    self._since[part] = Mark(now, self._room.came)  # it has waited for nothing so far

    def _is_long_ago(self, mark: Mark, now: float) -> bool:
        """Whether what stood in the queue has come since then, or cannot, as the buffer is full."""
        has_moved_on = self._room.came - mark.came >= self._bound or self._room.size >= self._bound
        return has_moved_on and now - mark.at >= STARVED_S


def before(parts: Collection[Partition], asked: Partition, since: int) -> list[Partition]:
    """Of the partitions that are fetched those that hold something, or have been given it `since`, but for `asked`."""
    others = [part for part in parts if part is not asked and part.is_assigned]
    return [part for part in others if part.size or part.came > since]


def pack(parts: Collection[Partition], room: Room, bound: int) -> None:
    """Copy what waits out of larger batches, once these hold `bound` bytes or more that nobody waits for."""
    if room.held >= room.size + bound:
        for part in parts:
            part.pack()


def make_room(parts: Collection[Partition], room: Room, bound: int) -> list[Partition]:
    """Drop what is kept of partitions that are fetched no more, until less than `bound` bytes wait.

    Always the newest of the one that has most: what is asked for next is the oldest, and each keeps its share.

    :returns: the partitions of which nothing is left.
    """
    kept = [part for part in parts if not part.is_assigned and part.size]
    emptied = []
    while room.size >= bound and kept:
        most = max(kept, key=lambda part: part.size)
        most.drop_newest()
        if most.newest < 0:
            emptied.append(most)
        if not most.size:
            kept.remove(most)
    return emptied

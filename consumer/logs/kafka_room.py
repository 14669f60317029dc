"""Who gives way when what has come of Kafka's partitions fills the room that there is for it.

Records of all partitions come out of librdkafka in one queue. Those of a partition that nobody asks for just then are
kept until it is asked for: fetched again, they would be taken from the broker twice. But they must not stand before
those of another for ever.
"""

from __future__ import annotations

from collections.abc import Collection

from .errors import LogError
from .kafka import LATEST, KafkaClient, Pending
from .kafka_partition import Partition, Room

STARVED_S = 1.0
"""Who asks and gets nothing waits so long before others give way: mostly these are asked for themselves till then."""


class Starved:
    """Partitions that are asked for and have nothing, while the buffer is full: of which of them Kafka has more.

    :param room: of the buffer.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._since: dict[Partition, tuple[float, int]] = {}
        self._asked: Pending[tuple[str, int], int | LogError] | None = None
        self._ends: dict[tuple[str, int], int | LogError] = {}
        self._not_before = float("-inf")

    def clear(self) -> None:
        """librdkafka's queue was empty: nothing stands before anything."""
        self._since.clear()
        self._ends.clear()

    def forget(self, part: Partition) -> None:
        """It has been given something, or is held no more."""
        self._since.pop(part, None)

    def note(self, client: KafkaClient, part: Partition, now: float, queue_bytes: int) -> bool:
        """Such a partition was asked for: whether records of it must stand behind those of others.

        The brokers are asked for its end: that it may have some is no reason to give anything up.

        :param now: seconds in which somebody has fetched.
        :param queue_bytes: what may stand before it: once so much has come, it is as if it had just begun to ask.
        """
        since, came = self._since.setdefault(part, (now, self._room.came))
        if self._room.came - came >= queue_bytes:
            self._since[part] = (now, self._room.came)
            return False
        if now - since < STARVED_S:
            return False
        if self._asked is None:
            if now >= self._not_before:
                self._asked = client.offsets({(each.topic, each.number): LATEST for each in self._since})
                self._not_before = now + STARVED_S
        elif self._asked.is_done:
            self._ends, self._asked = dict(self._asked.results()), None
        end = self._ends.get((part.topic, part.number))
        return isinstance(end, int) and end > part.tail


def crowding(parts: Collection[Partition], asked: Partition, bound: int) -> list[Partition]:
    """Of the partitions that are fetched those that hold their share of `bound` bytes or more, but for `asked`."""
    share = bound / max(1, len(parts))
    return [part for part in parts if part is not asked and part.is_assigned and part.size >= share]


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

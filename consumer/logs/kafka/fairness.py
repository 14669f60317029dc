"""Fairness and starvation between Kafka's partitions when the buffer is full.

Records of all partitions come out of librdkafka in one queue. Records of a partition that is not fetched at the moment
are buffered: dropped, they would be requested from the broker twice. But they must not starve other partitions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..errors import LogError
from .client import LATEST, KafkaClient, Pending
from .partition import BufferUsage, Partition

STARVED_S = 1.0
"""Seconds of starvation before other partitions give way: mostly those are fetched within that time."""


class Moment(NamedTuple):
    """A moment: seconds in which a fetcher has fetched, and bytes that had come."""

    at: float
    came: int


class StarvationDetector:
    """Detects starved partitions: fetched without a result, while others get records, though Kafka has records of them.

    Either records of others block librdkafka's queue, while the buffer is full; or theirs do not enter the queue: after
    it was full, librdkafka begins again with the same partitions, and the first ones fill it, as long as the reader is
    slower than the brokers.

    :param usage: usage of the buffer.
    :param bound: bytes of a full buffer: twice the queue's.
    """

    def __init__(self, usage: BufferUsage, bound: int) -> None:
        self._room = usage
        self._bound = bound
        self._since: dict[Partition, Moment] = {}
        self._behind: dict[Partition, Moment] = {}
        self._asked: Pending[tuple[str, int], int | LogError] | None = None
        self._not_before = float("-inf")

    def forget(self, part: Partition) -> None:
        """A partition has got records, or is dropped."""
        self._since.pop(part, None)
        self._behind.pop(part, None)

    def note(self, part: Partition, now: float) -> int | None:
        """A partition was fetched without a result: decide whether others must give way.

        They must when it starves, Kafka was found to have records of it, and it has starved since then: new records
        would have arrived by then.

        :param now: seconds with fetches.
        :returns: the bytes received when it was found to starve, else None; partitions with records since then compete.
        """
        self._since.setdefault(part, Moment(now, self._room.came))
        mark = self._behind.get(part)
        if mark is None or not self._is_long_ago(mark, now):
            return None
        self._behind.clear()  # one relief is for all of them
        return mark.came

    def inquire(self, client: KafkaClient, now: float) -> None:
        """Look up the end offsets of starved partitions, at most once in `STARVED_S`, and note the results."""
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
                    self._behind.setdefault(part, Moment(now, self._room.came))
                elif end is not None:
                    self._behind.pop(part, None)
                    self._since[part] = Moment(now, self._room.came)  # it has waited for nothing so far

    def _is_long_ago(self, mark: Moment, now: float) -> bool:
        """Whether what stood in the queue has come since then, or cannot, as the buffer is full."""
        has_moved_on = self._room.came - mark.came >= self._bound or self._room.size >= self._bound
        return has_moved_on and now - mark.at >= STARVED_S


def competing(parts: Collection[Partition], asked: Partition, since: int) -> list[Partition]:
    """Assigned partitions with buffered records, or with records `since`, except `asked`."""
    others = [part for part in parts if part is not asked and part.is_assigned]
    return [part for part in others if part.size or part.came > since]


def pack(parts: Collection[Partition], usage: BufferUsage, bound: int) -> None:
    """Copy buffered slices out of larger batches, once those hold `bound` bytes or more without a use."""
    if usage.held >= usage.size + bound:
        for part in parts:
            part.pack()


def make_room(parts: Collection[Partition], usage: BufferUsage, bound: int) -> list[Partition]:
    """Drop buffered records of unassigned partitions, until less than `bound` bytes are buffered.

    Always the newest records of the largest partition: the oldest are fetched next, and each partition keeps a share.

    :returns: the partitions without buffered records.
    """
    kept = [part for part in parts if not part.is_assigned and part.size]
    emptied = []
    while usage.size >= bound and kept:
        most = max(kept, key=lambda part: part.size)
        most.drop_newest()
        if most.newest < 0:
            emptied.append(most)
        if not most.size:
            kept.remove(most)
    return emptied

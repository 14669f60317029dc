"""Records whose topic's id is not confirmed yet: a queue for each topic, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ...types import Fetch
from ..columns import fitting_rows
from .partition import Failure, Partition


class Entry(NamedTuple):
    """What a poll of librdkafka's queue has brought of a partition: records, or what keeps it from having some."""

    poll: int
    part: Partition
    found: Fetch | Failure
    size: int


class UnconfirmedQueue:
    """Entries until their confirmation.

    :param verified: the last poll whose records of a partition are confirmed, by its topic.
    :ivar size: bytes of all records.
    """

    def __init__(self, verified: Callable[[Partition], int]) -> None:
        self._verified = verified
        self._queues: dict[str, deque[Entry]] = {}
        self.size = 0

    @property
    def newest(self) -> dict[str, int]:
        """Topic -> the poll of its newest entry."""
        return {topic: queue[-1].poll for topic, queue in self._queues.items()}

    @property
    def has_confirmed(self) -> bool:
        """Whether there is a confirmed entry."""
        return any(queue[0].poll <= self._verified(queue[0].part) for queue in self._queues.values())

    def add(self, poll: int, part: Partition, found: Fetch | Failure) -> int:
        """Append; returns the bytes of its records."""
        size = found.nbytes if isinstance(found, Fetch) else 0
        self._queues.setdefault(part.topic, deque()).append(Entry(poll, part, found, size))
        self.size += size
        return size

    def drop(self, parts: Collection[Partition], after: int = -1) -> None:
        """Drop entries of these partitions, of polls later than `after`: they are fetched again."""
        dropped = set(parts)
        for part in parts:
            part.tail = part.position
        for topic in {part.topic for part in parts} & self._queues.keys():
            kept = deque[Entry]()
            for entry in self._queues.pop(topic):
                if entry.part in dropped and entry.poll > after:
                    self.size -= entry.size
                    continue
                kept.append(entry)
                if entry.part in dropped and isinstance(entry.found, Fetch):
                    entry.part.tail = entry.found.next
            if kept:
                self._queues[topic] = kept

    def take(self, room: int) -> Iterator[Entry]:
        """Confirmed entries of up to `room` bytes, but one record at least; the next call begins with other topics."""
        for topic in list(self._queues):
            queue = self._queues[topic]
            while queue and room > 0 and queue[0].poll <= self._verified(queue[0].part):
                entry = queue.popleft()
                self.size -= entry.size
                if entry.size > room and isinstance(entry.found, Fetch):
                    entry = self._cut(queue, entry, entry.found, room)
                room -= max(1, entry.size)
                yield entry
            del self._queues[topic]
            if queue:
                self._queues[topic] = queue
            if room <= 0:
                break

    def _cut(self, queue: deque[Entry], entry: Entry, fetch: Fetch, room: int) -> Entry:
        """The first rows of an entry; the rest stays in the queue."""
        (batch,) = fetch.batches
        rows = max(1, fitting_rows(batch, room, batch.num_rows))
        if rows == batch.num_rows:
            return entry
        following = batch.column("offset")[rows].as_py()
        rest = Fetch(fetch.partition, fetch.topic_id, following, fetch.next, [batch.slice(rows)])
        queue.appendleft(entry._replace(found=rest, size=rest.nbytes))
        self.size += rest.nbytes
        first = Fetch(fetch.partition, fetch.topic_id, fetch.first, following, [batch.slice(0, rows)])
        return entry._replace(found=first, size=first.nbytes)

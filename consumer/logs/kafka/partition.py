"""The state of assigned partitions of Kafka, their received records, and fairness between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum, auto
from typing import NamedTuple

import pyarrow as pa

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from ..base import Fetch, LogError, OffsetAndTimestamp, fitting_rows
from .client import CORRUPT, DENIED, OUT_OF_RANGE, KafkaClient, RecordRun, Signal
from .requests import LATEST, Pending

RETRY_S = 1.0
SLOW_RETRY_S = 10.0

STARVED_S = 1.0
"""Minimum length of a round, interval of requests for end offsets, and time without records that ends a yielding."""


class FetchState(Enum):
    """What becomes of a partition's records.

    WAITING     no client, or no such topic yet: assigned when both are there
    ASSIGNED    librdkafka fetches it
    YIELDING    has got more than its share: unassigned until the starved ones have had theirs
    FAILED      cannot be fetched: unassigned, and assigned again at `retry_at`
    RELEASED    over: records that still arrive are dropped
    """

    WAITING = auto()
    ASSIGNED = auto()
    YIELDING = auto()
    FAILED = auto()
    RELEASED = auto()


class Partition:
    """One assigned partition.

    :ivar position: the offset of the next record that is returned; another client begins there.
    :ivar tail: the offset of the next record that librdkafka returns; those between wait for their confirmation.
    :ivar retry_at: when a `FAILED` one is assigned again.
    """

    def __init__(self, key: TopicPartition, topic_id: str, position: int) -> None:
        self.key = key
        self.topic, self.number = key
        self.topic_id = topic_id
        self.position = self.tail = position
        self.state = FetchState.WAITING
        self.retry_at = float("-inf")

    @property
    def is_assigned(self) -> bool:
        return self.state is FetchState.ASSIGNED

    def received(self, run: RecordRun) -> Fetch | None:
        """The fetch of received records; None when all of them are here already, as after a new beginning."""
        batch = run.batch
        if run.first < self.tail:
            offsets = batch.column("offset").to_pylist()
            batch = batch.slice(next((row for row, offset in enumerate(offsets) if offset >= self.tail), len(offsets)))
            if not batch.num_rows:
                return None
        return self._moved(run.next, [batch])

    def ended(self, offset: int) -> Fetch | None:
        """The fetch of the offsets before the partition's end, which have no record (markers, aborted records)."""
        return self._moved(offset, []) if offset > self.tail else None

    def _moved(self, following: int, batches: list[pa.RecordBatch]) -> Fetch:
        fetch = Fetch(self.key, self.topic_id, self.tail, following, batches)
        self.tail = following
        return fetch


class Failure(NamedTuple):
    """A partition's error in the order of its records: it holds once these have been returned.

    :ivar error: None when the broker does not have the offset; whether it is out of range is looked up when its turn
        comes.
    :ivar retry_s: seconds after which the partition is assigned again; None when librdkafka continues by itself.
    """

    error: LogError | None
    retry_s: float | None

    @classmethod
    def of(cls, signal: Signal) -> Failure:
        """The error of a partition with a signal, but for `END` and `UNKNOWN`."""
        place = f"{signal.topic}-{signal.partition}"
        if signal.kind == OUT_OF_RANGE:
            return cls(None, RETRY_S)
        what = f"{place} cannot be read, tried again"
        if signal.kind == DENIED:
            what = f"Kafka does not let this user read topic {signal.topic}"
        elif signal.kind == CORRUPT:
            what = f"the records of {place} from offset {signal.offset} on are damaged, asked for again"
        return cls(LogError(f"{what}: {signal.text}"), SLOW_RETRY_S if signal.kind in (DENIED, CORRUPT) else None)


class Entry(NamedTuple):
    """What a poll of librdkafka's queue has brought of a partition: records, or what keeps it from having some."""

    poll: int
    part: Partition
    found: Fetch | Failure
    size: int


class UnconfirmedQueue:
    """Records whose topic's id is not confirmed yet: a queue for each topic, in the order in which they came.

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
        rows = max(1, fitting_rows(batch, room))
        if rows == batch.num_rows:
            return entry
        following = batch.column("offset")[rows].as_py()
        rest = Fetch(fetch.partition, fetch.topic_id, following, fetch.next, [batch.slice(rows)])
        queue.appendleft(entry._replace(found=rest, size=rest.nbytes))
        self.size += rest.nbytes
        first = Fetch(fetch.partition, fetch.topic_id, fetch.first, following, [batch.slice(0, rows)])
        return entry._replace(found=first, size=first.nbytes)


class FairShare:
    """Counts what each partition has got in a round, and finds those that starve.

    Who holds more than its share yields to these. librdkafka has one queue for all partitions. When it was full, its
    next request begins with the same partitions again, and a response holds `fetch.max.bytes`: with more partitions
    than fit into one, the last ones starve while the reader is slower than the brokers. So does every partition while
    the reader's buffer is full of others' records.

    A round has at least the bytes of a response.
    """

    def __init__(self, client: KafkaClient, now: float) -> None:
        self._client = client
        self._got: dict[Partition, int] = {}
        self._total = 0
        self._began = now
        self._not_before = float("-inf")
        self._asked: tuple[Pending[tuple[str, int], OffsetAndTimestamp | LogError], list[Partition]] | None = None

    def is_round(self, now: float) -> bool:
        """Whether each partition should have got some: a fast reader has had several responses by then."""
        return self._total >= self._client.response_bytes and now - self._began >= STARVED_S

    def count(self, partition: Partition, size: int) -> None:
        """Count received records."""
        self._got[partition] = self._got.get(partition, 0) + size
        self._total += size

    def compared(self, assigned: Collection[Partition]) -> tuple[list[Partition], list[Partition]]:
        """Those that have got more than an equal share, and those that have got nothing in this round."""
        above = [part for part in assigned if self._got.get(part, 0) * len(assigned) > self._total]
        return above, [part for part in assigned if part not in self._got]

    def start_round(self, now: float) -> None:
        """Count from zero."""
        self._got, self._total, self._began = {}, 0, now

    def starved(self, hungry: list[Partition], now: float) -> list[Partition] | None:
        """Those of `hungry` with records in the log; None until the brokers have answered."""
        if self._asked is None:
            if hungry and now >= self._not_before:
                self._not_before = now + STARVED_S
                self._asked = (self._client.offsets({part.key: LATEST for part in hungry}), hungry)
            return None if hungry else []
        pending, asked = self._asked
        if not pending.is_done:
            return None
        self._asked = None
        ends = pending.results()
        found = [(part, ends[part.key]) for part in asked if part.is_assigned]
        return [part for part, end in found if isinstance(end, OffsetAndTimestamp) and end.offset > part.tail]

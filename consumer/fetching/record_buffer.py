"""Fetched records that were not returned yet: a queue for each partition, served in the order of turns.

Records that stay after a poll are packed: copied from the log's batch, which may be a slice of a large file, into one
separate buffer for each batch, without constant columns. So the buffer's reported size is its memory, however long the
application does not poll. The application's records are built from Arrow columns only when they are returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from ..logs.base import POOL, Fetch, fitting_rows
from .partition_state import PartitionState

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of a record; topic and partition are the fetch's."""


class Record(NamedTuple):
    """One record, as it was fetched. `timestamp_ms` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_record = partial(tuple.__new__, Record)
"""`Record._make` without a Python call for each record, which takes as long as all other steps."""


@dataclass(slots=True)
class _Batch:
    """One batch of a queue, with `taken` rows already returned. `size` bytes stay until the last row is."""

    rows: pa.RecordBatch
    size: int
    taken: int = 0
    is_packed: bool = False

    @property
    def left(self) -> int:
        return int(self.rows.num_rows) - self.taken

    def pack(self) -> None:
        if not self.is_packed:
            self.rows, self.size = packed(self.rows.slice(self.taken))
            self.taken, self.is_packed = 0, True


@dataclass(slots=True)
class _Queue:
    """The buffered records of one partition."""

    state: PartitionState
    rows: int = 0
    batches: deque[_Batch] = field(default_factory=deque)


def packed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """A copy in one separate buffer, with the columns of `records_of`, and the bytes of that buffer."""
    names = COLUMNS if batch.column("headers").null_count < batch.num_rows else COLUMNS[:-1]
    columns = batch.select(list(names))
    memory = columns.serialize(memory_pool=POOL)
    return pa.ipc.read_record_batch(memory, columns.schema), memory.size


class Buffer:
    """The buffered records. Partitions have their turns in the order in which they received records."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, _Queue] = {}
        self._unpacked: list[_Batch] = []
        self.nbytes = 0

    @property
    def rows(self) -> int:
        """Buffered records, those of paused partitions included. Thread-safe."""
        return sum(queue.rows for queue in list(self._queues.values()))

    def there(self) -> Iterator[tuple[TopicPartition, int]]:
        """Partitions with their number of buffered records, one or more, in the order of turns; no paused ones."""
        return ((partition, queue.rows) for partition, queue in self._queues.items() if not queue.state.is_paused)

    def left(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The number of buffered records of these partitions, without empty ones."""
        return {partition: self._queues[partition].rows for partition in partitions if partition in self._queues}

    def add(self, state: PartitionState, fetch: Fetch) -> None:
        """Append fetched records of one partition, whose state is after them already."""
        queue = self._queues.get(fetch.partition)
        if queue is None:
            if not fetch.rows:  # only control records, as the markers of Kafka's transactions
                state.returned(fetch.next)
                return
            queue = self._queues[fetch.partition] = _Queue(state)
        for rows in fetch.batches:
            batch = _Batch(rows, rows.nbytes)
            queue.batches.append(batch)
            queue.rows += rows.num_rows
            self.nbytes += batch.size
            self._unpacked.append(batch)

    def take(self, picked: Sequence[tuple[TopicPartition, int]], max_bytes: int) -> list[Fetch]:
        """Take these numbers of records of each partition and advance their positions.

        :param max_bytes: limit of Arrow memory in total; the first record may exceed it. Records above it stay.
        """
        fetches: list[Fetch] = []
        room = max_bytes if self.nbytes > max_bytes else None  # no measuring when the whole buffer fits
        for partition, rows in picked:
            fetch, is_cut = self._take(partition, rows, room, is_first=not fetches)
            if fetch is not None:
                fetches.append(fetch)
                room = None if room is None else room - fetch.nbytes
            if is_cut:
                break
        return fetches

    def put_behind(self, partitions: Iterable[TopicPartition]) -> None:
        """Move these to the end of the order."""
        for partition in partitions:
            self._queues[partition] = self._queues.pop(partition)

    def pack(self) -> None:
        """Copy the records that stay for the next poll."""
        unpacked, self._unpacked = self._unpacked, []
        for batch in unpacked:
            if batch.left and batch.size:
                before = batch.size
                batch.pack()
                self.nbytes += batch.size - before

    def _take(
        self, partition: TopicPartition, rows: int, room: int | None, is_first: bool
    ) -> tuple[Fetch | None, bool]:
        """The taken records of one partition, and whether the byte limit made them fewer than `rows`."""
        queue = self._queues[partition]
        first, is_cut = queue.state.position, False
        taken: list[pa.RecordBatch] = []
        for batch in _slices(queue.batches, rows):
            fits = batch.num_rows if room is None else fitting_rows(batch, room)
            part = batch.slice(0, fits if taken or not is_first else max(fits, 1))
            if part.num_rows:
                taken.append(part)
                room = None if room is None else room - part.nbytes
            if part.num_rows < batch.num_rows:
                is_cut = True
                break
        if not taken:
            return None, is_cut
        self._advance(partition, queue, taken)
        return Fetch(partition, first.topic_id, first.offset, queue.state.position.offset, taken), is_cut

    def _advance(self, partition: TopicPartition, queue: _Queue, taken: list[pa.RecordBatch]) -> None:
        count = sum(part.num_rows for part in taken)
        queue.rows -= count
        while count:
            batch = queue.batches[0]
            rows = min(count, batch.left)
            batch.taken += rows
            count -= rows
            if not batch.left:
                self.nbytes -= queue.batches.popleft().size
        if queue.rows:
            queue.state.returned(taken[-1].column("offset")[-1].as_py() + 1)
        else:
            del self._queues[partition]
            queue.state.returned(queue.state.fetched.offset)

    def drop(self, partition: TopicPartition) -> None:
        """Drop the records of a partition that was sought or has ended."""
        queue = self._queues.pop(partition, None)
        for batch in queue.batches if queue else ():
            self.nbytes -= batch.size
            batch.size = 0  # it is not packed any more


def _slices(batches: Iterable[_Batch], rows: int) -> Iterator[pa.RecordBatch]:
    """The next `rows` buffered rows."""
    for batch in batches:
        if rows <= 0:
            return
        part = batch.rows.slice(batch.taken, rows)
        rows -= part.num_rows
        yield part


def records_of(fetch: Fetch) -> list[Record]:
    """A fetch's rows as records, read column by column: rows as dictionaries take twice as long."""
    topic, number = repeat(fetch.partition.topic), repeat(fetch.partition.partition)
    records: list[Record] = []
    for batch in fetch.batches:
        names = ("offset", "timestampType", "key", "value")
        offsets, stamp_types, keys, values = (batch.column(name).to_pylist() for name in names)
        columns = (topic, number, offsets, _stamps(batch), stamp_types, keys, values, _headers(batch))
        records.extend(map(_record, zip(*columns, strict=False)))
    return records


def _stamps(batch: pa.RecordBatch) -> list[int]:
    """Times as numbers: datetimes would need a time zone database, which small images lack."""
    column = batch.column("timestamp").view(pa.int64())
    if column.null_count:
        return [-1 if stamp_us is None else stamp_us // 1000 for stamp_us in column.to_pylist()]
    return [stamp_us // 1000 for stamp_us in column.to_pylist()]


def _headers(batch: pa.RecordBatch) -> Iterable[tuple[tuple[str, Any], ...]]:
    column = batch.column("headers") if "headers" in batch.schema.names else None
    if column is None or column.null_count == len(column):
        return repeat(())
    return [tuple((item["key"], item["value"]) for item in headers or ()) for headers in column.to_pylist()]

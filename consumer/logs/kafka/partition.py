"""One fetched partition of Kafka, and its buffered records."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pyarrow as pa

from ..base import Fetched
from ..columns import POOL, fitting_rows
from ..errors import LogError
from .arrow_batches import RecordRun


class SharedBuffer:
    """Reference-counted shared Arrow buffer: `size` bytes, retained while any of its `pieces` is buffered."""

    def __init__(self) -> None:
        self.size = 0
        self.pieces = 0


class Entry(NamedTuple):
    """Buffered records (none where only the end moved, over offsets without a record), and the offset after them.

    :ivar came: the number of the poll that received them.
    :ivar shared: the shared buffer that they retain.
    """

    came: int
    batch: pa.RecordBatch | None
    next: int
    size: int
    shared: SharedBuffer


class BufferUsage:
    """Memory of buffered Arrow records, over all partitions.

    :ivar size: bytes of buffered records.
    :ivar held: bytes of the shared buffers that they retain: records of other partitions in the same batches included.
    :ivar came: total bytes received.
    """

    def __init__(self) -> None:
        self.size = 0
        self.held = 0
        self.came = 0
        self._last = (-1, SharedBuffer())

    def of_poll(self, poll: int) -> SharedBuffer:
        """The buffer of one poll: a batch, cut where the partition changes."""
        if self._last[0] != poll:
            self._last = (poll, SharedBuffer())
        return self._last[1]

    def hold(self, shared: SharedBuffer, size: int) -> SharedBuffer:
        """Retain a buffer for one more piece of `size` bytes."""
        shared.pieces += 1
        shared.size += size
        self.held += size
        return shared

    def release(self, shared: SharedBuffer) -> None:
        """Release a buffer by one piece."""
        shared.pieces -= 1
        if not shared.pieces:
            self.held -= shared.size
            shared.size = 0


class Partition:
    """The buffered records of one partition.

    :param usage: usage of the buffer.
    :ivar position: the offset of the next fetch, if it continues the last one.
    :ivar asked: when it was fetched last.
    :ivar is_assigned: whether librdkafka fetches it.
    :ivar came: bytes received of all partitions (`BufferUsage.came`) after this one's newest records.
    :ivar problem: why it cannot be fetched; retried at `retry_at`. New records end it.
    """

    def __init__(self, topic: str, number: int, topic_id: str, position: int, usage: BufferUsage | None = None) -> None:
        self.topic = topic
        self.number = number
        self.topic_id = topic_id
        self.position = position
        self.asked = 0.0
        self.is_assigned = False
        self.problem: LogError | None = None
        self.retry_at = float("-inf")
        self.size = 0
        self.came = 0
        self._room = usage or BufferUsage()
        self._tail = position
        self._end = -1
        self._entries: deque[Entry] = deque()

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def tail(self) -> int:
        """The offset after the buffered records, where librdkafka continues."""
        return self._tail

    @property
    def newest(self) -> int:
        """The poll of the newest buffered records; -1 without any."""
        return self._entries[-1].came if self._entries else -1

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is buffered, and librdkafka has reached the partition's end."""
        return not self._entries and self._end == self._tail

    def has(self, verified: int) -> bool:
        """Whether confirmed records are buffered."""
        return bool(self._entries) and self._entries[0].came <= verified

    def restart(self, position: int) -> None:
        """Drop buffered records: the next fetch begins at `position`."""
        while self._entries:
            self.drop_newest()
        self.position = self._tail = position

    def add(self, run: RecordRun, came: int) -> None:
        """Take in records; those that are here already, as after a new beginning, are left out."""
        self.problem = None
        batch = run.batch
        if run.first < self._tail:
            kept = [row for row, offset in enumerate(batch.column("offset").to_pylist()) if offset >= self._tail]
            if not kept:
                return
            batch = batch.slice(kept[0])
        self._append(came, batch, run.next, batch.nbytes)

    def end_at(self, offset: int, came: int) -> None:
        """Note the partition's end at `offset`; the last offsets may have no record (markers, aborted records)."""
        self.problem = None
        self._end = offset
        if offset > self._tail:
            self._append(came, None, offset, 0)

    def drop_after(self, verified: int) -> None:
        """Drop records received after the poll `verified`."""
        while self.newest > verified:
            self.drop_newest()
        self._tail = self._entries[-1].next if self._entries else self.position

    def drop_newest(self) -> None:
        """Drop the newest records; librdkafka must not fetch the partition, or its next records would leave a gap."""
        entry = self._entries.pop()
        self._grow(-entry.size)
        self._room.release(entry.shared)
        self._tail = self._entries[-1].next if self._entries else self.position
        self.problem = None  # it was the following offset's

    def pack(self) -> None:
        """Copy small slices of large batches, which would retain those for long."""
        for index, (came, batch, following, size, shared) in enumerate(self._entries):
            if batch is not None and batch.get_total_buffer_size() > 2 * size:
                memory = batch.serialize(memory_pool=POOL)
                copied = pa.ipc.read_record_batch(memory, batch.schema)
                self._entries[index] = Entry(
                    came, copied, following, memory.size, self._room.hold(SharedBuffer(), memory.size)
                )
                self._room.release(shared)
                self._grow(memory.size - size)

    def take(self, max_bytes: int, max_records: int, verified: int) -> Fetched:
        """Confirmed records within the limits, but one record at least; see `Log.fetch`."""
        batches: list[pa.RecordBatch] = []
        while self.has(verified) and (not batches or (max_bytes > 0 and max_records > 0)):
            came, batch, following, size, shared = self._entries.popleft()
            self._grow(-size)
            if batch is None:
                self._room.release(shared)
                self.position = following
                continue
            if size <= max_bytes and batch.num_rows <= max_records:  # uncut: measuring a slice is slow
                self._room.release(shared)
                batches.append(batch)
                self.position = following
                max_bytes, max_records = max_bytes - size, max_records - batch.num_rows
                continue
            rows = fitting_rows(batch, max_bytes, max_records)
            rows = rows if batches else max(rows, 1)
            if rows < batch.num_rows:
                rest = batch.slice(rows)
                self._entries.appendleft(Entry(came, rest, following, rest.nbytes, shared))
                self._grow(rest.nbytes)
            else:
                self._room.release(shared)
            if rows:
                taken = batch.slice(0, rows)
                batches.append(taken)
                self.position = following if rows == batch.num_rows else taken.column("offset")[-1].as_py() + 1
                max_bytes, max_records = max_bytes - taken.nbytes, max_records - rows
            if rows < batch.num_rows:
                break
        return Fetched(batches, self.position)

    def _append(self, came: int, batch: pa.RecordBatch | None, following: int, size: int) -> None:
        self._entries.append(Entry(came, batch, following, size, self._room.hold(self._room.of_poll(came), size)))
        self._tail = following
        self._grow(size)
        self._room.came += size
        self.came = self._room.came

    def _grow(self, by: int) -> None:
        self.size += by
        self._room.size += by

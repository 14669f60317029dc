"""One partition of Kafka that is fetched: what has come of it and waits to be asked for."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pyarrow as pa

from .base import Fetched
from .columns import POOL
from .embedded import fitting_rows
from .errors import LogError
from .kafka_batches import Run


class Whole:
    """Memory that is held as long as something waits that is a piece of it: `size` bytes, of so many `pieces`."""

    def __init__(self) -> None:
        self.size = 0
        self.pieces = 0


class Entry(NamedTuple):
    """Records that have come (none where only the end moved, over offsets without a record), and what follows them.

    :ivar came: the number of the look at librdkafka's queue that brought them.
    :ivar whole: what else is held with them.
    """

    came: int
    batch: pa.RecordBatch | None
    next: int
    size: int
    whole: Whole


class Room:
    """How much Arrow memory waits, over all partitions.

    :ivar size: bytes of what waits.
    :ivar held: bytes of what that is pieces of: records of other partitions that came in the same batch, and are gone.
    :ivar came: bytes of all that ever has.
    """

    def __init__(self) -> None:
        self.size = 0
        self.held = 0
        self.came = 0
        self._last = (-1, Whole())

    def of_look(self, look: int) -> Whole:
        """What this look brings is one batch, cut where the partition changes."""
        if self._last[0] != look:
            self._last = (look, Whole())
        return self._last[1]

    def hold(self, whole: Whole, size: int) -> Whole:
        """One more piece of it waits, which adds `size` bytes."""
        whole.pieces += 1
        whole.size += size
        self.held += size
        return whole

    def let_go(self, whole: Whole) -> None:
        """A piece of it waits no more."""
        whole.pieces -= 1
        if not whole.pieces:
            self.held -= whole.size
            whole.size = 0


class Partition:
    """What one partition holds ready.

    :param room: where it is counted what waits.
    :ivar position: the offset that the next fetch asks for, if it goes on where the last one ended.
    :ivar asked: when it was asked for last.
    :ivar is_assigned: whether librdkafka fetches it.
    :ivar came: what had come of all partitions (`Room.came`) after the newest that has come of this one.
    :ivar problem: why it cannot be fetched; tried again at `retry_at`. What comes of it all the same ends it.
    """

    def __init__(self, topic: str, number: int, topic_id: str, position: int, room: Room | None = None) -> None:
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
        self._room = room or Room()
        self._tail = position
        self._end = -1
        self._entries: deque[Entry] = deque()

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def tail(self) -> int:
        """The offset after what has come; librdkafka goes on there."""
        return self._tail

    @property
    def newest(self) -> int:
        """The look that brought the newest of what waits; -1 when nothing does."""
        return self._entries[-1].came if self._entries else -1

    @property
    def is_at_end(self) -> bool:
        """Whether nothing waits, and nothing more was in Kafka when librdkafka got so far."""
        return not self._entries and self._end == self._tail

    def has(self, verified: int) -> bool:
        """Whether something waits that may be handed out."""
        return bool(self._entries) and self._entries[0].came <= verified

    def restart(self, position: int) -> None:
        """Forget what waits: the next fetch begins at `position`."""
        while self._entries:
            self.drop_newest()
        self.position = self._tail = position

    def add(self, run: Run, came: int) -> None:
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
        """Nothing more is before `offset`; what is there last may have no record: markers, and what was aborted."""
        self.problem = None
        self._end = offset
        if offset > self._tail:
            self._append(came, None, offset, 0)

    def drop_after(self, verified: int) -> None:
        """Forget what came after the look `verified`."""
        while self.newest > verified:
            self.drop_newest()
        self._tail = self._entries[-1].next if self._entries else self.position

    def drop_newest(self) -> None:
        """Forget the newest of what waits; librdkafka must not fetch it, or what it brings next would not join."""
        entry = self._entries.pop()
        self._grow(-entry.size)
        self._room.let_go(entry.whole)
        self._tail = self._entries[-1].next if self._entries else self.position
        self.problem = None  # which was that of the offset after it

    def pack(self) -> None:
        """Copy what are small pieces of large batches, and would keep these in memory: it will wait for long."""
        for index, (came, batch, following, size, whole) in enumerate(self._entries):
            if batch is not None and batch.get_total_buffer_size() > 2 * size:
                memory = batch.serialize(memory_pool=POOL)
                copied = pa.ipc.read_record_batch(memory, batch.schema)
                self._entries[index] = Entry(
                    came, copied, following, memory.size, self._room.hold(Whole(), memory.size)
                )
                self._room.let_go(whole)
                self._grow(memory.size - size)

    def take(self, max_bytes: int, max_records: int, verified: int) -> Fetched:
        """What may be handed out, within the limits, but one record at least; see `Log.fetch`."""
        batches: list[pa.RecordBatch] = []
        while self.has(verified) and (not batches or (max_bytes > 0 and max_records > 0)):
            came, batch, following, size, whole = self._entries.popleft()
            self._grow(-size)
            if batch is None:
                self._room.let_go(whole)
                self.position = following
                continue
            if size <= max_bytes and batch.num_rows <= max_records:  # as it is: to measure a slice takes its time
                self._room.let_go(whole)
                batches.append(batch)
                self.position = following
                max_bytes, max_records = max_bytes - size, max_records - batch.num_rows
                continue
            rows = fitting_rows(batch, max_bytes, max_records)
            rows = rows if batches else max(rows, 1)
            if rows < batch.num_rows:
                rest = batch.slice(rows)
                self._entries.appendleft(Entry(came, rest, following, rest.nbytes, whole))
                self._grow(rest.nbytes)
            else:
                self._room.let_go(whole)
            if rows:
                taken = batch.slice(0, rows)
                batches.append(taken)
                self.position = following if rows == batch.num_rows else taken.column("offset")[-1].as_py() + 1
                max_bytes, max_records = max_bytes - taken.nbytes, max_records - rows
            if rows < batch.num_rows:
                break
        return Fetched(batches, self.position)

    def _append(self, came: int, batch: pa.RecordBatch | None, following: int, size: int) -> None:
        self._entries.append(Entry(came, batch, following, size, self._room.hold(self._room.of_look(came), size)))
        self._tail = following
        self._grow(size)
        self._room.came += size
        self.came = self._room.came

    def _grow(self, by: int) -> None:
        self.size += by
        self._room.size += by

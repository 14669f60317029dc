"""What was fetched and not returned yet: a queue a partition, taken from in the order of turns.

What stays over a poll is packed: copied out of whatever the log gave, which may be a small piece of a large file, into
one buffer of its own for each batch, without the columns that are the same in every row. So what the buffer says it
holds is what it costs, however long the application does not poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from coordinator.zk.partitions import TopicPartition

from .fetcher import Fetch, Position
from .holder import Start
from .logs.columns import POOL
from .logs.embedded import fitting_rows
from .records import COLUMNS


@dataclass(slots=True)
class _Batch:
    """One batch of a queue, of which `taken` rows were returned. `size` bytes stay until its last row is."""

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
    """What waits of one partition; `next` is where fetching of it stands."""

    next: int
    rows: int = 0
    batches: deque[_Batch] = field(default_factory=deque)


def packed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """A copy in one buffer of its own, with what `records_of` needs, and the bytes of that buffer."""
    names = COLUMNS if batch.column("headers").null_count < batch.num_rows else COLUMNS[:-1]
    some = batch.select(list(names))
    memory = some.serialize(memory_pool=POOL)
    return pa.ipc.read_record_batch(memory, some.schema), memory.size


class Buffer:
    """The records that wait, and the positions of the partitions: after the last record that was returned.

    The order in which partitions have their turns is that in which they came to have records.
    """

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, Position] = {}
        self._queues: dict[TopicPartition, _Queue] = {}
        self._unpacked: list[_Batch] = []
        self.nbytes = 0

    # ---- partitions

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """Partition -> the offset after the last record that was returned. May be read by other threads."""
        return dict(self._positions)

    def position(self, partition: TopicPartition) -> Position | None:
        """The same of one partition, None when it is not held."""
        return self._positions.get(partition)

    @property
    def assignment(self) -> Collection[TopicPartition]:
        """The partitions that are held, in order."""
        return self._positions.keys()

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Hold these too, from there on."""
        begun = {partition: Position(start.topic_id, start.offset) for partition, start in starts.items()}
        self._positions = dict(sorted((self._positions | begun).items()))

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Hold these no more, and drop what waits of them."""
        gone = frozenset(partitions)
        for partition in gone:
            self._drop(partition)
        self._positions = {partition: at for partition, at in self._positions.items() if partition not in gone}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`, and drop what waits."""
        self._drop(partition)
        self._positions[partition] = Position(self._positions[partition].topic_id, offset)

    # ---- records

    @property
    def rows(self) -> int:
        """Records that wait, those of paused partitions too. May be read by other threads."""
        return sum(queue.rows for queue in list(self._queues.values()))

    def there(self, besides: Collection[TopicPartition] = ()) -> Iterator[tuple[TopicPartition, int]]:
        """Partitions with the records that wait of them, one or more, in the order of turns.

        :param besides: partitions to leave out.
        """
        return ((partition, queue.rows) for partition, queue in self._queues.items() if partition not in besides)

    def left(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Of these those of which records wait, and how many."""
        return {partition: self._queues[partition].rows for partition in partitions if partition in self._queues}

    def add(self, fetch: Fetch) -> None:
        """What was fetched of one partition, which begins where its fetching stood."""
        queue = self._queues.get(fetch.partition)
        if queue is None:
            if not fetch.rows:  # nothing but what is no record, as the marks of Kafka's transactions
                self._move(fetch.partition, fetch.next)
                return
            queue = self._queues[fetch.partition] = _Queue(fetch.next)
        queue.next = fetch.next
        for rows in fetch.batches:
            batch = _Batch(rows, rows.nbytes)
            queue.batches.append(batch)
            queue.rows += rows.num_rows
            self.nbytes += batch.size
            self._unpacked.append(batch)

    def take(self, picked: Sequence[tuple[TopicPartition, int]], max_bytes: int) -> list[Fetch]:
        """So many records of each partition, and their positions move on; the rest waits.

        :param max_bytes: of Arrow memory, over all of them, but for the first record. What is over it waits, too.
        """
        found: list[Fetch] = []
        room = max_bytes if self.nbytes > max_bytes else None  # nothing is measured where all that waits fits
        for partition, rows in picked:
            fetch, is_cut = self._take(partition, rows, room, is_first=not found)
            if fetch is not None:
                found.append(fetch)
                room = None if room is None else room - fetch.nbytes
            if is_cut:
                break
        return found

    def put_behind(self, partitions: Iterable[TopicPartition]) -> None:
        """These have their turns after all others."""
        for partition in partitions:
            self._queues[partition] = self._queues.pop(partition)

    def pack(self) -> None:
        """Copy what will wait for the next poll."""
        unpacked, self._unpacked = self._unpacked, []
        for batch in unpacked:
            if batch.left and batch.size:
                before = batch.size
                batch.pack()
                self.nbytes += batch.size - before

    def _take(
        self, partition: TopicPartition, rows: int, room: int | None, is_first: bool
    ) -> tuple[Fetch | None, bool]:
        """What was taken of one partition, and whether it is less than `rows` for want of room."""
        queue = self._queues[partition]
        first, is_cut = self._positions[partition], False
        taken: list[pa.RecordBatch] = []
        for batch in _slices(queue.batches, rows):
            fits = batch.num_rows if room is None else fitting_rows(batch, room, batch.num_rows)
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
        return Fetch(partition, first.topic_id, first.offset, self._positions[partition].offset, taken), is_cut

    def _advance(self, partition: TopicPartition, queue: _Queue, taken: list[pa.RecordBatch]) -> None:
        count = sum(part.num_rows for part in taken)
        queue.rows -= count
        while count:
            batch = queue.batches[0]
            some = min(count, batch.left)
            batch.taken += some
            count -= some
            if not batch.left:
                self.nbytes -= queue.batches.popleft().size
        if queue.rows:
            self._move(partition, taken[-1].column("offset")[-1].as_py() + 1)
        else:
            del self._queues[partition]
            self._move(partition, queue.next)

    def _move(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = Position(self._positions[partition].topic_id, offset)

    def _drop(self, partition: TopicPartition) -> None:
        queue = self._queues.pop(partition, None)
        for batch in queue.batches if queue else ():
            self.nbytes -= batch.size
            batch.size = 0  # it is not packed any more


def _slices(batches: Iterable[_Batch], rows: int) -> Iterator[pa.RecordBatch]:
    """The next `rows` rows that wait."""
    for batch in batches:
        if rows <= 0:
            return
        part = batch.rows.slice(batch.taken, rows)
        rows -= part.num_rows
        yield part

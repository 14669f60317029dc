"""The message queue between a consumer operator's two threads, with the permit and the offset manager (seed 002).

The event thread puts what it has polled. The process thread takes one record at a time, and has the permit until it has
processed that record. What the event thread decides meanwhile, a cut or a reset, waits for that one record and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from coordinator.zk.partitions import TopicPartition
from coordinator.zk.runtime import Runtime

from ..records import Record

DRAIN = "a checkpoint is taken"
RESET = "a reset was requested"
FAILED = "processing has failed"
"""Why no permit is given."""

LOOK_AGAIN_S = 0.05

Message = tuple[TopicPartition, Record]


class MessageQueue:
    """Records that were polled and not processed yet, and how far each partition was processed.

    :param capacity: records that it has room for.
    :param memory: bytes of their keys and values; one poll may go over it.
    :param may_process: whether the partitions are still the consumer's; asked before each record.
    """

    def __init__(self, runtime: Runtime, capacity: int, memory: int, may_process: Callable[[], bool]) -> None:
        self._capacity = capacity
        self._memory = memory
        self._may_process = may_process
        self._changed = runtime.condition()
        self._records: deque[Message] = deque()
        self._nbytes = 0
        self._offsets: dict[TopicPartition, int] = {}
        self._withheld: set[str] = set()
        self._is_busy = False
        self._is_awaited = False
        self._is_closed = False

    def __len__(self) -> int:
        """Records that wait. May be read by other threads."""
        return len(self._records)

    # ---- the process thread

    def take(self, processed: Message | None = None) -> Message | None:
        """The next record, with the permit to process it; waits for both. None once it is closed.

        :param processed: the one before: its offset is saved, and its permit given back.
        """
        with self._changed:
            if processed is not None:
                partition, record = processed
                self._offsets[partition] = record.offset + 1
                self._give_back()
            while not self._is_closed:
                if not self._records or self._withheld:
                    self._changed.wait()
                elif not self._may_process():
                    self._changed.wait(LOOK_AGAIN_S)
                else:
                    self._is_busy = True
                    message = self._records.popleft()
                    self._nbytes -= _nbytes(message[1])
                    return message
        return None

    def failed(self) -> None:
        """The record was not processed: the permit is given back, and no other given."""
        with self._changed:
            self._withheld.add(FAILED)
            self._give_back()

    def _give_back(self) -> None:
        self._is_busy = False
        if self._is_awaited:
            self._changed.notify_all()

    # ---- any thread

    def withhold(self, why: str) -> None:
        """Give no permit, until `allow`."""
        with self._changed:
            self._withheld.add(why)

    # ---- the event thread

    def has_room(self, records: int) -> bool:
        """Whether so many more may be put."""
        return len(self._records) + records <= self._capacity and self._nbytes < self._memory

    def put(self, polled: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """These were polled."""
        if not polled:
            return
        with self._changed:
            for partition, records in polled.items():
                self._records.extend(zip(repeat(partition), records))
                self._nbytes += sum(map(_nbytes, records))
            self._changed.notify_all()

    def is_drained(self, is_set_aside: bool) -> bool:
        """Whether no record is being processed, and none waits; or, set aside, what waits stays where it is.

        Where a record has failed, or a reset was requested, no cut may be taken of what is.
        """
        with self._changed:
            if is_set_aside:
                self._withheld.add(DRAIN)
            if self._is_busy or self._withheld - {DRAIN}:
                return False
            return is_set_aside or not self._records

    def allow(self, why: str) -> None:
        """That is over: go on with what waits."""
        with self._changed:
            if why in self._withheld:
                self._withheld.discard(why)
                self._changed.notify_all()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Partition -> the offset after the last record that was processed."""
        with self._changed:
            return dict(self._offsets)

    def clear(self) -> None:
        """Drop everything; the record that is being processed is finished first, and counts no more."""
        with self._changed:
            self._records.clear()
            self._nbytes = 0
            self._is_awaited = True
            while self._is_busy:
                self._changed.wait()
            self._is_awaited = False
            self._offsets.clear()

    def restart(self, offsets: Mapping[TopicPartition, int]) -> None:
        """After a reset: begin at `offsets`."""
        self.clear()
        with self._changed:
            self._offsets.update(offsets)

    def close(self) -> None:
        """Nothing is processed any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _nbytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")

"""The message queue between a consumer operator's two threads, with the permit and the offset manager (seed 002).

The event thread adds polled records. The process thread takes one record at a time, and has the permit until it has
processed that record. A cut or a reset by the event thread waits at most for that one record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from coordinator.zk.runtime import Runtime
from coordinator.zk.znodes.partitions import TopicPartition

from ..fetching.records import Record

DRAIN = "a checkpoint is taken"
RESET = "a reset was requested"
FAILED = "processing has failed"
"""Reasons to withhold the permit."""

LOOK_AGAIN_S = 0.05

Message = tuple[TopicPartition, Record]


class MessageQueue:
    """Records that were polled and not processed yet, and the processed offset of each partition.

    :param capacity: maximum records.
    :param memory: maximum bytes of their keys and values; one poll may exceed it.
    :param may_process: whether the partitions are still assigned; checked before each record.
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
        """Queued records. Thread-safe."""
        return len(self._records)

    # ---- the process thread

    def take(self, processed: Message | None = None) -> Message | None:
        """The next record, with the permit to process it; waits for both. None once it is closed.

        :param processed: the previous record: its offset is saved, and its permit returned.
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
        """Processing failed: the permit is returned, and no other granted."""
        with self._changed:
            self._withheld.add(FAILED)
            self._give_back()

    def _give_back(self) -> None:
        self._is_busy = False
        if self._is_awaited:
            self._changed.notify_all()

    # ---- any thread

    def withhold(self, why: str) -> None:
        """Grant no permit until `allow`."""
        with self._changed:
            self._withheld.add(why)

    # ---- the event thread

    def has_room(self, records: int) -> bool:
        """Whether there is room for so many records."""
        return len(self._records) + records <= self._capacity and self._nbytes < self._memory

    def put(self, polled: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Add polled records."""
        if not polled:
            return
        with self._changed:
            for partition, records in polled.items():
                self._records.extend(zip(repeat(partition), records))
                self._nbytes += sum(map(_nbytes, records))
            self._changed.notify_all()

    def is_drained(self, is_deferred: bool) -> bool:
        """Whether no record is being processed, and none is queued; or, deferred, queued records stay.

        After a failed record or a reset request, no cut of the present state may be taken.
        """
        with self._changed:
            if is_deferred:
                self._withheld.add(DRAIN)
            if self._is_busy or self._withheld - {DRAIN}:
                return False
            return is_deferred or not self._records

    def allow(self, why: str) -> None:
        """Withdraw a reason: continue with queued records."""
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
        """Drop all records; the record in process is finished first, and not counted."""
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
        """No record is processed any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _nbytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")

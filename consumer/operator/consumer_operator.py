"""`ConsumerOperator`: an event and a process thread, for an application that only processes records.

Sources R6 to R8. The event thread owns the `Consumer`: it polls, applies commands, takes checkpoints. The
process thread calls the application. So a record may take any time: the membership continues meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import repeat
from typing import Unpack

from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.runtime import Queue, Runtime, ThreadRuntime
from zk_group.coordinator.zk.values import typed
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..config import ConsumerConfig, Subscription
from ..consumer import Callbacks, Consumer, ConsumerParts
from ..errors import AssignmentFailed, Closed, ProcessFailed
from ..fetching.record_buffer import Record
from ..logs.base import NO_OFFSETS, OffsetOutOfRange
from ..membership.call_guard import CLOSED, LOOK_S, CallGuard
from ..metrics import ConsumerMetrics
from .region import RESET_PENDING
from .states import State

log = logging.getLogger(__name__)

POLL_MS = 50
"""Maximum time that an event waits for its turn."""
POLLS_QUEUED = 100
"""Capacity of the message queue, in polls (sources R7)."""
UNBOUNDED_POLL = 500
"""Records of a poll when `max_poll_records` is unlimited."""
PROCESS_FIRST_S = 3.0
"""Time limit for processing queued records before a checkpoint. The rest is deferred: with slow processing, a full
message queue takes longer than `drain_timeout_ms`, and no checkpoint would ever complete. Well below `SAVE_S`, too: a
member that leaves waits no longer than that for the checkpoint of all."""
DRAIN = "a checkpoint is taken"
RESET = "a reset was requested"
FAILED = "processing has failed"
"""Reasons to withhold the permit."""

LOOK_AGAIN_S = 0.05
TRY_AGAIN_S = 1.0
CLOSE_S = 60.0

_inside: ContextVar[object] = ContextVar("inside", default=None)
"""The operator that owns this thread."""

Message = tuple[TopicPartition, Record]


class Processor:
    """The application's processing of records. Never called by two threads at once.

    An exception ends the operator, as one ends a Kafka Streams client (SHUTDOWN_CLIENT, its default) and the process of
    a Streams operator: the state in memory may be inconsistent by then, and only another process, with the state of the
    last checkpoint, is certain to be correct. An application that can recover calls `request_reset` and returns.
    """

    def process(self, partition: TopicPartition, record: Record) -> None:
        """Process one record. An exception ends the operator, without a checkpoint (`ProcessFailed`)."""
        raise NotImplementedError

    def on_checkpoint(self, checkpoint: int) -> State:
        """The state after exactly the processed records. An exception ends the operator (`DrainFailed`)."""
        return State()

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Discard all state and restore this one: that of a checkpoint, 0 for the initial one, for the partitions that
        are assigned now (`state.offsets` has them all). An exception ends the operator."""


# Large: two threads and their callbacks share one queue and one end.
class ConsumerOperator(Callbacks):
    """A member of a consistent region whose records are processed in a separate thread.

    Use it as a context: entering starts both threads, leaving closes it. After `close`, and after the end that an error
    has caused, requests raise `Closed`; `wait` still returns.

    :param operator_driven: at a checkpoint, records in the message queue are deferred until it has ended; without it,
        they are processed before, for at most `PROCESS_FIRST_S`.
    :ivar consumer: the event thread's consumer, for inspection; only that thread may poll or close it.
    :raises UsageError: when the configuration names no region.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        processor: Processor,
        operator_driven: bool = False,
        **parts: Unpack[ConsumerParts],
    ) -> None:
        if not config.region:
            raise UsageError(
                "a ConsumerOperator needs a consistent region: add region='NAME', or poll a Consumer yourself"
            )
        self._config = config = config.named(parts.get("runtime") or ThreadRuntime())
        self._processor = processor
        self._defers = typed("operator_driven", operator_driven, bool)
        parts["runtime"] = self._runtime = parts.get("runtime") or ThreadRuntime(config.recorder("consumer"))
        parts["metrics"] = metrics = parts.get("metrics") or ConsumerMetrics()
        self.consumer = Consumer(config, subscription, self, **parts)
        self._most = config.max_poll_records if config.max_poll_records > 0 else UNBOUNDED_POLL
        self._messages = MessageQueue(
            self._runtime, POLLS_QUEUED * self._most, config.buffer_memory, lambda: self.consumer.member.may_fetch
        )
        metrics.of(config.group, config.consumer).reads_queue(lambda: len(self._messages))
        self._events: Queue[Callable[[], None]] = self._runtime.queue()
        self._pending: list[Callable[[], None]] = []
        self._try_at = 0.0
        self._defer_at = float("inf")
        self._fetch_at = float("-inf")
        self._is_stopping = False
        self._resetting = self._runtime.lock()
        self._is_reset_asked = False
        self._resets = 0
        self._error: BaseException | None = None
        self._is_started = self._is_closed = False
        self._ended = self._runtime.event()
        self._calls = CallGuard(self._runtime, self._ended)

    # ---- the application's calls, from any thread

    @property
    def state(self) -> str:
        """The member's state (sources R10); RESET_PENDING from the call of `request_reset` on."""
        return RESET_PENDING if self._is_reset_asked else self.consumer.region.state

    @property
    def queued(self) -> int:
        """Records that were polled and not processed yet."""
        return len(self._messages)

    def start(self) -> None:
        """Start both threads.

        :raises UsageError: when it was started before.
        """
        self._calls.refuse_inherited()
        if self._is_started:
            once = "A ConsumerOperator is started once: make another one"
            raise Closed(f"{CLOSED} {once}") if self._ended.is_set() else UsageError(once)
        self._is_started = True
        self._runtime.spawn(self._control, f"events-{self._config.consumer}")
        self._runtime.spawn(self._process, f"process-{self._config.consumer}")

    def request_checkpoint(self) -> None:
        """Request a checkpoint of the region. Returns at once.

        :raises Closed: when the operator has ended.
        """
        self._check_open()
        self._events.put(self.consumer.request_checkpoint)

    def request_reset(self, reason: str) -> None:
        """Reset the whole region to its last checkpoint. Returns at once; no record is processed until then, and no
        checkpoint contains records processed since the last one. Raises as `request_checkpoint`."""
        self._check_open()
        with self._resetting:
            self._is_reset_asked = True
            self._messages.withhold(RESET)
            resets = self._resets
            self._events.put(lambda: self._reset_after(resets, reason))

    def stop(self, error: BaseException | None = None) -> None:
        """End the operator; returns at once. Without an error a checkpoint precedes it, of the records processed until
        then: queued records are not part of it.

        :param error: the cause; `wait` and `close` raise it.
        """
        self._calls.refuse_inherited()
        if error is not None and self._error is None:
            self._error = error
        self._events.put(self._stop)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False after `timeout_s` seconds.

        :raises ProcessFailed: when `process` has raised, which ended it. Every other cause is raised, too: what `poll`
            raises (but `AssignmentFailed` and `OffsetOutOfRange`), what `on_reset` raised, the error of `stop`.
        :raises UsageError: inside `process` or a callback.
        """
        self._calls.refuse_inherited()
        if _inside.get() is self:
            raise UsageError("an operator's own threads cannot wait for its end: call stop, and return")
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """`stop`, and wait for the end. Inside `process` or a callback it does not wait. Raises as `wait`; a second
        `close` does nothing.

        :raises ProcessFailed: also when `process` has not returned for `timeout_s` seconds; the member keeps its
            partitions until it does, or the process ends.
        """
        self._calls.refuse_inherited()
        if self._is_closed:
            return
        self.stop()
        if not self._is_started:
            self._is_started = self._is_closed = True
            self._messages.close()
            self._ended.set()
            self.consumer.close()
        elif _inside.get() is not self:
            self._await_end(timeout_s)
            self._is_closed = True
            if self._error is not None:
                raise self._error

    def _await_end(self, timeout_s: float) -> None:
        """Without a lock: `close` may be called in a signal handler that has interrupted `wait`."""
        until = self._runtime.monotonic() + timeout_s
        while not self._ended.is_set():
            if self._runtime.monotonic() >= until:
                what = "the member has not left its group"
                raise ProcessFailed(f"process has not returned within {timeout_s:g} s: {what}")
            self._runtime.sleep(LOOK_S)

    def _check_open(self) -> None:
        self._calls.refuse_inherited()
        if self._ended.is_set() and _inside.get() is not self:
            raise Closed(CLOSED)

    def __enter__(self) -> ConsumerOperator:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as problem:
            if error is None:
                raise
            if problem is not error:
                log.warning("closed after error: consumer=%s reason=%s", self._config.consumer, problem)

    # ---- the process thread

    def _process(self) -> None:
        _inside.set(self)
        messages, process = self._messages, self._processor.process
        message = messages.take()
        while message is not None:
            partition, record = message
            try:
                process(partition, record)
            except BaseException as error:  # noqa: BLE001  also a SystemExit: the permit must be returned
                failure = ProcessFailed(f"{partition} offset {record.offset}: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self.stop(failure)
                messages.failed()
                return
            message = messages.take(message)

    # ---- the event thread

    def _control(self) -> None:
        _inside.set(self)
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  the application's, or a refusal: `wait` raises it
            self._error = self._error or error
        try:
            self._defers = True
            self.consumer.close(save=self._error is None)
        except BaseException as error:  # noqa: BLE001
            self._error = self._error or error
        finally:
            self._messages.close()
            self._ended.set()

    def _turn(self) -> None:
        now = self._runtime.monotonic()
        while (event := self._events.get(0)) is not None:
            self._pending.append(event)
            self._try_at = now
        if self._pending and now >= self._try_at:
            self._try_at = now + TRY_AGAIN_S
            self._pending = [event for event in self._pending if not self._is_carried_out(event)]
        if self._is_stopping:
            return
        try:
            may_fetch = now >= self._fetch_at and self._messages.has_room(self._most)
            polled = self.consumer.poll(POLL_MS, self._most if may_fetch else 0)
        except AssignmentFailed as failure:
            log.warning("assignment failed: consumer=%s reason=%s", self._config.consumer, failure)
            return
        except OffsetOutOfRange as lost:  # the region becomes Failed: this member waits as all others do
            log.error("offset missing in log: consumer=%s reason=%s", self._config.consumer, lost)
            self._fetch_at = now + TRY_AGAIN_S
            return
        self._messages.put(polled)
        if not self.consumer.region.is_in_checkpoint:
            self._defer_at = float("inf")
            self._messages.allow(DRAIN)

    def _stop(self) -> None:
        self._is_stopping = True

    def _reset_after(self, resets: int, reason: str) -> None:
        """Any reset later than `resets`, the number of them at a request, answers the request."""
        if resets == self._resets:
            self.consumer.request_reset(reason)

    def _is_carried_out(self, event: Callable[[], None]) -> bool:
        """Carry out a request; False when it must be tried again."""
        try:
            event()
        except CoordinatorError as error:
            log.info("ZooKeeper unavailable, retrying: consumer=%s reason=%s", self._config.consumer, error)
            return False
        return True

    # ---- callbacks, in the event thread

    def on_drain(self) -> bool:
        now = self._runtime.monotonic()
        self._defer_at = min(self._defer_at, now + PROCESS_FIRST_S)
        return self._messages.is_drained(self._defers or now >= self._defer_at)

    def on_checkpoint(self, checkpoint: int) -> State:
        state = self._processor.on_checkpoint(checkpoint)
        return replace(state, offsets=self._messages.offsets) if isinstance(state, State) else state

    def on_reset(self, checkpoint: int, state: State) -> None:
        self._messages.clear(state.offsets)
        with self._resetting:  # a later request is for another reset
            self._resets += 1
            self._is_reset_asked = False
            self._messages.allow(RESET)
        try:
            self._processor.on_reset(checkpoint, state)
        except Exception as error:  # also one of a type that `poll` may raise and the operator survives
            self.stop(error)
            raise

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._messages.clear()

    on_partitions_lost = on_partitions_revoked


class MessageQueue:
    """Records that were polled and not processed yet, and each partition's processed offset (sources R8).

    The event thread adds polled records. The process thread takes one record at a time, and has the permit until it has
    processed that record. A cut or a reset by the event thread waits at most for that one record.

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

    def clear(self, offsets: Mapping[TopicPartition, int] = NO_OFFSETS) -> None:
        """Drop all records; the record in process is finished first, and not counted.

        :param offsets: where the partitions begin, after a reset.
        """
        with self._changed:
            self._records.clear()
            self._nbytes = 0
            self._is_awaited = True
            while self._is_busy:
                self._changed.wait()
            self._is_awaited = False
            self._offsets = dict(offsets)

    def close(self) -> None:
        """No record is processed any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _nbytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")

"""What all parts of one member share, and its calls: by one thread of one process at a time, none after `close`.

As KafkaConsumer's `acquireAndEnsureOpen`, with one difference: `close` may come at any time. A call that runs then ends
as soon as it can, and closes the consumer before it returns: a signal handler interrupts that call at any point, where
it may hold locks and await replies. For the same reason nothing here takes a lock.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.runtime import Event, Runtime, Thread, is_in_signal_handler
from zk_group.coordinator.zk.znodes.partitions import TopicPartition, by_topic, nested
from zk_group.coordinator.zk.znodes.paths import GroupPaths, error_text
from zk_group.coordinator.zk.znodes.records import Channel

from ..config import ConsumerConfig
from ..errors import Closed, ConcurrentModification, refuse_inherited
from ..logs.base import Fetch, Jump, Position
from ..metrics import Meter, unread

CLOSED = "This consumer has already been closed."
NOT_REENTRANT = "poll is not reentrant"
CLOSE_S = 60.0
"""How long `close` waits for a call of another thread."""
LOOK_S = 0.01
HELD = "by"
POLL = "poll"

P = ParamSpec("P")
T = TypeVar("T")


class CallGuard:
    """Guards one consumer object.

    :param wake: ends the waiting of `poll`.
    :ivar is_closed: whether `close` has ended.
    """

    def __init__(self, runtime: Runtime, wake: Event) -> None:
        self._made_in = os.getpid()
        self._runtime = runtime
        self._wake = wake
        self._holder: dict[str, Thread] = {}  # its `setdefault` is atomic, also for signal handlers
        self._depth = 0
        self._inside = ""
        self._is_waiting = False
        self._end: Callable[[], None] | None = None
        self._is_ending = False
        self._error: BaseException | None = None
        self._failure: Exception | None = None
        self._failing: tuple[float, str] | None = None
        self.is_closed = False

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called: a running call returns as soon as it can."""
        return self._end is not None

    def refuse_inherited(self) -> None:
        """
        :raises Inherited: in a process that was forked since: it has neither the consumer's threads nor its session.
        """
        refuse_inherited("consumer", self._made_in)

    def check(self) -> None:
        """
        :raises Closed: when the consumer is closed.
        :raises Inherited: in a process that was forked since.
        """
        self.refuse_inherited()
        if self.is_closed:
            raise Closed(CLOSED)

    def acquire(self, call: str) -> None:
        """Begin a call.

        :raises UsageError: for a `poll` inside a call of this thread.
        :raises Closed: when the consumer is closed, or another thread closes it.
        :raises ConcurrentModification: when a call of another thread has not returned.
        :raises Inherited: in a process that was forked since.
        """
        self.refuse_inherited()
        me = self._runtime.current_thread()
        holder = self._holder.setdefault(HELD, me)
        if holder is not me:
            if self.is_closing:
                raise Closed(CLOSED)
            threads = f"currentThread(name: {me.name}) otherThread(name: {holder.name})"
            raise ConcurrentModification(f"Consumer is not safe for multi-threaded access. {threads}")
        if self._depth and call == POLL:
            raise UsageError(f"poll was called inside {self._inside or 'another call'}: {NOT_REENTRANT}, return first")
        self._depth += 1  # from now on a `close` in a signal handler waits for `release`
        if self.is_closed:
            self.release()
            raise Closed(CLOSED)

    def release(self) -> None:
        """End a call, and close the consumer when `close` was called meanwhile."""
        self._depth -= 1
        if self._depth:
            return
        try:  # from here on a `close` in a signal handler closes it at once
            if self.is_closing:
                self._ended()
        finally:
            self._holder.clear()

    @contextmanager
    def callback(self, name: str) -> Iterator[None]:
        """Around a callback of the application."""
        outer, self._inside = self._inside, name
        try:
            yield
        except Exception as error:
            self._failure = error
            since = self._failing[0] if self._failing is not None else self._runtime.monotonic()
            self._failing = since, f"{name} raised {error_text(error)}"
            raise
        finally:
            self._inside = outer

    def succeeded(self) -> None:
        """`poll` has done all that was due: no callback fails now."""
        self._failing = None

    def failing(self, for_s: float = 0.0) -> str:
        """What a callback raises in each poll, for so many seconds; empty while none does, or one runs."""
        failing = self._failing  # read once: for the keeper
        if failing is None or self._inside or self._runtime.monotonic() - failing[0] < for_s:
            return ""
        return failing[1]

    def is_of_callback(self, error: Exception) -> bool:
        """Whether a callback has raised it, and nothing of this product."""
        return error is self._failure

    def wait(self, seconds: float) -> None:
        """Wait inside `poll` for the wake-up, or `close`."""
        self._is_waiting = True
        try:
            if not self.is_closing:
                self._wake.wait(seconds)
        finally:
            self._is_waiting = False

    def close(self, end: Callable[[], None]) -> None:
        """Call `end` once: now, or when the call that runs has ended. In another thread than that call's, wait for it.

        :raises UsageError: inside a callback, but for signal handlers; the consumer is closed when the call has ended.
        :raises CoordinatorError: when the other thread's call has not returned within `CLOSE_S`.
        :raises Inherited: in a process that was forked since.
        """
        self.refuse_inherited()
        if self.is_closed:
            return
        is_first, self._end = self._end is None, self._end or end
        me = self._runtime.current_thread()
        if self._holder.get(HELD) is me and self._depth:
            if self._is_waiting:  # not `set` itself: the interrupted `wait` may hold the lock of the event
                self._runtime.spawn(self._wake.set, "wake-for-close")
            if self._inside and not is_in_signal_handler():
                what = f"{NOT_REENTRANT}, the consumer is closed when it returns"
                raise UsageError(f"close was called inside {self._inside}: {what}")
            return
        until = self._runtime.monotonic() + CLOSE_S
        if is_first and self._holder.setdefault(HELD, me) is not me:
            self._wake.set()
        while self._holder.setdefault(HELD, me) is not me:
            if self._runtime.monotonic() >= until:
                raise CoordinatorError(f"poll has not returned within {CLOSE_S:g} s: the consumer has not left yet")
            self._runtime.sleep(LOOK_S)
        try:
            self._ended()
        finally:
            self._holder.clear()
        if is_first and self._error is not None:
            raise self._error

    def _ended(self) -> None:
        if self._is_ending or self._end is None:
            return
        self._is_ending = True
        self._depth += 1
        try:
            self._end()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.is_closed = True
            self._depth -= 1


class Guarded(Protocol):
    """An object with a guard."""

    _calls: CallGuard


S = TypeVar("S", bound=Guarded)


def exclusive(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A call that changes the consumer, of one thread at a time."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        calls = self._calls
        calls.acquire(method.__name__)
        try:
            return method(self, *args, **kwargs)
        finally:
            calls.release()

    return call


def shared(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A call that reads, or leaves a request for the next `poll`: from any thread."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._calls.check()
        return method(self, *args, **kwargs)

    return call


class Trace:
    """Records the events of one consumer, for the history of its process (`drills/checker/history.md`).

    :ivar incarnation: the current one; empty without one: then what is fetched, returned or sought is not recorded.
    """

    def __init__(self, runtime: Runtime, group: str, consumer: str) -> None:
        self._runtime = runtime
        self._names = {"group": group, "consumer": consumer}
        self.incarnation = ""

    def registered(self, incarnation: str, session: int) -> None:
        """An incarnation has begun."""
        self.incarnation = incarnation
        self._record("registered", incarnation, session=session)

    def over(self, incarnation: str, why: str) -> None:
        """The consumer has learnt that an incarnation has ended."""
        self._record("over", incarnation, why=why)

    def began(self, channel: Channel, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetching of these partitions begins."""
        offsets = nested({partition: start.offset for partition, start in starts.items()})
        topics = {partition.topic: start.topic_id for partition, start in sorted(starts.items())}
        self._record("begin", channel.incarnation, generation=channel.generation, partitions=offsets, topics=topics)

    def halted(self, lives: Mapping[TopicPartition, str], why: str) -> None:
        """Fetching of these partitions, by the incarnation of each, has ended."""
        by_life: dict[str, list[TopicPartition]] = {}
        for partition, incarnation in sorted(lives.items()):
            by_life.setdefault(incarnation, []).append(partition)
        for incarnation, partitions in by_life.items():
            self._record("halt", incarnation, partitions=by_topic(partitions), why=why)

    def sought(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The application has chosen these offsets itself: by a seek, or for a commit."""
        if offsets:
            self._record("sought", self.incarnation, partitions=nested(offsets))

    def fetched(self, fetched: Sequence[Fetch], checked: float) -> None:
        """Records were fetched.

        :param checked: the monotonic time right before the lease was checked for this fetch.
        """
        ranges = [
            _range(fetch.partition, fetch.topic_id, fetch.first, fetch.next) | ({} if fetch.rows else {"records": 0})
            for fetch in fetched
        ]
        if ranges:
            self._record("fetch", self.incarnation, ranges=ranges, checked=checked)

    def returned(self, records: Mapping[TopicPartition, tuple[int, Position]], checked: float) -> None:
        """`poll` returns these records.

        :param records: partition -> the first offset, and the position after its records.
        :param checked: as of `fetched`.
        """
        ranges = [_range(part, after.topic_id, first, after.offset) for part, (first, after) in records.items()]
        self._record("returned", self.incarnation, ranges=ranges, checked=checked)

    def jumped(self, jumps: Mapping[TopicPartition, Jump]) -> None:
        """These positions are out of range: fetching continues elsewhere."""
        for partition, jump in sorted(jumps.items()):
            where = {"topic": partition.topic, "topic_id": jump.topic_id, "partition": partition.partition}
            self._record("jump", self.incarnation, **where, before=jump.before, after=jump.after)

    def _record(self, event: str, incarnation: str, **fields: Any) -> None:
        if incarnation:
            self._runtime.record(event, **self._names, incarnation=incarnation, **fields)


def _range(partition: TopicPartition, topic_id: str, first: int, following: int) -> dict[str, Any]:
    where = {"topic": partition.topic, "topic_id": topic_id, "partition": partition.partition}
    return {**where, "first": first, "next": following}


class MemberContext:
    """One member, over all its incarnations: its configuration and names, the clock, the history, the metrics.

    :ivar consumer: its name.  :ivar paths: of its group.
    :ivar wake: set when `tend` has work: by watches, session events, the keeper, the application.
    :ivar calls: guards the calls of the application.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, meter: Meter | None = None) -> None:
        self.config = config
        self.consumer = config.consumer
        self.runtime = runtime
        self.meter = meter or unread()
        self.paths = GroupPaths(config.group)
        self.trace = Trace(runtime, config.group, config.consumer)
        self.wake: Event = runtime.event()
        self.calls = CallGuard(runtime, self.wake)

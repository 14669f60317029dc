"""The runtime seam: time, threads and queues, as the coordinator and the consumer see them."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Event(Protocol):
    """A flag that one thread sets and others wait for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Task(Protocol):
    """A thread of control that was spawned."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Queue(Protocol[T]):
    """A first-in first-out queue between threads."""

    def put(self, item: T) -> None: ...
    def get(self, timeout_s: float | None = None) -> T | None:
        """The oldest item, or None when `timeout_s` seconds went by without one (None waits for ever)."""


class Condition(AbstractContextManager[bool, None], Protocol):
    """A lock with `wait` and `notify_all`, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Runtime(Protocol):
    """What the code needs of an operating system. Seconds throughout."""

    def monotonic(self) -> float:
        """A clock that never goes back; only differences mean something."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, for people to read; nothing is decided by it."""

    def sleep(self, seconds: float) -> None: ...
    def spawn(self, function: Callable[[], None], name: str) -> Task: ...
    def event(self) -> Event: ...
    def lock(self) -> AbstractContextManager[object]:
        """A lock that its holder may take again."""

    def condition(self) -> Condition: ...
    def queue(self) -> Queue[T]: ...
    def random_id(self) -> str:
        """A name that nobody had before, 32 hexadecimal digits."""

    def record(self, event: str, **fields: Any) -> None:
        """Put an event into the process's history, where one is kept (`coordinator/checker/history.md`).

        :param fields: plain values; `until` is a moment of the monotonic clock.
        """


Recorder = Callable[[float, str, dict[str, Any]], None]
"""Keeps an event of this process: when by its monotonic clock, what, and the fields."""


class ThreadQueue(Queue[T]):
    """`queue.SimpleQueue`, with None for a time-out."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        self._queue.put(item)

    def get(self, timeout_s: float | None = None) -> T | None:
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None


class ThreadRuntime(Runtime):
    """Operating-system threads and clocks.

    :param recorder: keeps the process's history; without one there is none.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, function: Callable[[], None], name: str) -> Task:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def event(self) -> Event:
        return threading.Event()

    def lock(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def condition(self) -> Condition:
        return threading.Condition()

    def queue(self) -> Queue[T]:
        return ThreadQueue()

    def random_id(self) -> str:
        return uuid.uuid4().hex

    def record(self, event: str, **fields: Any) -> None:
        if self._recorder is not None:
            self._recorder(self.monotonic(), event, fields)


def on_signals(numbers: Iterable[signal.Signals], act: Callable[[signal.Signals], None]) -> None:
    """From now on call `act` with each of these signals that comes; from the main thread.

    It is called in a thread of its own and not in the handler, which runs in the midst of whatever the main thread
    does: were that the `wait` of an event, just when it holds the event's lock, a `set` in the handler would wait for
    that lock for ever.
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # whose `put` may be called in the midst of anything

    def carry_out() -> None:
        while True:
            number = signal.Signals(received.get())
            try:
                act(number)
            except Exception:  # the next one must be carried out all the same
                log.exception("signal not carried out: signal=%s", number.name)

    for number in numbers:
        signal.signal(number, lambda number, frame: received.put(number))
    threading.Thread(target=carry_out, name="signals", daemon=True).start()

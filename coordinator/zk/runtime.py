"""The runtime seam: time, threads and queues of the coordinator and the consumer."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from .below import EventFile
from .errors import UsageError
from .values import shown

log = logging.getLogger(__name__)
T = TypeVar("T")


class Event(Protocol):
    """A flag that one thread sets and others wait for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Task(Protocol):
    """A spawned thread of control."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Thread(Protocol):
    """A thread of control, as a caller: two calls come from one thread when these are one object."""

    @property
    def name(self) -> str:
        """For messages."""


class Queue(Protocol[T]):
    """A first-in first-out queue between threads."""

    def put(self, item: T) -> None: ...
    def get(self, timeout_s: float | None = None) -> T | None:
        """The oldest item, or None after `timeout_s` seconds without one (None waits without limit)."""


class Condition(AbstractContextManager[bool, None], Protocol):
    """A lock with `wait` and `notify_all`, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Runtime(Protocol):
    """The operating system's services. Seconds throughout."""

    def monotonic(self) -> float:
        """A clock that never goes back; only differences are meaningful."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, for people; no decision uses it."""

    def sleep(self, seconds: float) -> None: ...
    def spawn(self, function: Callable[[], None], name: str) -> Task: ...
    def current_thread(self) -> Thread:
        """The calling thread."""

    def event(self) -> Event: ...
    def lock(self) -> AbstractContextManager[object]:
        """A reentrant lock."""

    def condition(self) -> Condition: ...
    def queue(self) -> Queue[T]: ...
    def random_id(self) -> str:
        """A unique name, 32 hexadecimal digits."""

    def record(self, event: str, **fields: Any) -> None:
        """Append an event to the process's history, where one is kept (`drills/checker/history.md`).

        :param fields: plain values; `until` is a time of the monotonic clock.
        """


Recorder = Callable[[float, str, dict[str, Any]], None]
"""Records an event of this process: monotonic time, event, fields."""


def recorder_in(history_dir: str, name: str, **start: str) -> Recorder | None:
    """Records in `[history_dir]/[name]#[process id].jsonl`, as specified in `drills/checker/history.md`.

    :param start: fields of its first event, `start`.
    :returns: None when `history_dir` is empty.
    :raises UsageError: when the file cannot be written.
    """
    if not history_dir:
        return None
    who = f"{name}#{os.getpid()}"
    try:
        file = EventFile(history_dir, who)
    except OSError as error:
        raise UsageError(f"no history can be written to {shown(history_dir)}: {error.strerror}") from error

    def record(at: float, event: str, fields: dict[str, Any]) -> None:
        if start:
            file.add({"at": at, "who": who, "event": "start", **start})
            start.clear()
        file.add({"at": at, "who": who, "event": event, **fields})

    return record


class ThreadQueue(Queue[T]):
    """`queue.SimpleQueue`, with None on timeout."""

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

    :param recorder: records the process's history; None records nothing.
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

    def current_thread(self) -> Thread:
        return threading.current_thread()

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


ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals of a clean shutdown: by an operator, Ctrl-C, a closing terminal."""


def is_in_signal_handler() -> bool:
    """Whether a Python signal handler is on the stack of the caller."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code in handlers:
            return True
    return False


def on_signals(numbers: Iterable[signal.Signals], act: Callable[[signal.Signals], None]) -> None:
    """Call `act` with each received signal of these; from the main thread. SIGHUP stays ignored under `nohup`.

    `act` runs in a thread of its own, not in the signal handler: that interrupts the main thread at any point, and
    while it holds an event's lock inside `wait`, a `set` in the handler would deadlock.
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # its `put` is reentrant

    def carry_out() -> None:
        while True:
            number = signal.Signals(received.get())
            try:
                act(number)
            except Exception:  # the next signal must still be handled
                log.exception("signal handler failed: signal=%s", number.name)

    for number in numbers:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        signal.signal(number, lambda number, frame: received.put(number))
    threading.Thread(target=carry_out, name="signals", daemon=True).start()


MOST_LINES: Final = 10
INTERVAL_S: Final = 60.0


class FirstLines:
    """Counts lines by kind. Kinds are the program's own: there are few."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._began: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def take(self, kind: str) -> bool:
        """Whether one more line of this kind may be written; otherwise it is counted."""
        self.settle()
        with self._lock:
            self._began.setdefault(kind, self._runtime.monotonic())
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count == MOST_LINES + 1:
            log.warning("further lines counted: kind=%s interval_s=%d", kind, INTERVAL_S)
        return count <= MOST_LINES

    def settle(self) -> None:
        """Log the counts of the intervals that are over."""
        now = self._runtime.monotonic()
        with self._lock:
            over = [kind for kind, began in self._began.items() if now - began >= INTERVAL_S]
            counts = {kind: self._counts.pop(kind) - MOST_LINES for kind in over}
            for kind in over:
                del self._began[kind]
        for kind, left_out in counts.items():
            if left_out > 0:
                log.warning("lines left out: kind=%s count=%d interval_s=%d", kind, left_out, INTERVAL_S)

"""A runtime for one thread of control, whose clock is advanced by the test only."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from coordinator.zk.runtime import Condition, Event, Queue, Runtime, Task

T = TypeVar("T")


class Forever(AssertionError):
    """The code under test waits for an event that never happens."""


class ManualRuntime(Runtime):
    """A wait advances the clock; a wait without an end raises `Forever`; spawned threads are recorded, not run.

    :ivar now: the clock, in seconds.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.spawned: list[Callable[[], None]] = []
        self._ids = 0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def spawn(self, function: Callable[[], None], name: str) -> Task:
        self.spawned.append(function)
        return threading.Thread()

    def current_thread(self) -> threading.Thread:
        return threading.current_thread()

    def event(self) -> Event:
        return _Event(self)

    def lock(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def condition(self) -> Condition:
        return _Condition(self)

    def queue(self) -> Queue[T]:
        return _Queue()

    def random_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def record(self, event: str, **fields: Any) -> None:
        pass


class _Event:
    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            _wait(self._runtime, timeout)
        return self._is_set


class _Condition(Condition):
    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self._lock = threading.RLock()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        _wait(self._runtime, timeout)
        return False

    def notify_all(self) -> None:
        pass


class _Queue(Queue[T]):
    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)

    def get(self, timeout_s: float | None = None) -> T | None:
        return self._items.popleft() if self._items else None


def _wait(runtime: ManualRuntime, timeout: float | None) -> None:
    if timeout is None:
        raise Forever("waits for ever")
    runtime.now += max(timeout, 0.0)

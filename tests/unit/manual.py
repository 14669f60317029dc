"""A runtime for one thread of control, whose clock is advanced by the test only."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from zk_group.coordinator.zk.runtime import Condition, Event, Queue, Task, ThreadRuntime

T = TypeVar("T")


class Forever(AssertionError):
    """The code under test waits for an event that never happens."""


class ManualRuntime(ThreadRuntime):
    """A wait advances the clock; a wait without an end raises `Forever`; spawned threads are recorded, not run.

    :ivar now: the clock, in seconds.
    """

    def __init__(self, now: float = 1000.0) -> None:
        super().__init__()
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

    def event(self) -> Event:
        return _Event(self)

    def condition(self) -> Condition:
        return _Condition(self)

    def queue(self) -> Queue[T]:
        return _Queue()

    def random_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def waits(self, timeout: float | None) -> None:
        if timeout is None:
            raise Forever("waits for ever")
        self.now += max(timeout, 0.0)


class _Event(threading.Event):
    def __init__(self, runtime: ManualRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._runtime.waits(timeout)
        return self.is_set()


class _Condition(threading.Condition):
    def __init__(self, runtime: ManualRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def wait(self, timeout: float | None = None) -> bool:
        self._runtime.waits(timeout)
        return False


class _Queue(Queue[T]):
    def __init__(self) -> None:
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        self._items.append(item)

    def get(self, timeout_s: float | None = None) -> T | None:
        return self._items.popleft() if self._items else None

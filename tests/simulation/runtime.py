"""`Runtime` on the scheduler: one for each simulated process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.simulation.scheduler import LONGEST_FOR_A_LOCK_S, Scheduler, SimulatedProcess, SimulationFailure, Thread
from zk_group.coordinator.zk.runtime import Condition, Event, Queue, Runtime, Task

T = TypeVar("T")

Record = Callable[[SimulatedProcess, str, dict[str, Any]], None]
"""Puts an event of a process into the history."""


@dataclass(eq=False)
class SimRuntime(Runtime):
    """What one process has of time, threads and queues."""

    _scheduler: Scheduler
    process: SimulatedProcess
    _record: Record

    def monotonic(self) -> float:
        return self.process.clock()

    def wall_ms(self) -> int:
        return self._scheduler.wall_ms()

    def sleep(self, seconds: float) -> None:
        self._scheduler.seam()
        self._scheduler.park("a moment", self.process.virtual_s(max(0.0, seconds)))

    def spawn(self, function: Callable[[], None], name: str) -> Task:
        return self._scheduler.spawn(self.process, function, name)

    def current_thread(self) -> Thread:
        return self._scheduler.current

    def event(self) -> Event:
        return SimEvent(self._scheduler, self.process)

    def lock(self) -> AbstractContextManager[object]:
        return SimLock(self._scheduler)

    def condition(self) -> Condition:
        return SimCondition(self._scheduler, self.process)

    def queue(self) -> Queue[T]:
        return SimQueue(self._scheduler, self.process)

    def random_id(self) -> str:
        return f"{self._scheduler.random.getrandbits(128):032x}"

    def record(self, event: str, **fields: Any) -> None:
        if not self.process.is_dead:
            self._record(self.process, event, fields)


@dataclass(eq=False)
class SimEvent(Event):
    """A flag."""

    _scheduler: Scheduler
    _process: SimulatedProcess
    _is_set: bool = False
    _waiters: list[Thread] = field(default_factory=list)

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for thread in waiters:
            self._scheduler.unpark(thread)

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.seam()
        if self._is_set:
            return True
        thread = self._scheduler.current
        self._waiters.append(thread)
        own_s = None if timeout is None else self._process.virtual_s(max(0.0, timeout))
        if not self._scheduler.park("an event", own_s) and thread in self._waiters:
            self._waiters.remove(thread)
        return self._is_set


@dataclass(eq=False)
class SimQueue(Queue[T]):
    """A first-in first-out queue."""

    _scheduler: Scheduler
    _process: SimulatedProcess
    _items: deque[T] = field(default_factory=deque)
    _waiters: list[Thread] = field(default_factory=list)

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiters:
            self._scheduler.unpark(self._waiters.pop(0))

    def get(self, timeout_s: float | None = None) -> T | None:
        self._scheduler.seam()
        own_s = None if timeout_s is None else self._process.virtual_s(max(0.0, timeout_s))
        while not self._items:
            thread = self._scheduler.current
            self._waiters.append(thread)
            if not self._scheduler.park("an item", own_s):
                if thread in self._waiters:
                    self._waiters.remove(thread)
                return self._items.popleft() if self._items else None
        return self._items.popleft()


class SimLock(AbstractContextManager[bool]):
    """A lock that its holder may take again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._depth = 0
        self._waiters: list[Thread] = []
        self.holder: Thread | None = None

    def __enter__(self) -> bool:
        self._scheduler.seam()
        self._take(1)
        return True

    def __exit__(self, *failure: object) -> None:
        self._give(1)

    def _take(self, depth: int) -> None:
        thread = self._scheduler.current
        if self.holder is not thread:
            while self.holder is not None:
                self._waiters.append(thread)
                if not self._scheduler.park(f"a lock that {self.holder.name} holds", LONGEST_FOR_A_LOCK_S):
                    raise SimulationFailure(f"deadlock: {thread.name} waits for a lock\n{self._scheduler.where()}")
            self.holder, self._depth = thread, 0
        self._depth += depth

    def _give(self, depth: int) -> None:
        self._depth -= depth
        if self._depth == 0:
            self.holder = None
            if self._waiters:
                self._scheduler.unpark(self._waiters.pop(0))


class SimCondition(SimLock, Condition):
    """A lock with `wait` and `notify_all`."""

    def __init__(self, scheduler: Scheduler, process: SimulatedProcess) -> None:
        super().__init__(scheduler)
        self._process = process
        self._sleepers: list[Thread] = []

    def wait(self, timeout: float | None = None) -> bool:
        thread, depth = self._scheduler.current, self._depth
        self._sleepers.append(thread)
        own_s = None if timeout is None else self._process.virtual_s(max(0.0, timeout))
        self._give(depth)
        was_notified = self._scheduler.park("a change", own_s)
        if thread in self._sleepers:
            self._sleepers.remove(thread)
        self._take(depth)
        return was_notified

    def notify_all(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for thread in sleepers:
            self._scheduler.unpark(thread)

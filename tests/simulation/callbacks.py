"""What a store keeps of its watches, and the thread that calls them and the listeners, one after the other."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.links import LIST, LinkRequest, leaves_watch
from tests.simulation.scheduler import Scheduler, SimulatedProcess
from tests.simulation.znodes import CHILDREN, DELETED, Event
from zk_group.coordinator.zk.store import Watch


@dataclass(eq=False)
class CallbackThread:
    """Calls what it is given, in that order, in a thread of its own, so that it may take locks."""

    _scheduler: Scheduler
    _process: SimulatedProcess
    _calls: deque[tuple[Callable[[Any], None], Any]] = field(default_factory=deque)
    _is_idle: bool = False

    def __post_init__(self) -> None:
        self._thread = self._scheduler.spawn(self._process, self._run, "zookeeper")

    def call(self, function: Callable[[Any], None], argument: object) -> None:
        """Call it soon."""
        self._calls.append((function, argument))
        if self._is_idle:
            self._is_idle = False
            self._scheduler.unpark(self._thread)

    def close(self) -> None:
        """End behind what is to be called already; waits for that, unless it is itself the one who calls this."""
        self.call(_stop, None)
        if self._thread is not self._scheduler.current:
            self._thread.join()

    def _run(self) -> None:
        while True:
            while self._calls:
                function, argument = self._calls.popleft()
                if function is _stop:
                    return
                try:
                    function(argument)
                except Exception:  # noqa: BLE001  kazoo logs it, and goes on
                    where = f"{self._scheduler.now:.6f} {self._process.life} {self._thread.name}"
                    self._scheduler.crashed.append(f"{where}\n{traceback.format_exc()}")
            self._is_idle = True
            self._scheduler.park("something to call")


def _stop(_: object) -> None:
    """Ends the thread."""


@dataclass(eq=False)
class Watches:
    """The watches of one session, as kazoo keeps them: each callback once for a path and kind."""

    _scheduler: Scheduler
    _callbacks: CallbackThread
    _on_data: dict[str, dict[Watch, None]] = field(default_factory=dict)
    _on_children: dict[str, dict[Watch, None]] = field(default_factory=dict)

    def add(self, request: LinkRequest, watch: Watch) -> None:
        """An answer has come."""
        table = self._on_children if request.kind == LIST else self._on_data
        for path, found in zip(request.what, request.result, strict=True):
            if leaves_watch(request.kind, found):
                table.setdefault(path, {})[watch] = None

    def fire(self, events: list[Event]) -> None:
        """Call those who wait for these events, and forget them."""
        for kind, path in events:
            if kind != CHILDREN:
                self._notify(path, self._on_data.pop(path, None))
            if kind in (CHILDREN, DELETED):
                self._notify(path, self._on_children.pop(path, None))

    def fire_all(self) -> None:
        """Call all of them, and forget them."""
        for table in (self._on_children, self._on_data):
            for path, watches in table.items():
                self._notify(path, watches)
            table.clear()

    def _notify(self, path: str, watches: dict[Watch, None] | None) -> None:
        if not watches:
            return
        called = list(watches)
        if len(called) > 1:
            self._scheduler.random.shuffle(called)
        for watch in called:
            self._callbacks.call(watch, path)

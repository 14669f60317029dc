"""What the listeners have to read again: each event once, and changes before long work."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..zk.runtime import Runtime


class Event(NamedTuple):
    """Data that may have changed."""

    kind: str
    name: str = ""


class Agenda:
    """Events of two lanes. All changes that are there are taken in turn, then one piece of long work.

    So a change waits for each other change once, and for one piece of long work.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._added = runtime.condition()
        self._changes: dict[Event, None] = {}
        self._round: deque[Event] = deque()
        self._long: dict[Event, None] = {}
        self._later: dict[Event, float] = {}
        self._is_changes_turn = True

        self._runtime = runtime

    def put_at(self, event: Event, time: float) -> None:
        """A change that is taken at `time`, by the monotonic clock; no later than one of its kind that waits."""
        with self._added:
            self._later[event] = min(time, self._later.get(event, time))
            self._added.notify_all()

    def put(self, event: Event) -> None:
        """A change: one of several equal ones is kept."""
        with self._added:
            self._changes[event] = None
            self._added.notify_all()

    def put_long(self, event: Event) -> None:
        """A piece of long work."""
        with self._added:
            self._long[event] = None
            self._added.notify_all()

    def take(self) -> Event:
        """The next event; blocks until there is one."""
        with self._added:
            while True:
                self._take_due()
                if self._round:
                    return self._round.popleft()
                if self._long and not self._is_changes_turn:
                    self._is_changes_turn = True
                    event = next(iter(self._long))
                    del self._long[event]
                    return event
                self._is_changes_turn = False
                self._round.extend(self._changes)
                self._changes.clear()
                if not self._round and not self._long:
                    next_s = min(self._later.values()) - self._runtime.monotonic() if self._later else None
                    self._added.wait(next_s)

    def _take_due(self) -> None:
        for event in [each for each, time in self._later.items() if time <= self._runtime.monotonic()]:
            del self._later[event]
            self._changes[event] = None

"""When ZooKeeper's progress showed: the latest possible time of each transaction."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable


class ZxidClock:
    """Sees each zxid before any process of the drill does. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._zxids: list[int] = []
        self._times: list[float] = []

    def saw(self, zxid: int) -> None:
        """A server has done this transaction, and all before it."""
        with self._lock:
            if zxid > 0 and (not self._zxids or zxid > self._zxids[-1]):
                self._zxids.append(zxid)
                self._times.append(self._clock())

    def at(self, zxid: int) -> float:
        """The latest possible time of a transaction: no process can have been notified of it earlier.

        Now, when no server has shown it yet.
        """
        with self._lock:
            place = bisect_left(self._zxids, zxid)
            return self._times[place] if place < len(self._times) else self._clock()

"""A bound on log lines of one kind, whose number others decide: the first few of an interval, then a count."""

from __future__ import annotations

import logging
from typing import Final

from .runtime import Runtime

log = logging.getLogger(__name__)

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

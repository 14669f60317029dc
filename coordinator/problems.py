"""Bad data from outside: said once with its path, counted, and set aside."""

from __future__ import annotations

import logging

from .metrics import CoordinatorMetrics
from .zk.runtime import Runtime

log = logging.getLogger(__name__)


class Problems:
    """What is wrong where, at this moment, and how often anything was.

    :ivar count: complaints since the start; a path that says the same again does not count again.
    """

    def __init__(self, runtime: Runtime, metrics: CoordinatorMetrics | None = None) -> None:
        self._metrics = metrics or CoordinatorMetrics()
        self._lock = runtime.lock()
        self._current: dict[str, str] = {}
        self.count = 0

    def report(self, path: str, message: str) -> None:
        """`path` holds something that cannot be used."""
        with self._lock:
            if self._current.get(path) == message:
                return
            self._current[path] = message
            self.count += 1
            self._metrics.bad_data_found(len(self._current))
        log.warning("bad data set aside: path=%s problem=%s", path, message)

    def clear(self, path: str) -> None:
        """`path` is fine now, or gone."""
        with self._lock:
            if self._current.pop(path, None) is not None:
                self._metrics.bad_data_mended(len(self._current))
                log.info("bad data mended: path=%s", path)

    def current(self) -> dict[str, str]:
        """Path -> what is wrong there now."""
        with self._lock:
            return dict(self._current)


class Findings:
    """What one reader, reading the same things again and again, finds wrong: what it finds no more is cleared."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._before: set[str] = set()
        self._now: set[str] = set()

    def report(self, path: str, message: str) -> None:
        """`path` holds something that cannot be used."""
        self._now.add(path)
        self._problems.report(path, message)

    def done(self) -> None:
        """Everything has been read once more."""
        for path in self._before - self._now:
            self._problems.clear(path)
        self._before, self._now = self._now, set()

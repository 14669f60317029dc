"""Bad data from outside: logged once with its path (the first of each kind), counted, and ignored."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from ..zk.runtime import FirstLines, Runtime
from ..zk.znodes.paths import GROUPS, MAX_NAME, is_name, shown
from .metrics import CoordinatorMetrics

log = logging.getLogger(__name__)


class Problems:
    """The current problems by path, and their count since the start.

    :ivar count: problems since the start; the same problem of a path counts once.
    """

    def __init__(self, runtime: Runtime, metrics: CoordinatorMetrics | None = None) -> None:
        self._metrics = metrics or CoordinatorMetrics()
        self._lock = runtime.lock()
        self._lines = FirstLines(runtime)
        self._current: dict[str, str] = {}
        self.count = 0

    def report(self, path: str, message: str) -> None:
        """`path` has unusable data."""
        with self._lock:
            if self._current.get(path) == message:
                return
            self._current[path] = message
            self.count += 1
            self._metrics.bad_data_found(len(self._current))
            is_logged = self._lines.take(f"unreadable {_kind(path)}")
        if is_logged:
            log.warning("ignoring unreadable znode: path=%s problem=%s", path, message)

    def clear(self, path: str) -> None:
        """`path` is usable again, or gone."""
        with self._lock:
            if self._current.pop(path, None) is not None:
                self._metrics.bad_data_mended(len(self._current))
                if self._lines.take(f"recovered {_kind(path)}"):
                    log.info("unreadable znode recovered: path=%s", path)

    def settle(self) -> None:
        """A round of reading is over: log what was only counted, once in an interval."""
        with self._lock:
            self._lines.settle()

    def current(self) -> dict[str, str]:
        """Path -> its current problem."""
        with self._lock:
            return dict(self._current)


class Findings:
    """The problems found by one reader of the same paths; those that it no longer finds are cleared."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._before: set[str] = set()
        self._now: set[str] = set()

    def report(self, path: str, message: str) -> None:
        """`path` has unusable data."""
        self._now.add(path)
        self._problems.report(path, message)

    def usable(self, path: str, names: Iterable[str]) -> Iterator[str]:
        """The valid ones among the names of `path`'s children; the others are reported."""
        for name in names:
            if is_name(name):
                yield name
            else:
                self.report(f"{path}/{shown(name, MAX_NAME)}", "its name contains invalid characters")

    def forget(self) -> None:
        """What was read is gone."""
        self._before, self._now = self._before | self._now, set()
        self.done()

    def done(self) -> None:
        """Everything has been read again."""
        for path in sorted(self._before - self._now):
            self._problems.clear(path)
        self._before, self._now = self._now, set()
        self._problems.settle()


def _kind(path: str) -> str:
    """What is at `path`, without a name that others choose: `ids`, `channel`, `topics`."""
    if path.startswith(f"{GROUPS}/"):
        return (*path[len(GROUPS) + 1 :].split("/"), "group")[1]
    return path.split("/")[2] if path.count("/") > 1 else "znode"

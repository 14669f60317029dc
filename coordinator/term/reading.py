"""Reading znodes in a term: bad data is logged once with its path (the first of each kind), counted, and ignored.

A reader also keeps its parsed records, and the time at which it first saw each key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from ..zk.errors import AccessDenied, BadData
from ..zk.runtime import FirstLines, Runtime
from ..zk.store import Listing, Node, Store
from ..zk.values import shown
from ..zk.znodes.paths import GROUPS, MAX_NAME, is_name
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
        """A round of reading is over: log the counted problems, once in an interval."""
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

    def listed(self, path: str, listing: Listing | None) -> list[str] | None:
        """The valid names of `path`'s children, in order; None when it may not be listed, which is reported."""
        try:
            return sorted(self.usable(path, listing.names if listing is not None else ()))
        except AccessDenied as error:
            self.report(error.path, str(error))
            return None

    def forget(self) -> None:
        """The paths are gone: clear their problems."""
        self._before, self._now = self._before | self._now, set()
        self.done()

    def done(self) -> None:
        """Everything has been read again."""
        for path in sorted(self._before - self._now):
            self._problems.clear(path)
        self._before, self._now = self._now, set()
        self._problems.settle()


def _kind(path: str) -> str:
    """The kind of a znode, without names that users choose: `ids`, `channel`, `topics`."""
    if path.startswith(f"{GROUPS}/"):
        return (*path[len(GROUPS) + 1 :].split("/"), "group")[1]
    return path.split("/")[2] if path.count("/") > 1 else "znode"


T = TypeVar("T")


class ParsedRecords:
    """The records parsed in a group's last read, for the next one: few change from turn to turn.

    Records that are no longer requested are dropped.

    :param report: called with the path of an unreadable record, and the reason.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._before: dict[str, tuple[bytes, object]] = {}
        self._now: dict[str, tuple[bytes, object]] = {}

    def parsed(self, path: str, node: Node, parse: Callable[[str, bytes], T]) -> T | None:
        """The record at `path`, None when unreadable; always with the same `parse` for a path."""
        known = self._before.get(path)
        if known is None or known[0] != node.data:
            try:
                known = node.data, parse(path, node.data)
            except BadData as error:
                self._report(path, str(error))
                return None
        self._now[path] = known
        return cast(T, known[1])

    def forget_unseen(self) -> None:
        """Drop every path that was not requested since the last call."""
        self._before, self._now = self._now, {}


class FirstSeen:
    """When this coordinator first saw each key, for one group. Only for its own epoch, never shared.

    Keys that are no longer seen are dropped, which bounds its size.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._before: dict[tuple[str, ...], float] = {}
        self._now: dict[tuple[str, ...], float] = {}

    def age_s(self, *key: str) -> float:
        """Seconds since `key` was first requested."""
        now = self._runtime.monotonic()
        return now - self._now.setdefault(key, self._before.get(key, now))

    def forget_unseen(self) -> None:
        """Drop every key that was not requested since the last call."""
        self._before, self._now = self._now, {}


class GroupMemory:
    """The shared state of one group's readers in a term.

    :ivar problems: those of the last read.
    :ivar parsed: as of `ParsedRecords`.  :ivar age_s: as of `FirstSeen`.
    """

    def __init__(self, store: Store, runtime: Runtime, problems: Problems) -> None:
        self.store = store
        self.problems = Findings(problems)
        self._records = ParsedRecords(self.problems.report)
        self._first_seen = FirstSeen(runtime)
        self.parsed, self.age_s = self._records.parsed, self._first_seen.age_s

    def done(self) -> None:
        """Everything has been read again: drop the rest."""
        self._first_seen.forget_unseen()
        self._records.forget_unseen()
        self.problems.done()

"""What a reader of a group remembers in one term: the records that it has parsed, and when it first saw something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from ..zk.errors import BadData
from ..zk.runtime import Runtime
from ..zk.store import Node

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
        self._since: dict[tuple[str, ...], float] = {}
        self._seen: set[tuple[str, ...]] = set()

    def age_s(self, *key: str) -> float:
        """Seconds since `key` was first requested."""
        now = self._runtime.monotonic()
        self._seen.add(key)
        return now - self._since.setdefault(key, now)

    def forget_unseen(self) -> None:
        """Drop every key that was not requested since the last call."""
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        self._seen = set()

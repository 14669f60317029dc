"""Operators' requests, as this term's coordinator last read them: paused groups, and requested turns.

The listeners read and watch them; the handlers comply.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ..zk.errors import BadData, OutcomeUnknown, Refused
from ..zk.store import Delete, Node, Watch, nodes_at
from ..zk.znodes.paths import PAUSED, GroupPaths, shown
from ..zk.znodes.records import NOTHING_PAUSED, Pause, PausedRecord, TurnRequest
from .request_queue import Trigger
from .term import Term

log = logging.getLogger(__name__)

MOST_HELD = 50
"""Number of triggers kept of a paused group; the turn applies every change anyway."""


class Requested(NamedTuple):
    """A request for a turn: its znode, and its reason."""

    czxid: int
    version: int
    trigger: str


class OperatorRequests:
    """Operators' requests; read by the listeners' thread, used by the handlers."""

    def __init__(self, term: Term) -> None:
        self._store = term.store
        self._term = term
        self._problems = term.problems
        self._lock = term.runtime.lock()
        self._paused = NOTHING_PAUSED
        self._requested: dict[str, Requested] = {}
        self._held: dict[str, dict[Trigger, None]] = {}

    # ---- pauses

    def is_paused(self, group: str) -> bool:
        """Whether `group` is paused."""
        return self._paused.of(group) is not None

    def read_paused(self, watch: Watch) -> tuple[PausedRecord, PausedRecord]:
        """Read `/consumers/paused` and watch it; unreadable data leaves the last value.

        :returns: the pauses before and now.
        """
        before = self._paused
        node = self._store.get(PAUSED, watch=watch)
        try:
            after = PausedRecord.parse(PAUSED, node.data) if node is not None else NOTHING_PAUSED
        except BadData as error:
            self._problems.report(PAUSED, str(error))
            return before, before
        self._problems.clear(PAUSED)
        self._paused = after
        _log_changes(before, after)
        return before, after

    def hold(self, group: str, triggers: Sequence[Trigger]) -> None:
        """`group` is paused: keep the triggers of its turn until the first turn after the resume."""
        with self._lock:
            held = self._held.setdefault(group, {})
            held.update(dict.fromkeys(triggers[: MOST_HELD - len(held)]))

    def with_held(self, group: str, triggers: Sequence[Trigger]) -> tuple[Trigger, ...]:
        """`triggers` after the held ones, without duplicates; clears those held for `group`."""
        with self._lock:
            return tuple({**self._held.pop(group, {}), **dict.fromkeys(triggers)})

    def held(self) -> list[str]:
        """The groups with held triggers, including deleted ones."""
        with self._lock:
            return sorted(self._held)

    # ---- requests for a turn

    def requested(self, group: str) -> Requested | None:
        """The pending request of `group`."""
        with self._lock:
            return self._requested.get(group)

    def read_requests(self, groups: Sequence[str], watch: Watch) -> dict[str, Requested]:
        """Read `request` of each group and watch it; group -> its request, new ones only."""
        news = {}
        for group, path, node in nodes_at(self._store, groups, lambda group: GroupPaths(group).request, watch):
            found = self._parsed(path, node)
            with self._lock:
                before = self._requested.pop(group, None)
                if found is not None:
                    self._requested[group] = found
            if found is not None and found != before:
                news[group] = found
        return news

    def forget(self, group: str) -> None:
        """`group` is gone."""
        self._problems.clear(GroupPaths(group).request)
        with self._lock:
            self._requested.pop(group, None)

    def answer(self, group: str, request: Requested) -> bool:
        """Remove `request`: a turn that began after it was read has succeeded.

        :returns: whether it was removed: False for another request, which the watch reports.
        :raises EpochOver: when another coordinator has been elected.
        :raises LeaseLapsed: when this coordinator must not act.
        :raises Retryable: when ZooKeeper did not answer.
        """
        path = GroupPaths(group).request
        node = self._store.get(path)
        if node is None or (node.stat.czxid, node.stat.version) != (request.czxid, request.version):
            return False
        try:
            self._term.commit([Delete(path, request.version)])
        except Refused:
            return False
        except OutcomeUnknown:
            self._store.sync()
            raise
        log.info("requested turn completed: group=%s request=%s", group, request.trigger)
        return True

    def _parsed(self, path: str, node: Node | None) -> Requested | None:
        """The request. An unreadable one counts too: the znode is the request, its data only names the operator."""
        if node is None:
            self._problems.clear(path)
            return None
        trigger = "requested"
        try:
            request = TurnRequest.parse(path, node.data)
        except BadData as error:
            self._problems.report(path, str(error))
        else:
            self._problems.clear(path)
            trigger += f" by {request.by}" if request.by else ""
            trigger += f": {request.reason}" if request.reason else ""
        return Requested(node.stat.czxid, node.stat.version, trigger)


def _log_changes(before: PausedRecord, after: PausedRecord) -> None:
    """One log line for each new or removed pause."""
    old, new = _pauses(before), _pauses(after)
    for group in sorted(set(new) - set(old)):
        pause = new[group]
        log.warning("paused: group=%s by=%s reason=%s", group, shown(pause.by), shown(pause.reason or "-", 200))
    for group in sorted(set(old) - set(new)):
        log.info("resumed: group=%s", group)


def _pauses(record: PausedRecord) -> dict[str, Pause]:
    return {**record.groups, **({"*": record.everything} if record.everything else {})}

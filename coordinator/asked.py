"""What operators have asked for, as this term's coordinator last read it: paused groups, and requested turns.

The listeners read it and watch it; the handlers obey it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from .problems import Problems
from .term import Term
from .zk.asked import NOTHING_PAUSED, Pause, PausedRecord, TurnRequest
from .zk.errors import BadData, EpochOver, OutcomeUnknown, Refused
from .zk.names import shown
from .zk.paths import COORDINATOR_EPOCH, PAUSED, GroupPaths
from .zk.runtime import Runtime
from .zk.store import Check, Delete, Node, Store, Watch

log = logging.getLogger(__name__)

MOST_HELD = 50
"""Reasons that are kept of what asked for turns of a group while it was paused; the turn sees every change anyway."""


class Requested(NamedTuple):
    """A request for a turn: which znode it is, and what it says."""

    czxid: int
    version: int
    trigger: str


class Asked:
    """Read by the listeners' thread, asked by the handlers."""

    def __init__(self, store: Store, runtime: Runtime, term: Term, problems: Problems) -> None:
        self._store = store
        self._term = term
        self._problems = problems
        self._lock = runtime.lock()
        self._paused = NOTHING_PAUSED
        self._requested: dict[str, Requested] = {}
        self._held: dict[str, dict[str, None]] = {}

    # ---- pauses

    def pause_of(self, group: str) -> Pause | None:
        """The pause that `group` is under, None when it takes its turns."""
        return self._paused.of(group)

    def read_paused(self, watch: Watch) -> tuple[PausedRecord, PausedRecord]:
        """Read `/consumers/paused` and watch it; what cannot be read leaves things as they were.

        :returns: what was paused before, and what is now.
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
        _tell(before, after)
        return before, after

    def hold(self, group: str, reasons: Sequence[str]) -> None:
        """`group` is paused: keep what asked for its turn, until it is resumed and the next is asked for."""
        with self._lock:
            held = self._held.setdefault(group, {})
            held.update(dict.fromkeys(reasons[: MOST_HELD - len(held)]))

    def with_held(self, group: str, reasons: Sequence[str]) -> tuple[str, ...]:
        """`reasons` behind those that were held, each once; nothing is held for `group` any more."""
        with self._lock:
            return tuple({**self._held.pop(group, {}), **dict.fromkeys(reasons)})

    def held(self) -> list[str]:
        """The groups for which something is held, those included that are gone by now."""
        with self._lock:
            return sorted(self._held)

    # ---- requests for a turn

    def requested(self, group: str) -> Requested | None:
        """The request that stands for `group`."""
        with self._lock:
            return self._requested.get(group)

    def read_requests(self, groups: Sequence[str], watch: Watch) -> dict[str, Requested]:
        """Read `request` of each group and watch it; group -> its request, of those that were not known."""
        paths = [GroupPaths(group).request for group in groups]
        news = {}
        for group, path, node in zip(groups, paths, self._store.get_many(paths, watch=watch), strict=True):
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

    def answer(self, group: str, request: Requested) -> None:
        """Remove `request`: a turn that began after it was read has succeeded.

        :raises EpochOver: when another coordinator has been elected.
        :raises Retryable: when ZooKeeper did not answer.
        """
        path = GroupPaths(group).request
        node = self._store.get(path)
        if node is None or (node.stat.czxid, node.stat.version) != (request.czxid, request.version):
            return  # another request, of which the watch tells
        try:
            self._store.commit([Check(COORDINATOR_EPOCH, self._term.fence), Delete(path, request.version)])
        except Refused as refused:
            if refused.path == COORDINATOR_EPOCH:
                raise EpochOver(f"epoch {self._term.epoch} is over: another coordinator was elected") from refused
            return
        except OutcomeUnknown:
            self._store.sync()
            raise
        log.info("requested turn taken: group=%s request=%s", group, request.trigger)

    def _parsed(self, path: str, node: Node | None) -> Requested | None:
        """The request. One that cannot be read is one all the same: its znode asks, its data only says who."""
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


def _tell(before: PausedRecord, after: PausedRecord) -> None:
    """One log line for each pause that came or went."""
    old, new = _pauses(before), _pauses(after)
    for group in sorted(set(new) - set(old)):
        pause = new[group]
        log.warning("paused: group=%s by=%s reason=%s", group, shown(pause.by), shown(pause.reason or "-", 200))
    for group in sorted(set(old) - set(new)):
        log.info("resumed: group=%s", group)


def _pauses(record: PausedRecord) -> dict[str, Pause]:
    return {**record.groups, **({"*": record.everything} if record.everything else {})}

"""The transactions of ZooKeeper, reconstructed from an observer's watch events and its clients' requests and replies.

A replacement for `checker.transactions` where transaction logs are not readable. The observer gets the path and kind of
each change, and the zxid of its transaction. The transaction's content is in the request whose reply has that zxid. A
request without a reply may have been done, too: then a transaction has no reply, and its changes match that request.
Ephemerals that are removed in a transaction without a request went with their session. Other transactions are by
strangers, and the observer has read the data. Where even that is missing, the history ends: a shorter history proves
less, but nothing false.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from coordinator.zk.errors import BadData

from ..checker.replay.commits import HAND
from ..faults.packets import CLOSE_SESSION, OperationResult, Part, WatchEvent, head, op_code, parts_of, results_of
from ..faults.traffic_capture import CapturedWrite, Traffic

Event = dict[str, Any]
_KIND_OF = {"create": "created", "set": "changed", "delete": "deleted"}
_SEQUENCE = 10
"""The digits that ZooKeeper appends to the path of a sequential znode."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A parsed write. `parts` have the created paths; empty: the end of its session."""

    request: CapturedWrite
    parts: tuple[Part, ...]
    results: tuple[OperationResult, ...] = ()

    @property
    def is_close(self) -> bool:
        return op_code(self.request.body) == CLOSE_SESSION


class Unexplained(Exception):
    """A transaction cannot be reconstructed."""


@dataclass(slots=True)
class Observed:
    """The reconstruction.

    :ivar events: in the format of `events_of`; the last is `end` after an unexplained transaction.
    :ivar problem: the unexplained transaction; "" without one.
    """

    events: list[Event] = field(default_factory=list)
    problem: str = ""


def observed(
    traffic: Traffic, who: Mapping[int, str], roots: Sequence[str], chroot: str, since: int, until: int
) -> Observed:
    """The events `session`, `commit` and `closed` of a drill.

    :param who: session -> process; `hand` for unknown sessions.
    :param roots: the paths that the observer watched.
    :param chroot: events are restricted and relative to it.
    :param since: the observer received every change after this zxid, up to `until`.
    """
    result = Observed(
        [
            {
                "at": at,
                "who": who.get(session, HAND),
                "event": "session",
                "session": session,
                "timeout": granted_ms / 1000,
                "asked": asked_ms / 1000,
            }
            for at, session, granted_ms, asked_ms in traffic.sessions.values()
        ]
    )
    if traffic.problem:
        _end(result, traffic.problem_at, traffic.problem)
    if any(event.zxid <= 0 for event in traffic.observed):
        _end(result, 0.0, "watch events have no zxid: ZooKeeper 3.9 or newer is needed")
        return result
    try:
        join = _Join(traffic, who, roots, chroot)
    except BadData as error:
        _end(result, 0.0, f"unreadable packet: {error}")
        return result
    for zxid, watch_events in join.transactions(since, until):
        try:
            result.events += join.event(zxid, watch_events)
        except Unexplained as why:
            _end(result, join.at(zxid), f"the transaction at zxid 0x{zxid:x} cannot be reconstructed: {why}")
            break
    return result


def _end(result: Observed, at: float, problem: str) -> None:
    """Later events are unknown."""
    result.problem = result.problem or problem
    result.events.append({"at": at, "who": "server", "event": "end"})


class _Join:
    """Processes the transactions in order, and tracks the znodes."""

    def __init__(self, traffic: Traffic, who: Mapping[int, str], roots: Sequence[str], chroot: str) -> None:
        self._traffic = traffic
        self._who = who
        self._roots = tuple(roots)
        self._chroot = chroot
        self._marks = [zxid for _, zxid in traffic.marks]
        self._answered: dict[int, _Asked] = {}
        for request, reply in traffic.answered:
            results = results_of(request.body, reply)
            if results is not None:
                parts = parts_of(request.body)
                self._answered[head(reply).zxid] = _Asked(request, _made(parts, results), results)
        self._unanswered = [_Asked(request, parts_of(request.body)) for request in traffic.unanswered]
        self._versions: dict[str, int] = {}
        self._owners: dict[str, int] = {}

    def at(self, zxid: int) -> float:
        """The latest possible time of a transaction: no process can have been notified of it earlier."""
        place = bisect_left(self._marks, zxid)
        return self._traffic.marks[min(place, len(self._marks) - 1)][0]

    def transactions(self, since: int, until: int) -> Iterator[tuple[int, list[WatchEvent]]]:
        """Each zxid with its watch events."""
        watch_events = {
            zxid: list(events) for zxid, events in groupby(self._traffic.observed, lambda event: event.zxid)
        }
        for zxid in sorted({*watch_events, *self._answered}):
            if since < zxid <= until:
                yield zxid, watch_events.get(zxid, [])

    def event(self, zxid: int, watch_events: list[WatchEvent]) -> list[Event]:
        """The events of a transaction; empty for irrelevant ones.

        :raises Unexplained: when it cannot be reconstructed.
        """
        asked = self._answered.get(zxid)
        if asked is not None and not asked.is_close and self._changes(asked.parts) != _seen(watch_events):
            raise Unexplained("the watch events do not match the request")
        if asked is None:
            asked = self._lost(zxid, watch_events)
        if asked is not None and asked.is_close:
            return [self._closed(asked.request.session, zxid, watch_events, "closed")]
        if asked is not None:
            self._drop_earlier(asked)
            return self._commit(zxid, asked.request.session, [self._done(*each) for each in _pairs(asked)])
        session = self._session_that_ended(zxid, watch_events)
        if session is not None:
            return [self._closed(session, zxid, watch_events, "expired")]
        return self._commit(zxid, None, [self._by_hand(event, zxid) for event in watch_events])

    # ---- the effects of a request

    def _done(self, part: Part, result: OperationResult) -> Event | None:
        """One operation as a history event; updates the tracked znodes."""
        path, before = part.path, self._versions.get(part.path)
        if part.op == "check":
            version = part.version if part.version >= 0 else before
            return {"op": "check", "path": path, "version": version}
        if part.op == "delete":
            self._forget(path)
            return {"op": "delete", "path": path}
        if part.op == "create":
            self._versions[path] = 0
            return {"op": "create", "path": path, "data": part.data, "ephemeral": part.ephemeral}
        known = before if before is not None else part.version if part.version >= 0 else None
        version = result.version if result.version >= 0 else known + 1 if known is not None else None
        if version is None:
            raise Unexplained(f"the version of {path} is unknown")
        self._versions[path] = version
        return {"op": "set", "path": path, "data": part.data, "version": version}

    def _forget(self, path: str) -> None:
        self._versions.pop(path, None)
        self._owners.pop(path, None)

    def _commit(self, zxid: int, session: int | None, operations: Sequence[Event | None]) -> list[Event]:
        below = [
            {**operation, "path": operation["path"].removeprefix(self._chroot)}
            for operation in operations
            if operation is not None and operation["path"].startswith(f"{self._chroot}/")
        ]
        for operation in operations:
            if operation is not None and operation.get("ephemeral") and session is not None:
                self._owners[operation["path"]] = session
        who = self._who.get(session, HAND) if session is not None else HAND
        frame = {"at": self.at(zxid), "who": who, "event": "commit", "session": session, "zxid": zxid}
        return [{**frame, "ops": below}] if below else []

    # ---- a session that ended

    def _closed(self, session: int, zxid: int, watch_events: list[WatchEvent], why: str) -> Event:
        for event in watch_events:
            if event.kind != "deleted" or self._owners.get(event.path) != session:
                raise Unexplained(f"{event.path} was {event.kind} at the end of a session that had not created it")
            self._forget(event.path)
        paths = [e.path.removeprefix(self._chroot) for e in watch_events if e.path.startswith(f"{self._chroot}/")]
        who = self._who.get(session, HAND)
        frame = {"at": self.at(zxid), "who": who, "event": "closed", "session": session, "zxid": zxid}
        return {**frame, "why": why, "paths": paths}

    def _session_that_ended(self, zxid: int, watch_events: list[WatchEvent]) -> int | None:
        """The owner of all these ephemerals; None after a manual removal: their session continues, or has others."""
        sessions = {self._owners.get(event.path) for event in watch_events}
        session = sessions.pop() if len(sessions) == 1 else None
        if session is None or any(event.kind != "deleted" for event in watch_events):
            return None
        its = {path for path, owner in self._owners.items() if owner == session}
        lives = self._traffic.alive.get(session, 0) > zxid
        return session if its == {event.path for event in watch_events} and not lives else None

    # ---- a request whose reply did not come

    def _lost(self, zxid: int, watch_events: list[WatchEvent]) -> _Asked | None:
        """The matching request without a reply.

        :raises Unexplained: when several requests match, and differ.
        """
        fitting = [one for asked in self._unanswered if (one := self._fitting(asked, zxid, watch_events)) is not None]
        for other in fitting[1:]:
            if (other.request.session, other.parts) != (fitting[0].request.session, fitting[0].parts):
                raise Unexplained(f"{len(fitting)} requests without a reply match these changes")
        return fitting[0] if fitting else None

    def _fitting(self, asked: _Asked, zxid: int, watch_events: list[WatchEvent]) -> _Asked | None:
        """The request with the paths that it would have created; None when it does not match the transaction."""
        request = asked.request
        if request.after >= zxid or request.at > self.at(zxid):
            return None
        if asked.is_close:
            return asked if self._may_have_closed(asked, zxid, watch_events) else None
        changing = [part for part in asked.parts if part.op in _KIND_OF and self._is_watched(part.path)]
        if len(changing) != len(watch_events) or not all(map(_is_of, changing, watch_events)):
            return None
        paths = iter(event.path for event in watch_events)
        parts = tuple(
            part._replace(path=next(paths)) if part.op in _KIND_OF and self._is_watched(part.path) else part
            for part in asked.parts
        )
        return _Asked(request, parts) if self._is_possible(parts) and self._was_read(parts, zxid) else None

    def _may_have_closed(self, asked: _Asked, zxid: int, watch_events: list[WatchEvent]) -> bool:
        """Whether the client closed its session: it could not have expired so soon."""
        session = asked.request.session
        opened = self._traffic.sessions.get(session)
        soon = opened is not None and self.at(zxid) - asked.request.at < opened.timeout_ms / 2000
        return soon and bool(watch_events) and self._session_that_ended(zxid, watch_events) == session

    def _is_possible(self, parts: tuple[Part, ...]) -> bool:
        """Whether its expected versions match the znodes."""
        touched: set[str] = set()
        for part in parts:
            known = self._versions.get(part.path) if part.path not in touched else None
            if part.version >= 0 and known is not None and known != part.version:
                return False
            touched.add(part.path)
        return True

    def _was_read(self, parts: tuple[Part, ...], zxid: int) -> bool:
        """Whether the observer's reads do not contradict its data."""
        last = {part.path: part.data for part in parts if part.data is not None}
        read = {path: self._traffic.reads.get((path, zxid)) for path in last}
        return all(node is None or node.data == last[path] for path, node in read.items())

    def _drop_earlier(self, asked: _Asked) -> None:
        """Earlier requests of its connection are obsolete: a connection is ordered."""
        link, at = asked.request.link, asked.request.at
        self._unanswered = [each for each in self._unanswered if each.request.link != link or each.request.at > at]

    # ---- strangers

    def _by_hand(self, event: WatchEvent, zxid: int) -> Event:
        path = event.path
        if event.kind == "deleted":
            self._forget(path)
            return {"op": "delete", "path": path}
        node = self._traffic.reads.get((path, zxid))
        if node is None:
            raise Unexplained(f"a stranger has {event.kind} {path}, and it changed again before it could be read")
        self._versions[path] = node.version
        if event.kind == "changed":
            return {"op": "set", "path": path, "data": node.data, "version": node.version}
        if node.ephemeral_owner:
            self._owners[path] = node.ephemeral_owner
        return {"op": "create", "path": path, "data": node.data, "ephemeral": bool(node.ephemeral_owner)}

    # ---- the expected watch events

    def _is_watched(self, path: str) -> bool:
        return any(path == root or path.startswith(f"{root}/") for root in self._roots)

    def _changes(self, parts: Sequence[Part]) -> list[tuple[str, str]]:
        return [(_KIND_OF[part.op], part.path) for part in parts if part.op in _KIND_OF and self._is_watched(part.path)]


def _seen(watch_events: Sequence[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.path) for event in watch_events]


def _made(parts: tuple[Part, ...], results: tuple[OperationResult, ...]) -> tuple[Part, ...]:
    """The operations with their created paths."""
    if len(parts) != len(results):
        raise BadData(f"{len(results)} results of {len(parts)} operations")
    return tuple(
        part._replace(path=result.path) if part.op == "create" else part
        for part, result in zip(parts, results, strict=True)
    )


def _pairs(asked: _Asked) -> Iterator[tuple[Part, OperationResult]]:
    return zip(asked.parts, asked.results or (OperationResult(),) * len(asked.parts), strict=True)


def _is_of(part: Part, event: WatchEvent) -> bool:
    """Whether a watch event matches the operation."""
    if part.sequential:
        name, digits = event.path[:-_SEQUENCE], event.path[-_SEQUENCE:]
        return event.kind == "created" and name == part.path and digits.lstrip("-").isdigit()
    return (event.kind, event.path) == (_KIND_OF[part.op], part.path)

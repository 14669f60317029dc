"""What ZooKeeper did, from what an observer was told of it and from what its clients asked for and heard.

Gives what `checker.transactions` reads from transaction logs, where nobody can read those. An observer is told the path
and kind of each change, and the zxid of its transaction. What the transaction said is in the request whose reply names
that zxid. A request without a reply may have been done, too: then there is a transaction that no reply explains, and
that changes just what this request would have. Ephemerals that go in a transaction that nobody has asked for went with
their session. Anything else somebody else did, and the observer has read what he wrote. Where even that is not known,
nothing is said of it, nor of what came after it: a history that ends early proves less, but nothing that is not so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..checker.commits import HAND
from ..zk.errors import BadData
from .tap import Request, Traffic
from .wire import CLOSE_SESSION, Part, Result, Told, head, op_code, parts_of, results_of

Event = dict[str, Any]
_KIND_OF = {"create": "created", "set": "changed", "delete": "deleted"}
_SEQUENCE = 10
"""Digits that ZooKeeper appends to the path of a sequential znode."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A write, parsed. `parts` have the paths that were made; none: the end of its session."""

    request: Request
    parts: tuple[Part, ...]
    results: tuple[Result, ...] = ()

    @property
    def is_close(self) -> bool:
        return op_code(self.request.body) == CLOSE_SESSION


class Unexplained(Exception):
    """A transaction of which too little is known."""


@dataclass(slots=True)
class Observed:
    """What is known.

    :ivar events: as `events_of` gives them; the last is `end` where something could not be explained.
    :ivar problem: what could not be explained; "" when all was.
    """

    events: list[Event] = field(default_factory=list)
    problem: str = ""


def observed(
    traffic: Traffic, who: Mapping[int, str], roots: Sequence[str], chroot: str, since: int, until: int
) -> Observed:
    """The events `session`, `commit` and `closed` of a drill.

    :param who: session -> process; `hand` for those that it does not name.
    :param roots: what the observer watched.
    :param chroot: only what stands below it, without it.
    :param since: the zxid after which the observer was told of everything, up to `until`.
    """
    found = Observed(
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
        _end(found, traffic.problem_at, traffic.problem)
    if any(event.zxid <= 0 for event in traffic.told):
        _end(found, 0.0, "this ZooKeeper does not tell of which transaction a change is: 3.9 or newer is needed")
        return found
    try:
        join = _Join(traffic, who, roots, chroot)
    except BadData as error:
        _end(found, 0.0, f"a packet cannot be read: {error}")
        return found
    for zxid, told in join.transactions(since, until):
        try:
            found.events += join.event(zxid, told)
        except Unexplained as why:
            _end(found, join.at(zxid), f"what ZooKeeper did at zxid 0x{zxid:x} cannot be told: {why}")
            break
    return found


def _end(found: Observed, at: float, problem: str) -> None:
    """Nothing that came later is known."""
    found.problem = found.problem or problem
    found.events.append({"at": at, "who": "server", "event": "end"})


class _Join:
    """Goes through the transactions in order, and knows what stands in ZooKeeper meanwhile."""

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
        """When it had happened at the latest: nobody who noted something later can have been told sooner."""
        place = bisect_left(self._marks, zxid)
        return self._traffic.marks[min(place, len(self._marks) - 1)][0]

    def transactions(self, since: int, until: int) -> Iterator[tuple[int, list[Told]]]:
        """Each zxid with what the observer was told of it."""
        told = {zxid: list(events) for zxid, events in groupby(self._traffic.told, lambda event: event.zxid)}
        for zxid in sorted({*told, *self._answered}):
            if since < zxid <= until:
                yield zxid, told.get(zxid, [])

    def event(self, zxid: int, told: list[Told]) -> list[Event]:
        """What a transaction did; nothing when that is of no interest.

        :raises Unexplained: when too little is known of it.
        """
        asked = self._answered.get(zxid)
        if asked is not None and not asked.is_close and self._changes(asked.parts) != _seen(told):
            raise Unexplained("the observer was told something else than was asked for")
        if asked is None:
            asked = self._lost(zxid, told)
        if asked is not None and asked.is_close:
            return [self._closed(asked.request.session, zxid, told, "closed")]
        if asked is not None:
            self._drop_earlier(asked)
            return self._commit(zxid, asked.request.session, [self._done(*each) for each in _pairs(asked)])
        session = self._session_that_ended(zxid, told)
        if session is not None:
            return [self._closed(session, zxid, told, "expired")]
        return self._commit(zxid, None, [self._by_hand(event, zxid) for event in told])

    # ---- what a request did

    def _done(self, part: Part, result: Result) -> Event | None:
        """One operation as a history has it, and what it leaves."""
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
            raise Unexplained(f"the version of {path} is not known")
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

    def _closed(self, session: int, zxid: int, told: list[Told], why: str) -> Event:
        for event in told:
            if event.kind != "deleted" or self._owners.get(event.path) != session:
                raise Unexplained(f"{event.path} was {event.kind} when a session ended that had not made it")
            self._forget(event.path)
        paths = [e.path.removeprefix(self._chroot) for e in told if e.path.startswith(f"{self._chroot}/")]
        who = self._who.get(session, HAND)
        frame = {"at": self.at(zxid), "who": who, "event": "closed", "session": session, "zxid": zxid}
        return {**frame, "why": why, "paths": paths}

    def _session_that_ended(self, zxid: int, told: list[Told]) -> int | None:
        """Whose ephemerals these all are; None where a hand has removed them: their session goes on, or has others."""
        sessions = {self._owners.get(event.path) for event in told}
        session = sessions.pop() if len(sessions) == 1 else None
        if session is None or any(event.kind != "deleted" for event in told):
            return None
        its = {path for path, owner in self._owners.items() if owner == session}
        lives = self._traffic.alive.get(session, 0) > zxid
        return session if its == {event.path for event in told} and not lives else None

    # ---- a request whose reply did not come

    def _lost(self, zxid: int, told: list[Told]) -> _Asked | None:
        """The request without a reply that did this.

        :raises Unexplained: when it may have been one or another, and they do not say the same.
        """
        fitting = [one for asked in self._unanswered if (one := self._fitting(asked, zxid, told)) is not None]
        for other in fitting[1:]:
            if (other.request.session, other.parts) != (fitting[0].request.session, fitting[0].parts):
                raise Unexplained(f"{len(fitting)} requests without a reply would have changed just this")
        return fitting[0] if fitting else None

    def _fitting(self, asked: _Asked, zxid: int, told: list[Told]) -> _Asked | None:
        """The request with the paths that it would have made here; None when it cannot have done this."""
        request = asked.request
        if request.after >= zxid or request.at > self.at(zxid):
            return None
        if asked.is_close:
            return asked if self._may_have_closed(asked, zxid, told) else None
        changing = [part for part in asked.parts if part.op in _KIND_OF and self._is_watched(part.path)]
        if len(changing) != len(told) or not all(map(_is_of, changing, told)):
            return None
        paths = iter(event.path for event in told)
        parts = tuple(
            part._replace(path=next(paths)) if part.op in _KIND_OF and self._is_watched(part.path) else part
            for part in asked.parts
        )
        return _Asked(request, parts) if self._is_possible(parts) and self._was_read(parts, zxid) else None

    def _may_have_closed(self, asked: _Asked, zxid: int, told: list[Told]) -> bool:
        """Whether the session ended because its client said so: without that it could not have expired so soon."""
        session = asked.request.session
        opened = self._traffic.sessions.get(session)
        soon = opened is not None and self.at(zxid) - asked.request.at < opened.timeout_ms / 2000
        return soon and bool(told) and self._session_that_ended(zxid, told) == session

    def _is_possible(self, parts: tuple[Part, ...]) -> bool:
        """Whether the versions that it wants are those that stood there."""
        touched: set[str] = set()
        for part in parts:
            known = self._versions.get(part.path) if part.path not in touched else None
            if part.version >= 0 and known is not None and known != part.version:
                return False
            touched.add(part.path)
        return True

    def _was_read(self, parts: tuple[Part, ...], zxid: int) -> bool:
        """Whether nothing else was read of what it wrote."""
        last = {part.path: part.data for part in parts if part.data is not None}
        read = {path: self._traffic.reads.get((path, zxid)) for path in last}
        return all(node is None or node.data == last[path] for path, node in read.items())

    def _drop_earlier(self, asked: _Asked) -> None:
        """What was sent before it on its connection can no longer be done: a connection keeps the order."""
        link, at = asked.request.link, asked.request.at
        self._unanswered = [each for each in self._unanswered if each.request.link != link or each.request.at > at]

    # ---- somebody else

    def _by_hand(self, event: Told, zxid: int) -> Event:
        path = event.path
        if event.kind == "deleted":
            self._forget(path)
            return {"op": "delete", "path": path}
        node = self._traffic.reads.get((path, zxid))
        if node is None:
            raise Unexplained(f"somebody else has {event.kind} {path}, and it changed again before it could be read")
        self._versions[path] = node.version
        if event.kind == "changed":
            return {"op": "set", "path": path, "data": node.data, "version": node.version}
        if node.ephemeral_owner:
            self._owners[path] = node.ephemeral_owner
        return {"op": "create", "path": path, "data": node.data, "ephemeral": bool(node.ephemeral_owner)}

    # ---- what the observer must have been told

    def _is_watched(self, path: str) -> bool:
        return any(path == root or path.startswith(f"{root}/") for root in self._roots)

    def _changes(self, parts: Sequence[Part]) -> list[tuple[str, str]]:
        return [(_KIND_OF[part.op], part.path) for part in parts if part.op in _KIND_OF and self._is_watched(part.path)]


def _seen(told: Sequence[Told]) -> list[tuple[str, str]]:
    return [(event.kind, event.path) for event in told]


def _made(parts: tuple[Part, ...], results: tuple[Result, ...]) -> tuple[Part, ...]:
    """The operations with the paths that were made."""
    if len(parts) != len(results):
        raise BadData(f"{len(results)} results of {len(parts)} operations")
    return tuple(
        part._replace(path=result.path) if part.op == "create" else part
        for part, result in zip(parts, results, strict=True)
    )


def _pairs(asked: _Asked) -> Iterator[tuple[Part, Result]]:
    return zip(asked.parts, asked.results or (Result(),) * len(asked.parts), strict=True)


def _is_of(part: Part, event: Told) -> bool:
    """Whether the event tells of what the operation would do."""
    if part.sequential:
        name, digits = event.path[:-_SEQUENCE], event.path[-_SEQUENCE:]
        return event.kind == "created" and name == part.path and digits.lstrip("-").isdigit()
    return (event.kind, event.path) == (_KIND_OF[part.op], part.path)

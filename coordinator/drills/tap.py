"""What passed a drill's proxies: the writes that its processes asked for, what came of them, and how far ZooKeeper was.

Kept as it passed, and parsed afterwards: whoever listens must not hold up what he listens to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..zk.errors import BadData
from .wire import (
    GET_DATA,
    NOTIFICATION,
    WRITES,
    Found,
    Opened,
    Told,
    asked_path,
    asked_timeout_ms,
    found,
    head,
    op_code,
    opened,
    told,
    xid,
)

MOST_BYTES = 256 << 20
"""So much is kept of what passed in one drill; one in which more is written or told cannot be decided."""

KEPT_BYTES = 200
"""What keeping a mark, or what the observer was told or has read, takes beside its packet, about."""

SESSION_EXPIRED = -112


class Request(NamedTuple):
    """A write that was passed on to a server.

    :ivar at: when, by the machine's monotonic clock.
    :ivar link: the connection; its requests are answered in order.
    :ivar after: what the server had done when it last answered on that connection: this was done later.
    """

    at: float
    link: int
    session: int
    after: int
    body: bytes


class Session(NamedTuple):
    """A session, when it was first seen. `asked_ms`: the timeout that its client wanted; `timeout_ms`: what it got."""

    at: float
    session: int
    timeout_ms: int
    asked_ms: int


@dataclass(slots=True)
class Traffic:
    """Everything that passed, in the order in which it passed.

    :ivar answered: writes with their replies.
    :ivar unanswered: writes whose reply did not come, or has not come yet.
    :ivar marks: (when, zxid), both rising: by then ZooKeeper had done so much.
    :ivar alive: session -> the highest zxid that one of its own replies named.
    :ivar told: what the observer was told.
    :ivar reads: (path, mzxid) -> what the observer read there.
    :ivar problem: why not everything was kept, from `problem_at` on; "" when it was.
    """

    sessions: dict[int, Session] = field(default_factory=dict)
    answered: list[tuple[Request, bytes]] = field(default_factory=list)
    unanswered: list[Request] = field(default_factory=list)
    marks: list[tuple[float, int]] = field(default_factory=list)
    alive: dict[int, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    reads: dict[tuple[str, int], Found] = field(default_factory=dict)
    problem: str = ""
    problem_at: float = 0.0


class Tap:
    """Listens on every proxy of a drill. For several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._links: list[Link] = []
        self._bytes = 0
        self._observer_heard_at = 0.0

    def link(self, is_observer: bool = False) -> Link:
        """A connection begins."""
        with self._lock:
            link = Link(self, len(self._links), is_observer)
            self._links.append(link)
        return link

    def taken(self) -> Traffic:
        """All that has passed so far."""
        with self._lock:
            kept = self._traffic
            waiting = [request for link in self._links for request in link.waiting.values()]
            return Traffic(
                dict(kept.sessions), list(kept.answered), sorted(waiting), list(kept.marks), dict(kept.alive),
                list(kept.told), dict(kept.reads), kept.problem, kept.problem_at,
            )  # fmt: skip

    # What links say, each under the lock.

    def asked(self, link: Link, body: bytes) -> None:
        """A request is about to be passed on."""
        with self._lock:
            code = op_code(body)
            if code in WRITES and self._has_room(body):
                link.waiting[xid(body)] = Request(self._clock(), link.number, link.session, link.done, body)
            elif link.is_observer and code == GET_DATA and self._has_room(body):
                link.reading[xid(body)] = asked_path(body)

    def answered(self, link: Link, body: bytes) -> None:
        """A reply or a watch event came, and is about to be passed on, or to be lost."""
        with self._lock:
            number, zxid, error = head(body)
            now = self._clock()
            if link.is_observer:
                self._observer_heard_at = now
            marks = self._traffic.marks
            if zxid > 0 and (not marks or zxid > marks[-1][1]) and self._has_room(b"", KEPT_BYTES):
                marks.append((now, zxid))
            if number == NOTIFICATION:
                event = told(body) if link.is_observer else None
                if event is not None and self._has_room(body, KEPT_BYTES):
                    self._traffic.told.append(event)
            elif number > 0:
                link.done = max(link.done, zxid)
                if error != SESSION_EXPIRED:
                    self._traffic.alive[link.session] = max(self._traffic.alive.get(link.session, 0), zxid)
                self._take_reply(link, number, body)

    def _take_reply(self, link: Link, number: int, body: bytes) -> None:
        # Without room a request stays one without a reply, and is told by its shape: nobody else's is made of it.
        if number in link.waiting and self._has_room(body):
            self._traffic.answered.append((link.waiting.pop(number), body))
        path = link.reading.pop(number, None)
        if path is not None and (node := found(body)) is not None and self._has_room(body, KEPT_BYTES):
            self._traffic.reads[path, node.mzxid] = node

    def found(self, link: Link, session: Opened | None) -> None:
        """A connection has its session."""
        with self._lock:
            if session is not None:
                seen = Session(self._clock(), *session, link.asked_ms)
                self._traffic.sessions.setdefault(session.session, seen)

    def broke(self, why: str) -> None:
        """Something passed that cannot be read."""
        with self._lock:
            self._break(why, self._clock())

    def observer_lost(self, why: str) -> None:
        """The observer may have missed something since it was last told anything."""
        with self._lock:
            self._break(why, self._observer_heard_at)

    def _has_room(self, body: bytes, beside: int = 0) -> bool:
        self._bytes += len(body) + beside
        if self._bytes > MOST_BYTES:
            self._break(f"more than {MOST_BYTES >> 20} MiB were written, or told by the observer", self._clock())
        return self._bytes <= MOST_BYTES

    def _break(self, why: str, at: float) -> None:
        if not self._traffic.problem:
            self._traffic.problem, self._traffic.problem_at = why, at


class Link:
    """One connection, as a proxy passes it on.

    :ivar asked_ms: the session timeout that the client wants.
    :ivar done: what the server had done when it last answered here.
    :ivar waiting: writes by xid.
    """

    def __init__(self, tap: Tap, number: int, is_observer: bool) -> None:
        self._tap = tap
        self.number = number
        self.is_observer = is_observer
        self.session = 0
        self.asked_ms = 0
        self.done = 0
        self.waiting: dict[int, Request] = {}
        self.reading: dict[int, str] = {}

    def request(self, number: int, body: bytes) -> None:
        """The `number`th packet of the client, before it is passed on; the first opens the session."""
        try:
            if number > 0:
                self._tap.asked(self, body)
            else:
                self.asked_ms = asked_timeout_ms(body)
        except BadData as error:
            self._tap.broke(f"a request cannot be read: {error}")

    def reply(self, number: int, body: bytes) -> None:
        """The `number`th packet of the server, before it is passed on or lost."""
        try:
            if number > 0:
                self._tap.answered(self, body)
                return
            session = opened(body)
            self.session = session.session if session is not None else 0
            self._tap.found(self, session)
        except BadData as error:
            self._tap.broke(f"a reply cannot be read: {error}")

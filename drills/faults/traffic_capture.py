"""The traffic of a drill's proxies: the processes' writes, their results, and ZooKeeper's progress.

Captured raw, and parsed afterwards, so that the capture does not delay the traffic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.zk.errors import BadData

from .packets import (
    GET_DATA,
    NOTIFICATION,
    WRITES,
    Opened,
    ReadZnode,
    WatchEvent,
    asked_path,
    asked_timeout_ms,
    found,
    head,
    op_code,
    opened,
    watch_event_of,
    xid,
)

MOST_BYTES = 256 << 20
"""The limit of a drill's capture; beyond it the drill is INCONCLUSIVE."""

KEPT_BYTES = 200
"""Approximate overhead of a captured mark, watch event or read, in addition to its packet."""

SESSION_EXPIRED = -112


class CapturedWrite(NamedTuple):
    """A write that was forwarded to a server.

    :ivar at: the time on the machine's monotonic clock.
    :ivar link: the connection; its requests are answered in order.
    :ivar after: the zxid of the connection's last reply: the write was done later.
    """

    at: float
    link: int
    session: int
    after: int
    body: bytes


class CapturedSession(NamedTuple):
    """A session, when first captured. `asked_ms`: the requested timeout; `timeout_ms`: the granted one."""

    at: float
    session: int
    timeout_ms: int
    asked_ms: int


@dataclass(slots=True)
class Traffic:
    """All captured traffic, in order.

    :ivar answered: writes with their replies.
    :ivar unanswered: writes without a reply so far.
    :ivar marks: (time, zxid), both increasing: ZooKeeper's progress.
    :ivar alive: session -> the highest zxid in one of its own replies.
    :ivar observed: the observer's watch events.
    :ivar reads: (path, mzxid) -> the data that the observer read.
    :ivar problem: why the capture is incomplete from `problem_at` on; "" when it is complete.
    """

    sessions: dict[int, CapturedSession] = field(default_factory=dict)
    answered: list[tuple[CapturedWrite, bytes]] = field(default_factory=list)
    unanswered: list[CapturedWrite] = field(default_factory=list)
    marks: list[tuple[float, int]] = field(default_factory=list)
    alive: dict[int, int] = field(default_factory=dict)
    observed: list[WatchEvent] = field(default_factory=list)
    reads: dict[tuple[str, int], ReadZnode] = field(default_factory=dict)
    problem: str = ""
    problem_at: float = 0.0


class Tap:
    """Captures the traffic of every proxy of a drill. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._links: list[CapturedLink] = []
        self._bytes = 0
        self._observer_heard_at = 0.0

    def link(self, is_observer: bool = False) -> CapturedLink:
        """Register a new connection."""
        with self._lock:
            link = CapturedLink(self, len(self._links), is_observer)
            self._links.append(link)
        return link

    def taken(self) -> Traffic:
        """All traffic so far."""
        with self._lock:
            kept = self._traffic
            waiting = [request for link in self._links for request in link.waiting.values()]
            return Traffic(
                dict(kept.sessions), list(kept.answered), sorted(waiting), list(kept.marks), dict(kept.alive),
                list(kept.observed), dict(kept.reads), kept.problem, kept.problem_at,
            )  # fmt: skip

    # Called by the links, each under the lock.

    def asked(self, link: CapturedLink, body: bytes) -> None:
        """A request, before it is forwarded."""
        with self._lock:
            code = op_code(body)
            if code in WRITES and self._has_room(body):
                link.waiting[xid(body)] = CapturedWrite(self._clock(), link.number, link.session, link.done, body)
            elif link.is_observer and code == GET_DATA and self._has_room(body):
                link.reading[xid(body)] = asked_path(body)

    def answered(self, link: CapturedLink, body: bytes) -> None:
        """A reply or a watch event, before it is forwarded or dropped."""
        with self._lock:
            number, zxid, error = head(body)
            now = self._clock()
            if link.is_observer:
                self._observer_heard_at = now
            marks = self._traffic.marks
            if zxid > 0 and (not marks or zxid > marks[-1][1]) and self._has_room(b"", KEPT_BYTES):
                marks.append((now, zxid))
            if number == NOTIFICATION:
                event = watch_event_of(body) if link.is_observer else None
                if event is not None and self._has_room(body, KEPT_BYTES):
                    self._traffic.observed.append(event)
            elif number > 0:
                link.done = max(link.done, zxid)
                if error != SESSION_EXPIRED:
                    self._traffic.alive[link.session] = max(self._traffic.alive.get(link.session, 0), zxid)
                self._take_reply(link, number, body)

    def _take_reply(self, link: CapturedLink, number: int, body: bytes) -> None:
        # Beyond the limit a request stays without a reply, and is matched by its changes: not attributed to a stranger.
        if number in link.waiting and self._has_room(body):
            self._traffic.answered.append((link.waiting.pop(number), body))
        path = link.reading.pop(number, None)
        if path is not None and (node := found(body)) is not None and self._has_room(body, KEPT_BYTES):
            self._traffic.reads[path, node.mzxid] = node

    def found(self, link: CapturedLink, session: Opened | None) -> None:
        """The session of a connection."""
        with self._lock:
            if session is not None:
                seen = CapturedSession(self._clock(), *session, link.asked_ms)
                self._traffic.sessions.setdefault(session.session, seen)

    def broke(self, why: str) -> None:
        """Record an unreadable packet."""
        with self._lock:
            self._break(why, self._clock())

    def observer_lost(self, why: str) -> None:
        """Record a possible gap since the observer's last watch event."""
        with self._lock:
            self._break(why, self._observer_heard_at)

    def _has_room(self, body: bytes, beside: int = 0) -> bool:
        self._bytes += len(body) + beside
        if self._bytes > MOST_BYTES:
            self._break(f"the capture exceeds {MOST_BYTES >> 20} MiB", self._clock())
        return self._bytes <= MOST_BYTES

    def _break(self, why: str, at: float) -> None:
        if not self._traffic.problem:
            self._traffic.problem, self._traffic.problem_at = why, at


class CapturedLink:
    """The capture of one connection.

    :ivar asked_ms: the requested session timeout.
    :ivar done: the zxid of the connection's last reply.
    :ivar waiting: writes without a reply, by xid.
    """

    def __init__(self, tap: Tap, number: int, is_observer: bool) -> None:
        self._tap = tap
        self.number = number
        self.is_observer = is_observer
        self.session = 0
        self.asked_ms = 0
        self.done = 0
        self.waiting: dict[int, CapturedWrite] = {}
        self.reading: dict[int, str] = {}

    def request(self, number: int, body: bytes) -> None:
        """The `number`th packet of the client, before it is forwarded; the first opens the session."""
        try:
            if number > 0:
                self._tap.asked(self, body)
            else:
                self.asked_ms = asked_timeout_ms(body)
        except BadData as error:
            self._tap.broke(f"unreadable request: {error}")

    def reply(self, number: int, body: bytes) -> None:
        """The `number`th packet of the server, before it is forwarded or dropped."""
        try:
            if number > 0:
                self._tap.answered(self, body)
                return
            session = opened(body)
            self.session = session.session if session is not None else 0
            self._tap.found(self, session)
        except BadData as error:
            self._tap.broke(f"unreadable reply: {error}")

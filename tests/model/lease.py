"""Explicit-state model of the lease: it ends before the leader of the ensemble ends the session.

Time is in units of 1/12 session timeout. The client syncs when it likes, by way of a follower, and counts a lease from
what is answered. The leader hears of the session only in the follower's answers to its pings; both streams of that
connection keep their order and delay as long as they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .search import Bounds, Result, search, table

TIMEOUT, LEASE, CERTAIN, HALF_TICK = 12, 8, 11, 1
"""The session, the lease from the renewal before, at most from the one before that; the leader's interval of pings."""

LONG_AGO = TIMEOUT + 1


@dataclass(frozen=True)
class Config(Bounds):
    """The bounds of a search.

    :ivar transit: whether packets between client and follower take time.  :ivar deep: packets under way each direction.
    :ivar syncs: renewals of the client, at most.  :ivar silent: units since the session was opened, to begin with.
    """

    TABLE = table("lease")
    transit: int = 1
    deep: int = 2
    syncs: int = 4
    silent: int = 0
    max: int = 12_000_000
    secs: float = 300


class Sync(NamedTuple):
    """A counted sync: how long ago it was sent, and answered."""

    sent: int
    answered: int


class World(NamedTuple):
    """Everything, in units from now.

    :ivar deadline: until the leader ends the session; -1 once it has.  :ivar ping: until the leader's next ping.
    :ivar up, down: packets between follower and leader: S(ync), R(eport) of the session; P(ing), A(nswer).
    :ivar touched: whether the follower has heard of the client since its last report.
    :ivar waits: how long the client's sync is under way; -1 without one.
    :ivar where: `client>` or `>client`, the sync's way between client and follower; empty elsewhere.
    :ivar certain: how long ago the leader has certainly heard of it.  :ivar left: of the lease.
    """

    ping: int
    deadline: int = TIMEOUT
    up: str = ""
    down: str = ""
    touched: bool = False
    waits: int = -1
    where: str = ""
    last: Sync | None = None
    before: Sync | None = None
    certain: int = 0
    left: int = 0
    syncs: int = 0


def run(config: Config) -> Result:
    """Search this configuration."""
    mutation = config.mut

    def counted(w: World) -> tuple[World, str]:
        """The client has the answer of its sync."""
        sent, last = w.waits, w.last
        w = w._replace(waits=-1, where="")
        if last is None:
            w = w._replace(last=Sync(sent, 0))
        else:
            gap = (last.sent if mutation == "sent" else last.answered) - sent
            if gap < HALF_TICK and mutation != "close":
                return w, ""
            certain = w.before.sent if w.before is not None else w.certain
            w = w._replace(last=Sync(sent, 0), before=last, certain=certain)
        since = sent if mutation == "last" else w.certain if w.before is None else w.before.sent
        left = LEASE - since if mutation in ("last", "unconfirmed") else min(LEASE - since, CERTAIN - w.certain)
        left = max(w.left, left)
        bad = f"a lease of {left} more units after the session's end" if w.deadline < 0 < left else ""
        return w._replace(left=left), bad

    def steps(w: World) -> Iterator[tuple[str, World, str]]:
        if w.waits < 0 and w.syncs < config.syncs:
            sent = w._replace(waits=0, syncs=w.syncs + 1)
            if config.transit:
                yield "client sends a sync", sent._replace(where="client>"), ""
            elif len(w.up) < config.deep:
                yield "client sends a sync", sent._replace(touched=True, up=w.up + "S"), ""
        if w.where == "client>" and len(w.up) < config.deep:
            yield "follower forwards it", w._replace(where="", touched=True, up=w.up + "S"), ""
        if w.where == ">client":
            after, bad = counted(w)
            yield "client has the answer", after, bad
        if w.up[:1] == "S":
            if w.deadline < 0:
                yield "leader refuses the sync of an ended session", w._replace(up=w.up[1:]), ""
            elif len(w.down) < config.deep:
                yield "leader answers the sync", w._replace(up=w.up[1:], down=w.down + "A"), ""
        elif w.up:
            deadline = TIMEOUT if w.deadline >= 0 else w.deadline
            yield "leader hears of the session", w._replace(up=w.up[1:], deadline=deadline), ""
        if w.down[:1] == "P" and len(w.up) < config.deep:
            report = "R" if w.touched else ""  # one without the session changes nothing
            yield "follower reports", w._replace(down=w.down[1:], touched=False, up=w.up + report), ""
        elif w.down[:1] == "A":
            answered = w._replace(down=w.down[1:], where=">client")
            if config.transit:
                yield "follower answers", answered, ""
            else:
                after, bad = counted(answered)
                yield "client has the answer", after, bad
        if w.ping > 0 or len(w.down) < config.deep:
            yield from passed(w)

    def passed(w: World) -> Iterator[tuple[str, World, str]]:
        """A unit of time passes; then the leader may be due to ping, and to end the session."""
        down, ping = (w.down + "P", HALF_TICK) if w.ping == 0 else (w.down, w.ping)
        deadline = w.deadline - 1 if w.deadline > 0 else -1
        left = max(0, w.left - 1)
        bad = f"the session ends {left} units before the lease" if deadline <= 0 < left else ""
        last, before = (
            each and Sync(min(each.sent + 1, LONG_AGO), min(each.answered + 1, LONG_AGO)) for each in (w.last, w.before)
        )
        waits, certain = w.waits + (0 <= w.waits < LONG_AGO), min(w.certain + 1, LONG_AGO)
        after = World(ping - 1, deadline, w.up, down, w.touched, waits, w.where, last, before, certain, left, w.syncs)
        yield "time passes" + (", leader pings" if w.ping == 0 else ""), after, bad

    start = World(ping=0, deadline=TIMEOUT - config.silent, certain=config.silent)
    return search(start, steps, lambda w: "", 0, config.max, config.secs)

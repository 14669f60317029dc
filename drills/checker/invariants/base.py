"""The base of all invariants: a small state machine over the events of one history that reports violations."""

from __future__ import annotations

from typing import ClassVar

from ..replay.commits import Commit
from ..replay.replay import Replay
from ..replay.verdict import BROKEN, HELD, NOT_DECIDED, Event, Verdict, Violation, moment

MOST_FINDINGS = 20
"""Maximum violations of one invariant; then its check ends."""

LEASE_ROUNDING_S = 0.001


class Invariant:
    """One invariant of the design.

    :cvar name: as in the design.  :cvar sentence: the design's.
    :cvar wants: its kinds of changes of a commit, a mask; 0 for none.
    :cvar events: its other events: `query-failed` is handled by `on_query_failed`, after the world has.
    :cvar needs_bounds: whether it needs the bounds of `run`.  :cvar needs_end: whether it judges a whole history.
    :ivar parts: its rules with a state of their own, which handle events and ticks, too.
    :ivar judged: number of opportunities for a violation in this history; a verdict without any proves nothing.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    wants: ClassVar[int] = 0
    events: ClassVar[tuple[str, ...]] = ()
    needs_bounds: ClassVar[bool] = False
    needs_end: ClassVar[bool] = False

    def __init__(self, world: Replay) -> None:
        self.world = world
        self.findings: list[Violation] = []
        self.parts: list[Rules] = []
        self.judged = 0

    def broken(self, why: str, *witness: Event | None) -> None:
        """Record a violation; the witness is sorted by time."""
        if len(self.findings) < MOST_FINDINGS:
            events = {id(event): event for event in witness if event is not None}.values()
            self.findings.append(Violation(why, tuple(sorted(events, key=lambda event: event["at"]))))

    def broken_by(self, commit: Commit, why: str, *witness: Event | None) -> None:
        """Record a violation proved by a commit and others."""
        self.broken(why, *witness, commit.event)

    def on_commit(self, commit: Commit) -> None:
        """Handle a transaction, or the end of a session, with changes in `wants`."""

    def on_tick(self, now: float) -> None:
        """Called twice a second of the history, with all events before `now` applied."""

    def undecided(self) -> tuple[str, bool] | None:
        """Without a violation: why it is undecided, and whether a complete history would decide it; None: it held."""
        return None

    def verdict(self, aside: int) -> Verdict:
        """
        :param aside: number of ignored events: their content is unknown.
        """
        if self.findings:
            first = self.findings[0]
            findings = tuple(self.findings)
            return Verdict(self.name, self.sentence, BROKEN, first.why, first.witness, False, findings, self.judged)
        is_whole = self.world.conditions.ended is not None or not self.needs_end
        why = self.undecided() if is_whole else ("the history has no `end`", True)
        if self.needs_bounds and not self.world.bounds:
            why = ("there is no `run` event, so the bounds are unknown", True)
        if why is None and aside:
            why = (f"{aside} unreadable events were ignored", True)
        if why is not None:
            return Verdict(self.name, self.sentence, NOT_DECIDED, why[0], is_due=why[1], judged=self.judged)
        return Verdict(self.name, self.sentence, HELD, judged=self.judged)


class Rules:
    """Rules of an invariant with a state of their own: a violation of them violates it."""

    events: ClassVar[tuple[str, ...]] = ()

    def __init__(self, invariant: Invariant) -> None:
        self.world = invariant.world
        self.broken, self.broken_by = invariant.broken, invariant.broken_by
        invariant.parts.append(self)

    def on_tick(self, now: float) -> None:
        """As the invariant's."""


class SessionLeases(Rules):
    """No lease outlasts its session: ZooKeeper ends a silent session only after the lease has lapsed.

    A lease is 2/3 of the session timeout, from a request that the leader has seen.

    Sessions closed by their client, or ended with the password by another client, are not judged.

    :param role: the owner's.
    :param unjudged: the number of a session's first leases that count from their own syncs: its owner writes under
        another fence.
    """

    events = ("lease", "closed")

    def __init__(self, invariant: Invariant, role: str, unjudged: int = 0) -> None:
        super().__init__(invariant)
        self._role = role
        self._unjudged = unjudged
        self._renewals: dict[object, int] = {}
        self._leases: dict[object, Event] = {}
        self._expired: dict[object, Event] = {}

    def on_lease(self, event: Event) -> None:
        if event["role"] != self._role:
            return
        session = event["session"]
        self._renewals[session] = self._renewals.get(session, 0) + 1
        if self._renewals[session] <= self._unjudged:
            return
        known = self._leases.get(session)
        if known is None or event["until"] > known["until"]:
            self._leases[session] = event
            self._judge(session)

    def on_closed(self, event: Event) -> None:
        if event.get("why") == "expired":
            self._expired[event["session"]] = event
            self._judge(event["session"])

    def _judge(self, session: object) -> None:
        lease, end = self._leases.get(session), self._expired.get(session)
        if lease is not None and end is not None and lease["until"] > end["at"] + LEASE_ROUNDING_S:
            why = f"{lease['who']} ({self._role}) had a lease until {moment(lease['until'])}, and its session expired"
            self.broken(f"{why} at {moment(end['at'])}", lease, end)

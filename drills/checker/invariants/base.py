"""The base of all invariants: a small state machine over the events of one history, that reports violations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from ..replay.commits import Commit
from ..replay.replay import Replay
from ..replay.verdict import BROKEN, HELD, NOT_DECIDED, Event, Verdict, Violation

MOST_FINDINGS = 20
"""Violations of one invariant after which its check ends."""


class Invariant:
    """One invariant of the design.

    :cvar name: as in the design.  :cvar sentence: the design's.
    :cvar wants: kinds of changes of a commit that it handles, a mask; 0 for none.
    :cvar needs_bounds: whether it needs the bounds of `run`.
    :ivar judged: how many things in this history it could have found wrong; a verdict on nothing says nothing.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    wants: ClassVar[int] = 0
    needs_bounds: ClassVar[bool] = False

    def __init__(self, world: Replay) -> None:
        self.world = world
        self.findings: list[Violation] = []
        self.judged = 0

    def broken(self, why: str, *witness: Event | None) -> None:
        """Record a violation; the witness is sorted by time."""
        if len(self.findings) < MOST_FINDINGS:
            events: list[Event] = []
            for event in witness:
                if event is not None and not any(event is other for other in events):
                    events.append(event)
            events.sort(key=lambda event: event["at"])
            self.findings.append(Violation(why, tuple(events)))

    def handlers(self) -> Mapping[str, Callable[[Event], None]]:
        """Handlers of other events, called after the world's."""
        return {}

    def on_commit(self, commit: Commit) -> None:
        """A transaction, or the end of a session, has changed something in `wants`."""

    def on_tick(self, now: float) -> None:
        """Called twice a second of the history, with everything before `now` applied."""

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
        why = self.undecided()
        if self.needs_bounds and not self.world.bounds:
            why = ("there is no `run` event, so the bounds are unknown", True)
        if why is None and aside:
            why = (f"{aside} unreadable events were ignored", True)
        if why is not None:
            return Verdict(self.name, self.sentence, NOT_DECIDED, why[0], is_due=why[1], judged=self.judged)
        return Verdict(self.name, self.sentence, HELD, judged=self.judged)

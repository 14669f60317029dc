"""What every invariant is: a small state machine that is fed the history once, and says in what way it was broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from .commits import Commit
from .verdict import BROKEN, HELD, NOT_DECIDED, Event, Finding, Verdict
from .world import World

MOST_FINDINGS = 20
"""An invariant that is broken this often is not looked at more closely."""


class Invariant:
    """One invariant of the design.

    :cvar name: as the design has it.  :cvar sentence: what the design says.
    :cvar wants: which changes of a commit it is told of, a mask; 0 for none.
    :cvar needs_bounds: whether nothing can be decided without the bounds of `run`.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    wants: ClassVar[int] = 0
    needs_bounds: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.findings: list[Finding] = []

    def broken(self, why: str, *witness: Event | None) -> None:
        """Note that it was broken; the witness is brought into the order of time."""
        if len(self.findings) < MOST_FINDINGS:
            events: list[Event] = []
            for event in witness:
                if event is not None and not any(event is other for other in events):
                    events.append(event)
            events.sort(key=lambda event: event["at"])
            self.findings.append(Finding(why, tuple(events)))

    def handlers(self) -> Mapping[str, Callable[[Event], None]]:
        """Other events that it is told of, after the world has been."""
        return {}

    def on_commit(self, commit: Commit) -> None:
        """A transaction, or the end of a session, has changed something that it `wants`."""

    def on_tick(self, now: float) -> None:
        """Twice a second of the history, with everything before `now` applied."""

    def undecided(self) -> tuple[str, bool] | None:
        """Why nothing can be said though nothing was found, and whether a whole history would tell; None: it held."""
        return None

    def verdict(self, aside: int) -> Verdict:
        """
        :param aside: events that were set aside: what they would have shown is not known.
        """
        if self.findings:
            first = self.findings[0]
            findings = tuple(self.findings)
            return Verdict(self.name, self.sentence, BROKEN, first.why, first.witness, False, findings)
        why = self.undecided()
        if self.needs_bounds and not self.world.bounds:
            why = ("there is no `run` event, so no bounds are known", True)
        if why is None and aside:
            why = (f"{aside} events could not be read and were set aside", True)
        if why is not None:
            return Verdict(self.name, self.sentence, NOT_DECIDED, why[0], is_due=why[1])
        return Verdict(self.name, self.sentence, HELD)

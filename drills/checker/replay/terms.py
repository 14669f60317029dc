"""The terms of coordinators: whose it is, since when, and how long a time is by another clock."""

from __future__ import annotations

from .commits import EPOCH, Commit
from .verdict import Event

CLOCKS = 0.02
"""How far apart two clocks may go, as a share of the time that they measure."""


class Terms:
    """The elections of a history. A coordinator's timers count from its own, at the earliest."""

    def __init__(self) -> None:
        self._elections: dict[object, Event] = {}

    def on_commit(self, commit: Commit) -> None:
        if commit.mask & EPOCH and not commit.by_hand:
            self._elections[commit.who, commit.session] = commit.event

    def elected(self, commit: Commit) -> Event | None:
        """The election of the coordinator that sent a commit; None when it is unknown."""
        return self._elections.get((commit.who, commit.session))

    def measured(self, seconds: float) -> float:
        """The least time by the history's clock in which a coordinator's clock passes so many seconds."""
        return seconds * (1 - CLOCKS)

"""The state of a group that is kept between its turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from .rebalancer import Rebalancer


@dataclass(slots=True)
class GroupTurns:
    """The turns of one group. Fields used by watches and listeners too are guarded by the handlers' lock.

    :ivar rebalancer: takes the turns; None before the first.
    :ivar quiet_until: changes before this time share one turn.
    :ivar failures: consecutive failed turns.  :ivar failing_since: time of the first of them.
    :ivar outstanding: consumers with a command to acknowledge.
    :ivar heard: consumers that have acknowledged one since the last turn began.
    """

    rebalancer: Rebalancer | None = None
    quiet_until: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    outstanding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)

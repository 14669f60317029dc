"""The state of a group that is kept between its turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..term.pace import Pace, growing
from .rebalancer import Rebalancer, Turn

LONGEST_PAUSE_S = 5.0
IDLE_TURNS = 20
"""So many turns without a change, less than `IDLE_GAP_S` apart, are taken without a pause."""
IDLE_GAP_S = 1.0
LONGEST_IDLE_PAUSE_S = 1.0
REQUESTED_TURNS = 10
"""So many turns for requests of leader or operator, less than `REQUEST_GAP_S` apart, are taken without a pause."""
REQUEST_GAP_S = LONGEST_PAUSE_S
GENERATIONS = 50
"""So many generations, less than `IDLE_GAP_S` apart, begin without a pause: a member may change its registration in a
loop."""


@dataclass(slots=True)
class GroupTurns:
    """The turns of one group. Fields used by watches and listeners too are guarded by the handlers' lock.

    :ivar rebalancer: takes the turns; None before the first.
    :ivar quiet_until: changes before this time share one turn.
    :ivar failures: consecutive failed turns.  :ivar failing_since: time of the first of them.
    :ivar outstanding: consumers with a command to acknowledge.
    :ivar heard: consumers that have acknowledged one since the last turn began.
    :ivar not_before: the next turn is not taken before this time, however often it is requested.
    :ivar refused: consecutive turns that ZooKeeper refused.  :ivar idle: consecutive turns without a change.
    :ivar requested: consecutive turns for requests.  :ivar generations: consecutive turns that began a generation.
    :ivar taken_at: when the last turn ended.
    :ivar changed_at: when the first change since the last turn began was seen; None without one.
    """

    rebalancer: Rebalancer | None = None
    quiet_until: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    outstanding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    not_before: float = 0.0
    refused: int = 0
    idle: int = 0
    requested: Pace = field(default_factory=lambda: Pace(REQUESTED_TURNS, REQUEST_GAP_S, LONGEST_PAUSE_S))
    generations: Pace = field(default_factory=lambda: Pace(GENERATIONS, IDLE_GAP_S, LONGEST_IDLE_PAUSE_S))
    taken_at: float = float("-inf")
    changed_at: float | None = None

    def pace(self, turn: Turn, now: float, is_requested: bool = False) -> bool:
        """Put off the next turn after one that was refused, after many that changed nothing, and after many in a row
        for which a leader or an operator (`is_requested`) has asked, or that began a generation: a growing pause.

        :returns: whether the log shall have it.
        """
        is_soon = now - max(self.taken_at, self.not_before) < IDLE_GAP_S
        self.refused = self.refused + 1 if turn.is_refused else 0
        self.idle = self.idle + 1 if turn.is_idle and is_soon else 0
        self.taken_at = now
        until = now + (growing(self.refused, LONGEST_PAUSE_S) if self.refused else 0.0)
        if self.idle > IDLE_TURNS:
            until = max(until, now + growing(self.idle - IDLE_TURNS, LONGEST_IDLE_PAUSE_S))
        is_news = False
        if turn.is_requested or is_requested:
            is_news = self.requested.taken(now)
            until = max(until, self.requested.until)
        if turn.is_new_generation:
            is_news |= self.generations.taken(now)
            until = max(until, self.generations.until)
        self.not_before = until
        return is_news

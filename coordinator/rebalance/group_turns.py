"""The state of a group that is kept between its turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from .rebalancer import Rebalancer, Turn

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
IDLE_TURNS = 20
"""So many turns without a change, less than `IDLE_GAP_S` apart, are taken without a pause."""
IDLE_GAP_S = 1.0
LONGEST_IDLE_PAUSE_S = 1.0
REQUESTED_TURNS = 10
"""So many turns for a leader's `sync_request`, less than `REQUEST_GAP_S` apart, are taken without a pause."""
REQUEST_GAP_S = 2 * LONGEST_PAUSE_S


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
    :ivar requested: consecutive turns for a leader's request.  :ivar requested_at: when the last of them ended.
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
    requested: int = 0
    requested_at: float = float("-inf")
    taken_at: float = float("-inf")
    changed_at: float | None = None

    def pace(self, turn: Turn, now: float) -> None:
        """Put off the next turn after one that was refused, or after many that changed nothing, or for which a leader
        has asked: a growing pause.
        """
        is_soon = now - max(self.taken_at, self.not_before) < IDLE_GAP_S
        self.refused = self.refused + 1 if turn.is_refused else 0
        self.idle = self.idle + 1 if turn.is_idle and is_soon else 0
        self.taken_at = now
        pause_s = _growing(self.refused, LONGEST_PAUSE_S) if self.refused else 0.0
        if self.idle > IDLE_TURNS:
            pause_s = max(pause_s, _growing(self.idle - IDLE_TURNS, LONGEST_IDLE_PAUSE_S))
        if turn.is_requested:
            self.requested = self.requested + 1 if now - self.requested_at < REQUEST_GAP_S else 1
            self.requested_at = now
            if self.requested > REQUESTED_TURNS:
                pause_s = max(pause_s, _growing(self.requested - REQUESTED_TURNS, LONGEST_PAUSE_S))
        self.not_before = now + pause_s


def _growing(nth: int, longest_s: float) -> float:
    return min(longest_s, FIRST_PAUSE_S * 2.0 ** min(nth - 1, 10))

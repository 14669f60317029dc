"""When a group's next turn may begin: changes that share a turn, and pauses after turns that follow each other.

Pure: times are seconds of the runtime's monotonic clock, as the caller read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..term.request_queue import Pace, growing
from .rebalancer import Turn

LONGEST_PAUSE_S = 5.0
IDLE_TURNS = 20
"""Turns without a change, less than `IDLE_GAP_S` apart, that are taken without a pause."""
IDLE_GAP_S = 1.0
LONGEST_IDLE_PAUSE_S = 1.0
REQUESTED_TURNS = 10
"""Turns for requests of leader or operator, less than `REQUEST_GAP_S` apart, that are taken without a pause."""
REQUEST_GAP_S = LONGEST_PAUSE_S
GENERATIONS = 50
"""Generations, so close, that begin without a pause: a member may change its registration in a loop."""


@dataclass(slots=True)
class Changes:
    """A group's changes for its next turn.

    :ivar quiet_until: changes before this time share one turn.
    :ivar since: when the first of them was seen; None without one.
    """

    quiet_until: float = 0.0
    since: float | None = None

    def seen(self, now: float) -> float:
        """A change; the delay of its turn."""
        self.since = now if self.since is None else self.since
        return max(0.0, self.quiet_until - now)

    def taken(self) -> float | None:
        """A turn begins for them; when the first was seen."""
        since, self.since = self.since, None
        return since

    def untaken(self, since: float | None) -> None:
        """That turn has failed: the next one takes its changes, too."""
        self.since = self.since if since is None else since


@dataclass(slots=True)
class TurnPaces:
    """The pauses between a group's turns.

    :ivar not_before: the next turn is not taken before this time, however often it is requested.
    :ivar refused: consecutive turns that ZooKeeper refused.  :ivar idle: consecutive turns without a change.
    :ivar requested: consecutive turns for requests.  :ivar generations: consecutive turns that began a generation.
    :ivar taken_at: when the last turn ended.
    """

    not_before: float = 0.0
    refused: int = 0
    idle: int = 0
    requested: Pace = field(default_factory=lambda: Pace(REQUESTED_TURNS, REQUEST_GAP_S, LONGEST_PAUSE_S))
    generations: Pace = field(default_factory=lambda: Pace(GENERATIONS, IDLE_GAP_S, LONGEST_IDLE_PAUSE_S))
    taken_at: float = float("-inf")

    def early_s(self, now: float, is_requested: bool) -> float:
        """Seconds until the next turn may be taken. An operator's request waits only for others like it."""
        return (self.requested.until if is_requested else self.not_before) - now

    def taken(self, turn: Turn, now: float, is_requested: bool = False) -> bool:
        """Defer the next turn by a growing pause: after a refused one, after many without a change, and after many in a
        row that a leader or an operator (`is_requested`) requested, or that began a generation.

        :returns: whether to log it.
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


@dataclass(slots=True)
class Failures:
    """Consecutive failed turns.

    :ivar since: time of the first of them.
    """

    count: int = 0
    since: float = 0.0

    def failed(self, now: float) -> None:
        """One more turn has failed."""
        self.since = now if self.count == 0 else self.since
        self.count += 1

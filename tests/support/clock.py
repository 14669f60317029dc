"""A clock that a test moves on."""

from __future__ import annotations

from zk_group.coordinator.zk.runtime import ThreadRuntime


class Ahead(ThreadRuntime):
    """A machine whose clocks go as usual, and are further by as much as a test has let pass.

    :ivar ahead_s: how much that is, for both of its clocks.
    :ivar wall_ahead_s: what its wall clock is ahead besides.
    """

    def __init__(self, ahead_s: float = 0.0, wall_ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self.wall_ahead_s = wall_ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + round(1000 * (self.ahead_s + self.wall_ahead_s))

"""Begin and end of a region's checkpoints, as seen by its turns in this term."""

from __future__ import annotations

from ..zk.runtime import Runtime
from .plan import RegionSnapshot


class Timing:
    """By the monotonic clock, seconds.

    :ivar late: consecutive checkpoints that were aborted because they took too long.
    :ivar cut: the region's current cut, and when it completed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended_at = runtime.monotonic()
        self.late = 0
        self.forget()

    def forget(self) -> None:
        """Another region with the same name may use the same numbers."""
        self.cut: tuple[int, float] = -1, 0.0
        self._seen: tuple[int, float] = 0, 0.0
        self._begun: tuple[int, float] = 0, 0.0

    @property
    def cut_s(self) -> float:
        """Since the last checkpoint ended, or the term began."""
        return self._runtime.monotonic() - self._ended_at

    @property
    def age_s(self) -> float:
        """Since the region's current cut completed."""
        return self._runtime.monotonic() - self.cut[1]

    def open_s(self, sequence: int) -> float:
        """Since the open checkpoint was first seen."""
        now = self._runtime.monotonic()
        if self._seen[0] != sequence:
            self._seen = sequence, now
        return now - self._seen[1]

    def took_ms(self, snapshot: RegionSnapshot) -> int:
        """From the begin of the open checkpoint until now; by wall clocks if another coordinator began it."""
        sequence, since = self._begun
        if sequence == snapshot.region.open:
            return round((self._runtime.monotonic() - since) * 1000)
        return max(0, snapshot.now_ms - snapshot.checkpoint.since_ms) if snapshot.checkpoint is not None else 0

    def begun(self, sequence: int) -> None:
        """A checkpoint has begun."""
        self._seen = self._begun = sequence, self._runtime.monotonic()

    def ended(self, is_late: bool) -> None:
        """The open checkpoint has completed, or was aborted."""
        self._ended_at = self._runtime.monotonic()
        self.late = self.late + 1 if is_late else 0

    def stands_on(self, sequence: int, age_ms: int = 0) -> None:
        """The region's current cut completed this long ago."""
        self.cut = sequence, self._runtime.monotonic() - age_ms / 1000

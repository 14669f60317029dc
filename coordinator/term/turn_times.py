"""The time that each group's turns take, published for operators at intervals."""

from __future__ import annotations

from ..zk.runtime import Runtime
from ..zk.znodes.records import MOST_GROUPS, TurnTimes

LEAST_MS_PER_S = 10
"""A group below this share of a handler costs the others nothing that they would notice."""


class TurnTimer:
    """Sums the seconds of turns by group, for one term."""

    def __init__(self, runtime: Runtime, epoch: int) -> None:
        self._runtime = runtime
        self._epoch = epoch
        self._lock = runtime.lock()
        self._seconds: dict[str, float] = {}
        self._since = runtime.monotonic()

    def took(self, group: str, seconds: float) -> None:
        """A turn of `group` took so long."""
        with self._lock:
            self._seconds[group] = self._seconds.get(group, 0.0) + seconds

    def since_last(self) -> TurnTimes:
        """The record of the time since the last call: the groups that cost most."""
        with self._lock:
            now = self._runtime.monotonic()
            passed_s = max(now - self._since, 0.001)
            rates = {group: round(1000 * seconds / passed_s) for group, seconds in self._seconds.items()}
            self._seconds, self._since = {}, now
        most = sorted(rates, key=lambda group: (-rates[group], group))[:MOST_GROUPS]
        return TurnTimes(self._epoch, {group: rates[group] for group in most if rates[group] >= LEAST_MS_PER_S})

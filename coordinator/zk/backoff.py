"""The growing pause between attempts that fail, or between requests that follow each other too closely."""

from __future__ import annotations

from dataclasses import dataclass

MOST_DOUBLINGS = 64
"""Any `longest_s` is reached by then; without a limit the power would overflow."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """An exponential back-off, as Kafka's `ExponentialBackoff`.

    :ivar first_s: seconds after the first failure; each further one in a row doubles them.
    :ivar longest_s: their bound.
    """

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Seconds until the next attempt, after so many failures in a row; 0 without one."""
        if failures <= 0:
            return 0.0
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS))

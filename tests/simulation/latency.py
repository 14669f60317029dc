"""How long packets take: evenly short, or as between machines that are near, far, and sometimes overloaded."""

from __future__ import annotations

from random import Random

EVEN = "even"
WIDE = "wide"

_BASES_S = (0.0002, 0.0005, 0.002, 0.01, 0.06)
_WEIGHTS = (5, 4, 3, 2, 1)
_SIGMA = 1.0
_STALLS = 0.01
_SHORTEST_STALL_S = 0.2
_LONGEST_STALL_S = 2.0


class WideLatency:
    """That of one connection: a base that is drawn for it, times a factor that is drawn for each packet; and stalls."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.base_s = random.choices(_BASES_S, _WEIGHTS)[0]

    def hop_s(self) -> float:
        """What the next packet takes."""
        taken = self.base_s * self._random.lognormvariate(0.0, _SIGMA)
        if self._random.random() < _STALLS:
            taken += self._random.uniform(_SHORTEST_STALL_S, _LONGEST_STALL_S)
        return taken

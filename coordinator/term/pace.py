"""Requests of one kind in a loop: each is answered, later and later."""

from __future__ import annotations

FIRST_PAUSE_S = 0.05


class Pace:
    """Counts turns of one kind that follow each other.

    :param at_once: so many are taken without a pause.
    :param gap_s: one that comes later after the pause of the last one is the first of its kind again.
    :param longest_s: bound of the growing pause.
    """

    def __init__(self, at_once: int, gap_s: float, longest_s: float) -> None:
        self._at_once = at_once
        self._gap_s = gap_s
        self._longest_s = longest_s
        self.count = 0
        self.until = float("-inf")

    def taken(self, now: float) -> bool:
        """Count one; the next is not to be taken before `until`.

        :returns: whether the log shall have it: for the first that is paced, and for each `at_once` further ones.
        """
        self.count = self.count + 1 if now - self.until < self._gap_s else 1
        beyond = self.count - self._at_once
        self.until = now + (growing(beyond, self._longest_s) if beyond > 0 else 0.0)
        return beyond > 0 and beyond % self._at_once == 1


def growing(nth: int, longest_s: float) -> float:
    """The n-th pause in a row, from 1 on: each is twice as long."""
    return min(longest_s, FIRST_PAUSE_S * 2.0 ** min(nth - 1, 10))

"""In how many runs each invariant was decided: a verdict on nothing is no pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from zk_group.drills.checker import BROKEN, NOT_DECIDED, Verdict, Verdicts

LEAST_RUNS = 100
LEAST_SHARE = 0.03
"""Of the stock mixture's runs, from so many on: in so many each invariant is decided. Of seeds 0 to 99, those of
consistent regions are in 22, L3 in 23, L5 in 32, all others in 49 or more."""

LEAST_RUNS_OF_PROFILE = 40
LEAST_SHARE_OF_PROFILE = 0.25

_EVERYWHERE = ("S1", "S2", "S3", "S6", "S7", "L2", "L4")
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "calm": (*_EVERYWHERE, "S5", "L1"),
    "storm": (*_EVERYWHERE, "S4", "S5", "L1"),
    "pauses": (*_EVERYWHERE, "S5", "L1", "L3"),
    "scale": (*_EVERYWHERE, "S5", "L1"),
    "led": (*_EVERYWHERE, "S5", "S9", "L5"),
    "regional": (*_EVERYWHERE, "S10", "S11", "L1", "L6"),
    "aimed": (*_EVERYWHERE, "S5", "L1"),
    "sealing": (*_EVERYWHERE, "S5", "L1"),
    "large": (*_EVERYWHERE, "S5", "L1"),
    "watchful": (*_EVERYWHERE, "S5", "L1"),
}
"""Profile -> what it is for. Of its runs, from so many on, in so many each of these is decided: of seeds 5000 to 5029
each is in half of them or more."""

NOTHING = "nothing to judge"
REASONS = ("the history ends", "no coordinator could act for long enough")


def reasons(verdicts: Verdicts) -> dict[str, str | None]:
    """Invariant -> why it was not decided, None when it was."""
    return {name: _reason(verdict) for name, verdict in verdicts.verdicts.items()}


def _reason(verdict: Verdict) -> str | None:
    if verdict.outcome != NOT_DECIDED:
        return None if verdict.judged or verdict.outcome == BROKEN else NOTHING
    why = verdict.why or ""
    return next((reason for reason in REASONS if reason in why), why)


@dataclass
class Decisions:
    """Those of many runs.

    :ivar profiles: profile -> runs.
    :ivar decided_in: (profile, invariant) -> runs.
    :ivar undecided: (invariant, why) -> runs.
    """

    runs: int = 0
    profiles: Counter[str] = field(default_factory=Counter)
    decided: Counter[str] = field(default_factory=Counter)
    decided_in: Counter[tuple[str, str]] = field(default_factory=Counter)
    undecided: Counter[tuple[str, str]] = field(default_factory=Counter)
    invariants: tuple[str, ...] = ()

    def add(self, profile: str, found: Mapping[str, str | None]) -> None:
        """Count one run's `reasons`."""
        self.runs += 1
        self.profiles[profile] += 1
        self.invariants = self.invariants or tuple(found)
        for name, why in found.items():
            if why is None:
                self.decided[name] += 1
                self.decided_in[profile, name] += 1
            else:
                self.undecided[name, why] += 1

    def rows(self) -> list[tuple[str, str, str]]:
        """For people: invariant, runs in which it was decided, and why not in the others."""
        return [(name, f"{self.decided[name]} of {self.runs}", self._why_not(name)) for name in self.invariants]

    def _why_not(self, name: str) -> str:
        found = [(runs, why) for (invariant, why), runs in self.undecided.items() if invariant == name]
        return ", ".join(f"{why}: {runs}" for runs, why in sorted(found, reverse=True))

    def lacking(self, is_stock: bool = True) -> list[str]:
        """What was decided in too few runs: an invariant in a profile that is for it, or anywhere.

        :param is_stock: whether these are runs of the stock mixture.
        """
        here = [
            f"{name} in {profile}"
            for profile, runs in sorted(self.profiles.items())
            for name in PURPOSES.get(profile, ())
            if runs >= LEAST_RUNS_OF_PROFILE and self.decided_in[profile, name] < LEAST_SHARE_OF_PROFILE * runs
        ]
        if not is_stock or self.runs < LEAST_RUNS:
            return here
        return here + [name for name in self.invariants if self.decided[name] < LEAST_SHARE * self.runs]

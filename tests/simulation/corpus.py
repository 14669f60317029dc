"""The corpus: worlds of the aimed profile in which something met that had not met before, kept and mutated.

As a coverage-guided fuzzer keeps the inputs that reached something new (AFL): here the circumstances of a world and the
kinds of its faults. What meets is in `coverage.interleavings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

FILE = Path(__file__).parent / "corpus.jsonl"
MOST = 60
"""Entries that are kept: those with most that was new."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A world of a profile.

    :ivar circumstances: name of a field -> index of its value.  :ivar kinds: of faults.
    """

    circumstances: Mapping[str, int]
    kinds: tuple[str, ...]

    def mutated(self, random: Random, fresh: Plan) -> Plan:
        """One circumstance, or one kind, as in `fresh`; one kind less; or all as it is, with other draws."""
        change = random.randrange(4)
        circumstances, kinds = dict(self.circumstances), list(self.kinds)
        if change == 0 and circumstances:
            name = random.choice(sorted(circumstances))
            circumstances[name] = fresh.circumstances[name]
        elif change == 1:
            kinds.append(random.choice(fresh.kinds))
        elif change == 2 and len(kinds) > 1:
            kinds.remove(random.choice(kinds))
        return Plan(circumstances, tuple(dict.fromkeys(kinds)))


def load(file: Path = FILE) -> tuple[Plan, ...]:
    """The entries of the repository."""
    lines = file.read_text().splitlines() if file.exists() else []
    return tuple(Plan(entry["circumstances"], tuple(entry["kinds"])) for entry in map(json.loads, lines))


def save(plans: Iterable[Plan], file: Path = FILE) -> None:
    """One line for each."""
    file.write_text("".join(json.dumps(asdict(plan), separators=(",", ":")) + "\n" for plan in plans))


def selected(runs: Iterable[tuple[Plan, frozenset[str]]], most: int = MOST) -> Iterator[Plan]:
    """The plans that together reach what all runs reached, those that add most first."""
    left = list(runs)
    seen: set[str] = set()
    for _ in range(most):
        plan, reached = max(left, key=lambda run: len(run[1] - seen), default=(None, frozenset[str]()))
        if plan is None or not reached - seen:
            return
        seen |= reached
        yield plan


def known(plan: Plan, circumstances: Mapping[str, tuple[Any, ...]], kinds: Iterable[str]) -> bool:
    """Whether a profile still has all of a plan."""
    has = set(kinds)
    return plan.circumstances.keys() == circumstances.keys() and has.issuperset(plan.kinds)

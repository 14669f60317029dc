"""How many seeds it takes until the simulation finds a mutation."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.mutations import Mutation
from tests.simulation.run import Outcome, simulate


def found_by(mutation: Mutation, seeds: Iterable[int]) -> Outcome | None:
    """The first run whose verdicts show the mutation; None when none of these seeds does."""
    with mutation.applied():
        for seed in seeds:
            outcome = simulate(seed, mutation.profile)
            if outcome.broken & mutation.breaks:
                return outcome
    return None

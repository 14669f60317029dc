"""That the simulation bites: each way to break the product is found, by an invariant that it breaks."""

from __future__ import annotations

import pytest

from tests.simulation.mutation import Patch
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.profile import Profile
from tests.simulation.run import simulate
from tests.simulation.search import found_by

pytestmark = pytest.mark.histories

SEEDS = 40
"""So many from the seed at which it was found when this was written: what a seed means changes with the code."""

WORLDS_THAT_PASSED: list[tuple[Profile, int, tuple[Patch, ...]]] = []
"""Of several mutations that are looked for in one world, that is run once as it is."""


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_simulation_finds_that(mutation: Mutation) -> None:
    found = found_by(mutation, range(mutation.seed, mutation.seed + SEEDS))

    assert found is not None, f"not in {SEEDS} histories from seed {mutation.seed} on"
    shown = [verdict for verdict in found.verdicts.broken if verdict.invariant in mutation.breaks]
    assert all(verdict.witness for verdict in shown)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_product_as_it_is_breaks_nothing_in_the_same_world(mutation: Mutation) -> None:
    world = mutation.profile, mutation.seed, mutation.also
    if world not in WORLDS_THAT_PASSED:
        with mutation.applied(only_also=True):
            outcome = simulate(mutation.seed, mutation.profile)
        assert outcome.passed, "\n".join([outcome.verdicts.text(), *outcome.problems])
        WORLDS_THAT_PASSED.append(world)


def test_every_hole_of_the_draft_has_a_mutation() -> None:
    assert {mutation.hole for mutation in MUTATIONS.values()} >= set(range(1, 13))

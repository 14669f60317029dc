"""Mutations that no stock profile finds within 300 seeds, in a world of their own each."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.rare_worlds import WORLDS
from tests.simulation.search import found_in_its_world


@pytest.mark.rotates
@pytest.mark.parametrize("name", WORLDS)
def test_a_world_made_for_it_finds_that(name: str) -> None:
    assert found_in_its_world(MUTATIONS[name]) is not None

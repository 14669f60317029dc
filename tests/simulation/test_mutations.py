"""That the simulation bites: each way to break the product is found by a stock profile, by an invariant it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.edits import edited, parsed
from tests.simulation.mutations import MUTATIONS
from tests.simulation.rare_worlds import WORLDS
from tests.simulation.search import found_by, found_in_its_world, last_found, order
from zk_group.coordinator.zk.znodes.ranges import Ranges

LEAST = 60
"""Of all that `scripts/simulate --mutations` tries, so many and more are found; it names the others, and fails."""

FOUND = {name: run for name, run in last_found().items() if name in MUTATIONS}


@pytest.mark.rotates
@pytest.mark.parametrize("name", FOUND)
def test_the_stock_simulation_finds_that(name: str) -> None:
    mutation = MUTATIONS[name]
    seeds = order(mutation, FOUND[name])

    found, _ = found_by(mutation, seeds)

    assert found is not None, f"not in {len(seeds)} histories"
    shown = [verdict for verdict in found.verdicts.broken if verdict.invariant in mutation.breaks]
    assert all(verdict.witness for verdict in shown)


@pytest.mark.rotates
@pytest.mark.parametrize("name", WORLDS)
def test_a_world_made_for_it_finds_that(name: str) -> None:
    """Mutations that no stock profile finds within 300 seeds, in a world of their own each."""
    assert found_in_its_world(MUTATIONS[name]) is not None


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_finds_what_it_changes(name: str) -> None:
    with MUTATIONS[name].applied():
        pass


def test_an_edit_lasts_for_its_run_and_is_refused_where_its_lines_do_not_stand_once() -> None:
    file, old = "coordinator/zk/znodes/ranges.py", "    def __len__(self) -> int:\n"
    ranges = Ranges.of([1, 2, 3])
    (mutation,) = parsed(f"== none\nhole 1 | S1 | aimed\n@ {file}\n {old}+        return 0\n", {})

    with mutation.applied():
        assert len(ranges) == 0

    assert len(ranges) == 3
    with pytest.raises(LookupError, match="times"):
        edited(file, ("        return", ""))()


def test_every_hole_of_the_draft_has_a_mutation_that_is_found() -> None:
    rules = [rule for name in FOUND for rule in MUTATIONS[name].rule.split(", ")]

    assert len(FOUND) >= LEAST
    assert {f"hole {number}" for number in range(1, 13)} <= set(rules)


def test_the_second_rule_that_a_mutation_takes_away_is_named() -> None:
    assert [each.name for each in MUTATIONS.values() if bool(each.also) != bool(each.covered_by)] == []


def test_the_readme_has_which_rule_covers_which() -> None:
    page = (Path(__file__).parent / "README.md").read_text()

    rows = {f"| {each.name} | {each.rule} | {each.covered_by} |" for each in MUTATIONS.values() if each.also}
    assert rows <= set(page.splitlines())

"""The turns of `turns/*.txt`: what a group's turn reads, and what its plan writes.

`pytest tests/unit/test_turns.py --rewrite` writes what the plans write into the files: review the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.snapshots import CooperativeRange
from tests.simulation.edits import parsed
from tests.simulation.mutation import Mutation
from tests.support.terms import RANGE, only
from tests.support.turns import Case, cases, file_of
from zk_group.coordinator.assignors import RoundRobinAssignor

FILES = sorted(Path(__file__).with_name("turns").glob("*.txt"))
KNOWN = {**RANGE, **only(CooperativeRange()), **only(RoundRobinAssignor())}
CASES = [pytest.param(file, case, id=case.title) for file in FILES for case in cases(file.read_text())[1]]


@pytest.mark.parametrize(("file", "case"), CASES)
def test_turn_writes(file: Path, case: Case, request: pytest.FixtureRequest) -> None:
    found = case.played(KNOWN)

    if request.config.getoption("--rewrite"):
        head, some = cases(file.read_text())
        file.write_text(file_of(head, ((one.title, found if one == case else one.text) for one in some)))
    else:
        assert found == case.text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_titles_of_turns_are_unique(file: Path) -> None:
    titles = [case.title for case in cases(file.read_text())[1]]

    assert titles and len(titles) == len(set(titles))


SLIPS = parsed(Path(__file__).with_name("plan_slips.txt").read_text(), {})


@pytest.mark.parametrize("slip", SLIPS, ids=[slip.name for slip in SLIPS])
def test_a_plan_that_breaks_an_invariant_is_stopped(slip: Mutation) -> None:
    with slip.applied():
        found = "\n".join(case.played(KNOWN) for file in FILES for case in cases(file.read_text())[1])

    assert any(slip.rule in line for line in found.splitlines() if line.startswith("  not written: "))

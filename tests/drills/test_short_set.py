"""The short set on an embedded ensemble of three: every kind of fault once."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.drills.catalog import DRILLS
from coordinator.drills.ground import Embedded
from coordinator.drills.promises import HANDED_OVER, NEXT_ACTS_AT_ONCE
from tests.support.drills import drilled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SHORT = [name for name, drill in DRILLS.items() if drill.is_short and not drill.lacks(Embedded.can)]
IN_PLAIN_SECONDS = tuple(f"({promise.rule})" for promise in (HANDED_OVER, NEXT_ACTS_AT_ONCE))
"""How a reason ends that only a machine with other work gives: other bounds are in session timeouts."""


@pytest.fixture(scope="module")
def short_set(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one run of all of them said of each."""
    _, said, _ = drilled(tmp_path_factory.mktemp("runs"), "--short", servers=3)
    return {drill["drill"]: drill for drill in said["drills"]}


@pytest.mark.parametrize("name", SHORT)
def test_the_fault_costs_what_was_promised(short_set: dict[str, dict[str, Any]], name: str) -> None:
    drill = short_set[name]

    assert [why for why in drill["why"] if not why.endswith(IN_PLAIN_SECONDS)] == []
    assert drill["broken"] == []
    assert (drill["records"]["lost"], drill["records"]["duplicated"]) == (0, 0)
    assert drill["numbers"]["doubly_owned_s"] == 0.0


def test_all_of_the_short_set_ran(short_set: dict[str, dict[str, Any]]) -> None:
    assert list(short_set) == SHORT

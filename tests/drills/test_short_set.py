"""The short set on an embedded ensemble of three: every kind of fault once."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.drills.catalog import DRILLS
from coordinator.drills.ground import Embedded
from coordinator.drills.promises import FETCHED_AGAIN, HANDED_OVER, NEXT_ACTS_AT_ONCE
from coordinator.drills.spark import SPARK

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SHORT = [name for name, drill in DRILLS.items() if drill.is_short and not drill.lacks(Embedded.can)]
IN_PLAIN_SECONDS = tuple(f"({promise.rule})" for promise in (HANDED_OVER, NEXT_ACTS_AT_ONCE))
"""How a reason ends that only a machine with other work gives: other bounds are in session timeouts."""
BESIDE_SPARK = f"({FETCHED_AGAIN.rule})"
"""The same where Spark starts a JVM meanwhile, on the same two cores."""


@pytest.mark.parametrize("name", SHORT)
def test_the_fault_costs_what_was_promised(short_set: dict[str, dict[str, Any]], name: str) -> None:
    drill = short_set[name]

    excused = (*IN_PLAIN_SECONDS, BESIDE_SPARK) if DRILLS[name] in SPARK else IN_PLAIN_SECONDS
    assert [why for why in drill["why"] if not why.endswith(excused)] == []
    assert drill["broken"] == []
    assert (drill["records"]["lost"], drill["records"]["duplicated"]) == (0, 0)
    assert drill["numbers"]["doubly_owned_s"] == 0.0


def test_all_of_the_short_set_ran(short_set: dict[str, dict[str, Any]]) -> None:
    assert list(short_set) == SHORT

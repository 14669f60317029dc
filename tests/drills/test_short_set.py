"""The short set on an embedded ensemble of three: every kind of fault once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drills.catalog import DRILLS
from drills.environments.base import Embedded
from drills.scenarios.promises import FETCHED_AGAIN, HANDED_OVER, NEXT_ACTS_AT_ONCE
from drills.scenarios.spark import SPARK

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SHORT = [name for name, drill in DRILLS.items() if drill.is_short and not drill.lacks(Embedded.can)]
LATE_S = {HANDED_OVER.rule: 2.0, NEXT_ACTS_AT_ONCE.rule: 2.0}
"""So much later than promised on a machine with other work: others are in session timeouts, and half of one is less
than it takes where nobody hands over."""
LATE_BESIDE_SPARK_S = {**LATE_S, FETCHED_AGAIN.rule: 8.0}
"""The same where Spark starts a JVM meanwhile, on the same two cores."""


@pytest.mark.parametrize("name", SHORT)
def test_the_fault_costs_what_was_promised(short_set: dict[str, dict[str, Any]], name: str) -> None:
    drill = short_set[name]

    late_s = LATE_BESIDE_SPARK_S if DRILLS[name] in SPARK else LATE_S
    promises = json.loads((Path(drill["folder"]) / "run.json").read_text())["promises"]
    excused = [
        f"({promise['rule']})"
        for promise in promises
        if promise["measured"] is not None and promise["measured"] <= promise["bound"] + late_s.get(promise["rule"], 0)
    ]
    assert [why for why in drill["why"] if not why.endswith(tuple(excused))] == []
    assert drill["broken"] == []
    assert (drill["records"]["lost"], drill["records"]["duplicated"]) == (0, 0)
    assert drill["numbers"]["doubly_owned_s"] == 0.0


def test_all_of_the_short_set_ran(short_set: dict[str, dict[str, Any]]) -> None:
    assert list(short_set) == SHORT

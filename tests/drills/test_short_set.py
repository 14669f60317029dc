"""The short set on an embedded ensemble of three: every kind of fault once, and every promise kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.drills import ALL_DRILLS, BESIDE_OTHERS, QUIET, drill_names, require_pass

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("name", drill_names(BESIDE_OTHERS))
def test_fault_stays_within_its_bounds(short_set: dict[str, dict[str, Any]], name: str) -> None:
    require_pass(short_set[name])


@ALL_DRILLS
@pytest.mark.parametrize("name", QUIET)
def test_fault_stays_within_its_bounds_on_a_quiet_machine(quiet_set: dict[str, dict[str, Any]], name: str) -> None:
    require_pass(quiet_set[name])

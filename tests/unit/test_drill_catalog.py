"""The drills, and what docs/drills.md says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.base.settings import Settings
from drills.catalog import DRILLS
from drills.scenarios.definition import Drill

PAGE = (Path(__file__).parents[2] / "docs" / "drills.md").read_text()
SECONDS = Settings().bounds(0.2)


def row_of(drill: Drill) -> str:
    return next((line for line in PAGE.splitlines() if line.startswith(f"| `{drill.name}`")), "")


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_the_page_says_of_each_drill_what_it_does_proves_and_promises(drill: Drill) -> None:
    row = row_of(drill)

    assert drill.fault in row
    assert drill.proves in row
    assert all(f"{promise.name}: {promise.rule}" in row for promise in drill.promises)
    assert ("(long)" in row) != drill.is_short


def test_the_page_knows_no_other_drill() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 5]

    assert len(rows) == len(DRILLS)


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_promise_depends_on_the_session_timeout_where_a_failure_must_be_detected(drill: Drill) -> None:
    longer = Settings(session_timeout_ms=4000).bounds(0.2)

    for promise in drill.promises:
        assert promise.bound(longer) >= promise.bound(SECONDS) >= 0
        assert (promise.bound(longer) > promise.bound(SECONDS)) == any(
            word in promise.rule for word in ("session timeout", "lease")
        )

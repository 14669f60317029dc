"""The drills, compared with docs/drills.md."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from drills.base.settings import Settings
from drills.runner import DRILLS
from drills.scenarios.definition import Drill
from tests.support.drills import RUN_BY_TESTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "drills.md").read_text()
RELEASE = (DOCS / "evidence.md").read_text().partition("\n## Drills before a release\n")[2]
ROW = r"^\| `([a-z-]+)` \| (PASS|FAIL|INCONCLUSIVE) \| ([0-9-]{10}) \| `[0-9a-f]{7}` \| `(scripts/drill run .+)` \|$"
"""Of the table: a drill, its verdict, the day, the commit, the command."""
SECONDS = Settings().bounds(0.2)


def row_of(drill: Drill) -> str:
    return next((line for line in PAGE.splitlines() if line.startswith(f"| `{drill.name}`")), "")


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_page_lists_the_action_evidence_and_promises_of_each_drill(drill: Drill) -> None:
    row = row_of(drill)

    assert drill.fault in row
    assert drill.proves in row
    assert all(f"{promise.name}: {promise.rule}" in row for promise in drill.promises)
    assert ("(long)" in row) != drill.is_short


def test_page_lists_no_other_drill() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 5]

    assert len(rows) == len(DRILLS)


def test_every_drill_is_run_by_a_test_or_was_run_before_the_release() -> None:
    rows = re.findall(ROW, RELEASE, re.MULTILINE)

    assert len(rows) == RELEASE.count("\n| `"), "a row has a drill, a verdict, a day, a commit and a command"
    assert {name for name, *_ in rows} == DRILLS.keys() - RUN_BY_TESTS
    assert all(date.fromisoformat(day) and name in command.split() for name, _, day, command in rows)
    assert "`scripts/drill run --all --kafka`" in RELEASE


def test_drill_that_did_not_pass_has_a_note_below_the_table() -> None:
    not_passed = [name for name, verdict, *_ in re.findall(ROW, RELEASE, re.MULTILINE) if verdict != "PASS"]

    assert [name for name in not_passed if f"\n`{name}`: " not in RELEASE] == []


@pytest.mark.parametrize("drill", DRILLS.values(), ids=DRILLS.keys())
def test_promise_depends_on_the_session_timeout_where_a_failure_must_be_detected(drill: Drill) -> None:
    longer = Settings(session_timeout_ms=4000).bounds(0.2)

    for promise in drill.promises:
        assert promise.bound(longer) >= promise.bound(SECONDS) >= 0
        assert (promise.bound(longer) > promise.bound(SECONDS)) == any(
            word in promise.rule for word in ("session timeout", "lease")
        )


def test_an_application_that_hangs_is_not_named_as_the_spark_application() -> None:
    stage = MagicMock(bounds={"poll_interval": 0.0, "lease": 0.0})
    stage.group.return_value.state.target = {}

    DRILLS["application-stops-polling"].run(stage)

    stage.start_application.assert_called_once_with("application", "between polls")

"""The demo's verdict, without Spark."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

LIBRARY = Path(__file__).resolve().parent.parent.parent / "scripts" / "lib"


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A successful run."""
    monkeypatch.syspath_prepend(str(LIBRARY))
    from demo.story import Story

    story = Story(tmp_path, 1, lambda line: None, lambda *counts: None)
    story.verdict.coordinator_failover_ms = 4000
    story.verdict.executors_killed = 1
    story.verdict.rebalances = 3
    story.verdict.state = "Stable"
    yield story
    for name in [name for name in sys.modules if name == "demo" or name.startswith("demo.")]:
        del sys.modules[name]


def test_successful_run_has_no_findings(story: Any) -> None:
    story._judge(True)

    assert story.verdict.failures == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lost", 1),
        ("duplicated", 1),
        ("coordinator_failover_ms", None),
        ("executors_killed", 0),
        ("rebalances", 2),
        ("state", "PreparingRebalance"),
    ],
)
def test_each_fault_is_a_finding(story: Any, field: str, value: object) -> None:
    setattr(story.verdict, field, value)

    story._judge(True)

    assert len(story.verdict.failures) == 1


def test_different_result_is_a_finding(story: Any) -> None:
    story._judge(False)

    assert len(story.verdict.failures) == 1


@pytest.mark.usefixtures("story")
@pytest.mark.long
def test_pyarrow_replaces_no_signal_handler_while_the_flights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from demo.flights import load_flights

    replaced: list[int] = []

    def handler_of(number: int) -> signal.Handlers:
        replaced.append(number)  # pyarrow gets the handlers that it is about to replace
        return signal.SIG_DFL

    monkeypatch.setattr(signal, "getsignal", handler_of)
    pa.enable_signal_handlers(True)

    load_flights()

    assert replaced == []

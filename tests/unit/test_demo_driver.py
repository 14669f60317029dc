"""Restarts of a query by the demo's Spark application, without Spark."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LIBRARY = Path(__file__).resolve().parent.parent.parent / "scripts" / "lib"

LATE = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back."


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(LIBRARY))
    import demo.driver

    monkeypatch.setattr(demo.driver, "LOOK_S", 0.001)
    yield demo.driver
    for name in [name for name in sys.modules if name == "demo" or name.startswith("demo.")]:
        del sys.modules[name]


def queries(*reasons: str | None) -> Iterator[Any]:
    """A query for each reason for which it has ended; None runs."""
    for number, reason in enumerate(reasons):
        yield SimpleNamespace(id=number, isActive=reason is None, exception=lambda reason=reason: reason)


def printed_events(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(event["event"], event.get("reason", "")) for event in events]


def run(driver: Any, monkeypatch: pytest.MonkeyPatch, *reasons: str | None) -> Any:
    """The query with which it ends; the application is stopped when one runs, or when it waits."""
    given = queries(*reasons)
    stopping = threading.Event()

    def start(spark: Any, config: Any) -> Any:
        query = next(given)
        if query.isActive:
            stopping.set()
        return query

    monkeypatch.setattr(driver, "start_query", start)
    monkeypatch.setattr(stopping, "wait", lambda timeout=None: stopping.is_set())
    return driver.run_query(None, {}, stopping)


def test_query_whose_python_process_started_too_late_is_restarted(
    driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(driver, monkeypatch, LATE, LATE, None).id == 2
    assert printed_events(capsys) == [("query", ""), ("again", LATE), ("query", ""), ("again", LATE), ("query", "")]


@pytest.mark.parametrize("reasons", [["out of memory"], [LATE] * 5], ids=["another reason", "too often"])
def test_failing_query_is_reported_and_not_restarted_forever(
    reasons: list[str], driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(driver, monkeypatch, *reasons)
    events = printed_events(capsys)
    assert events[-1] == ("failed", reasons[-1])
    assert [event for event, _ in events].count("query") == len(reasons)


def test_the_pool_is_resized_until_the_application_is_stopped(
    driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: list[int] = []
    stopping = threading.Event()
    monkeypatch.setattr(sys, "stdin", io.StringIO("resize 6\nresize 4\nstop\nresize 9\n"))

    driver.obey(SimpleNamespace(resize=sizes.append), stopping)

    assert sizes == [6, 4]
    assert stopping.is_set()
    assert printed_events(capsys) == [("resized", ""), ("resized", "")]

"""Deadlines of tests: extended on a busy machine, except for promises."""

from __future__ import annotations

import time

import pytest

from tests.support import wait
from tests.support.wait import Waiting, eventually, within


def comes_after(delay_s: float, waits: Waiting, timeout_s: float) -> bool:
    begun = time.monotonic()
    return waits(lambda: time.monotonic() - begun >= delay_s, timeout_s, "it has come")


def test_expected_event_has_a_longer_deadline_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "PATIENCE", 50.0)

    assert comes_after(0.1, eventually, 0.05)


def test_deadline_of_a_promise_is_not_extended_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "PATIENCE", 50.0)

    with pytest.raises(AssertionError, match=r"not within 0\.05 s: it has come; the last of .* returned False"):
        comes_after(0.1, within, 0.05)


def test_result_found_after_its_deadline_is_too_late() -> None:
    found = iter([False, True])

    with pytest.raises(AssertionError, match="the last of 1 calls returned False"):
        within(lambda: next(found), 0.01, "it has come", pause_s=0.05)


def test_allowed_error_counts_as_pending() -> None:
    def refuses() -> bool:
        raise OSError("refused")

    with pytest.raises(AssertionError, match=r"it has come; .* raised OSError"):
        within(refuses, 0.01, "it has come", ignoring=(OSError,))
    with pytest.raises(OSError, match="refused"):
        within(refuses, 0.01, "it has come")

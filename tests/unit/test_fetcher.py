"""Fetching from a log that is slow, hangs, or has a partition that cannot be read."""

from __future__ import annotations

import pytest

from consumer.fetcher import LONGEST_WAIT_S, LOOK_FOR_DATA_S, Looks
from tests.unit.manual import ManualRuntime


@pytest.mark.parametrize(
    ("look_s", "wait_s"), [(0.0, LOOK_FOR_DATA_S), (0.01, 0.09), (60.0, LONGEST_WAIT_S)], ids=["quick", "slow", "hung"]
)
def test_an_empty_log_is_looked_at_again_soon_however_long_the_last_look_took(look_s: float, wait_s: float) -> None:
    runtime = ManualRuntime()
    looks = Looks(runtime)
    began = runtime.monotonic()
    runtime.now += look_s
    looks.note(began, is_empty=True)
    assert looks.wait_s == pytest.approx(wait_s)

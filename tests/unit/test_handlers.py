"""When a handler is asked for the turn that follows acknowledgements."""

from __future__ import annotations

from typing import Any

from coordinator.assignors.range import RangeAssignor
from coordinator.config import CoordinatorConfig
from coordinator.handlers import Handlers
from coordinator.problems import Problems
from coordinator.zk.paths import GroupPaths
from tests.unit.manual import ManualRuntime

PATHS = GroupPaths("g")
ELSEWHERE: Any = None
"""What no acknowledgement touches: the store, the term, the lease, what operators asked for."""


def waits_s(acknowledged: str, outstanding: set[str]) -> float:
    """Seconds until the group's turn, once `acknowledged` has removed its command and `outstanding` had some."""
    runtime = ManualRuntime()
    config = CoordinatorConfig(zk="nobody:1")
    handlers = Handlers(
        config, ELSEWHERE, runtime, ELSEWHERE, ELSEWHERE, RangeAssignor(), Problems(runtime), print, ELSEWHERE
    )
    handlers._outstanding["g"] = outstanding
    began = runtime.now
    handlers.on_acknowledge(PATHS.channel(acknowledged))
    assert handlers.requests.take() is not None
    return round(runtime.now - began, 6)


def test_acknowledgements_that_others_may_follow_make_one_wave() -> None:
    assert waits_s("c1", {"c1", "c2"}) == 0.01


def test_the_last_acknowledgement_waits_for_nobody() -> None:
    assert waits_s("c1", {"c1"}) == 0.0


def test_an_acknowledgement_that_nobody_knows_of_is_looked_at_all_the_same() -> None:
    assert waits_s("c1", set()) == 0.01
    assert waits_s("c1", {"c2"}) == 0.01

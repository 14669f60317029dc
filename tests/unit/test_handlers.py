"""Delay of the turn that follows acknowledgements."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest

from coordinator.rebalance.handlers import GroupTurns, Handlers
from coordinator.rebalance.rebalancer import Turn
from coordinator.term.operator_requests import Requested
from coordinator.term.term import LeaseLapsed
from coordinator.zk.errors import ConnectionLost, RebalanceFailed
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.paths import GroupPaths
from tests.support.strategies import RANGE
from tests.support.terms import a_term
from tests.unit.manual import ManualRuntime

PATHS = GroupPaths("g")
ELSEWHERE: Any = None
"""The store, which no test here touches."""


class NothingAsked:
    """No requests of operators."""

    def pause_of(self, group: str) -> None:
        return None

    def with_held(self, group: str, reasons: tuple[str, ...]) -> tuple[str, ...]:
        return reasons

    def requested(self, group: str) -> Requested | None:
        return None


class Group:
    """A group's turns, which a rebalancer of the test's takes.

    :ivar taken: how often it was asked to.
    """

    def __init__(self, turn: Turn | None = None, asked: object = None, not_before_s: float = 0.0) -> None:
        self.runtime = ManualRuntime()
        self.handlers = Handlers(a_term(ELSEWHERE, self.runtime), RANGE, print, asked or NothingAsked())  # type: ignore[arg-type]
        self.turns = GroupTurns(self, not_before=self.runtime.now + not_before_s)  # type: ignore[arg-type]
        self.handlers._groups["g"] = self.turns
        self.taken = 0
        self._turn = turn

    def take_turn(self, trigger: str, changed_s: float = 0.0) -> Turn:
        self.taken += 1
        return self._turn or Turn(None)

    def handle(self) -> None:
        """The next request."""
        request = self.handlers.requests.take()
        assert request is not None
        self.handlers._take_turn(request)
        self.handlers.requests.done("g")


def waits_s(acknowledged: str, outstanding: set[str]) -> float:
    """Seconds until the group's turn, once `acknowledged` has removed its command and `outstanding` had some."""
    group = Group()
    group.turns.outstanding = outstanding
    began = group.runtime.now
    group.handlers.on_acknowledge(PATHS.channel(acknowledged))
    assert group.handlers.requests.take() is not None
    return round(group.runtime.now - began, 6)


def test_acknowledgements_in_quick_succession_are_handled_in_one_turn() -> None:
    assert waits_s("c1", {"c1", "c2"}) == 0.01


def test_last_acknowledgement_is_handled_at_once() -> None:
    assert waits_s("c1", {"c1"}) == 0.0


def test_unexpected_acknowledgement_is_still_handled() -> None:
    assert waits_s("c1", set()) == 0.01
    assert waits_s("c1", {"c2"}) == 0.01


@pytest.mark.parametrize(
    ("turn", "pauses"),
    [
        (Turn(0.0, is_refused=True), [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (Turn(0.0, is_idle=True), [0.0] * 21 + [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (Turn(0.0, is_requested=True), [0.0] * 10 + [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (Turn(0.0, is_new_generation=True), [0.0] * 50 + [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (Turn(0.0), [0.0] * 30),
    ],
)
def test_turns_that_are_refused_idle_requested_or_a_generation_back_off(turn: Turn, pauses: list[float]) -> None:
    turns = GroupTurns()
    now = 100.0
    found = []
    for _ in pauses:
        turns.pace(turn, now)
        found.append(round(turns.not_before - now, 6))
        now = turns.not_before + 0.001

    assert found == pauses
    turns.pace(Turn(0.0), now)
    assert turns.not_before == now


def test_idle_turns_far_apart_never_back_off() -> None:
    turns = GroupTurns()
    for now in range(100):
        turns.pace(Turn(None, is_idle=True), float(now))
    assert turns.not_before == 99.0


@pytest.mark.long
def test_requests_during_a_back_off_bring_no_turn_before_its_end() -> None:
    group = Group(Turn(0.05, is_refused=True))
    end = group.runtime.now + 60
    while group.runtime.now < end:
        group.handlers.requests.request("g", "a change")
        group.handle()
        group.runtime.now += 0.001

    assert 12 <= group.taken <= 25


class Late(Group):
    """ZooKeeper does not answer its first turn."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_s: list[float] = []

    def take_turn(self, trigger: str, changed_s: float = 0.0) -> Turn:
        self.changed_s.append(changed_s)
        if len(self.changed_s) == 1:
            raise ConnectionLost("no answer")
        return Turn(None)


def test_a_turn_after_an_unanswered_one_counts_from_the_change_that_began_both() -> None:
    group = Late()
    for _ in range(2):
        group.handlers.ask("g", "c1 is gone")
        group.runtime.now += 15
        group.handle()

    assert group.changed_s == [15, 30]


class AskedAgain(NothingAsked):
    """An operator repeats its request as soon as it is answered."""

    def requested(self, group: str) -> Requested | None:
        return Requested(1, 0, "requested")

    def answer(self, group: str, request: Requested) -> None:
        pass


def test_an_operators_requests_in_a_loop_are_paced_a_single_one_is_not() -> None:
    group = Group(Turn(None, state=GroupState("Stable")), AskedAgain(), not_before_s=5.0)
    began, taken = group.runtime.now, []
    while group.runtime.now < began + 60:
        group.handlers.requests.request("g", "a request")
        group.handle()
        taken.append(group.taken)
        group.runtime.now += 0.01

    assert taken[9] == 10, "also within the pause of an earlier turn"
    assert 25 < taken[-1] < 35

    group.runtime.now += 3600
    group.turns.not_before = group.runtime.now + 5.0
    group.handlers.requests.request("g", "a request")
    group.handle()
    assert group.taken == taken[-1] + 1, "an hour later it is a single one again"


class FailingRebalancer:
    """Its turns raise, from a frame that holds it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def take_turn(self, trigger: str, changed_s: float = 0.0) -> None:
        raise self._error


@pytest.mark.parametrize("error", [LeaseLapsed, RebalanceFailed])
@pytest.mark.long
def test_log_record_of_a_failed_turn_retains_no_objects_of_the_group(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    group, rebalancer = Group(), FailingRebalancer(error("turn failed"))
    kept = weakref.ref(rebalancer)
    group.handlers._groups["g"] = GroupTurns(rebalancer)  # type: ignore[arg-type]
    group.handlers.ask("g", "joined c1")

    with caplog.at_level(logging.DEBUG):
        group.handle()
    del group.handlers._groups["g"], rebalancer
    gc.collect()

    assert "reason=turn failed" in caplog.text
    assert kept() is None

"""Turns of a node: a strategy that fails, with the record of each assignment; and the delay of a group's next turn."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from tests.property.tree import MemoryTree
from tests.support.terms import RANGE, a_term, directory_of, only
from tests.unit.manual import ManualRuntime
from zk_group.consumer.membership.registration import register
from zk_group.coordinator.assignors import Assignment, RangeAssignor, Subscriber, assigned
from zk_group.coordinator.rebalance.handlers import HandledGroup, Handlers
from zk_group.coordinator.rebalance.pacing import TurnPaces
from zk_group.coordinator.rebalance.rebalancer import Turn
from zk_group.coordinator.term.operator_requests import OperatorRequests, Requested
from zk_group.coordinator.term.request_queue import GroupTurn, Request, Trigger
from zk_group.coordinator.term.term import LeaseLapsed
from zk_group.coordinator.zk.backoff import Backoff
from zk_group.coordinator.zk.errors import ConnectionLost, EpochOver, RebalanceFailed
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, LONGEST_FAULT, GroupPaths
from zk_group.coordinator.zk.znodes.records import EpochRecord, Registration, Topic

Assign = Callable[[Sequence[Subscriber], Mapping[str, Sequence[int]]], Any]
RETRIES = 2


class Made(RangeAssignor):
    """A third party's, for members whose name begins with x; range for the others."""

    name = "made"

    def __init__(self, assign: Assign) -> None:
        self._assign = assign

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        if any(one.consumer.startswith("x") for one in subscribers):
            found: Assignment = self._assign(subscribers, topics)
            return found
        return super().assign(subscribers, topics)


def raises(error: BaseException) -> Assign:
    return Mock(side_effect=error)


class Untellable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


FAULTS: dict[str, tuple[Assign, str]] = {
    "an error": (raises(ValueError("no luck")), "assignor made failed: ValueError: no luck"),
    "an error without a word": (raises(KeyError()), "assignor made failed: KeyError"),
    "an error that cannot be error_text": (raises(Untellable()), "assignor made failed: Untellable"),
    "one of the project's errors": (raises(EpochOver("1 is over")), "assignor made failed: EpochOver: 1 is over"),
    "the project's error for this": (raises(RebalanceFailed("no")), "assignor made failed: RebalanceFailed: no"),
    "the end of the process": (raises(SystemExit(3)), "assignor made failed: SystemExit: 3"),
    "a line of its own": (raises(OSError("a\nb\x1b[31m")), r"assignor made failed: OSError: a\nb\x1b[31m"),
    "a very long one": (raises(ValueError("\x00" * 10_000)), r"assignor made failed: ValueError: \x00\x00"),
    "nothing": (lambda members, topics: None, "assignor made gives what is no assignment: AttributeError: "),
    "lists": (lambda members, topics: {"x1": {"x1-0": [("t", 0)]}}, "gives x1-0 something that is no TopicPartition"),
    "a list of partitions": (
        lambda members, topics: {"x1": {"x1-0": [TopicPartition("t", 0)]}},
        "assignor made gives what is no assignment: TypeError: ",
    ),
    "topics taken apart": (
        lambda members, topics: topics.popitem(),  # type: ignore[attr-defined]
        "assignor made failed: AttributeError: ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_assignor_fault_is_reported_with_its_name(fault: str) -> None:
    assign, reason = FAULTS[fault]

    with pytest.raises(RebalanceFailed) as failed:
        assigned(Made(assign), [Subscriber("x1", {"t": 1})], {"t": range(2)})

    assert reason in str(failed.value)
    assert str(failed.value).isprintable() and len(str(failed.value)) < LONGEST_FAULT + 100


# ---- one group's failure, and the other groups


class Node:
    """An elected coordinator's handlers on a tree, with a group for each of `members`."""

    def __init__(self, assignor: Made, members: Mapping[str, str]) -> None:
        self.tree = MemoryTree()
        self.over: list[str] = []
        self.metrics = Mock()
        self.runtime = ManualRuntime()
        self.tree.ensure("/consumers/groups")
        self.tree.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
        self.tree.put(COORDINATOR, b"{}")
        node = self.tree.node(COORDINATOR_EPOCH)
        assert node is not None
        for group, name in members.items():
            registration = Registration(f"{name}-life", {"t": 1}, "static", protocols=("made",), lease_ms=1000)
            register(self.tree.open(), GroupPaths(group), name, registration, None)
        term = a_term(
            self.tree.open(), self.runtime, 1, node.stat.version, metrics=self.metrics, max_rebalance_retries=RETRIES
        )
        directory = directory_of(term, {"t": Topic("t", "t-1", (0, 1))})
        self.handlers = Handlers(term, directory, only(assignor), OperatorRequests(term), self.over.append)
        self.handlers.start()

    def turn(self, group: str) -> GroupState:
        """A turn, as a handler takes it; the state afterwards."""
        self.runtime.now += 10
        self.handlers._take_turn(Request(GroupTurn(group), (Trigger("a change"),)))
        path = GroupPaths(group).state
        return GroupState.parse(path, self.tree.data(path) or b"{}")


@pytest.mark.parametrize("fault", ["an error", "the end of the process", "one of the project's errors", "nothing"])
def test_only_the_group_of_a_failing_assignor_fails(fault: str) -> None:
    assign, reason = FAULTS[fault]
    node = Node(Made(assign), {"bad": "x1", "good": "c1"})

    states = [node.turn("bad").state for _ in range(RETRIES + 1)]
    failed, other = node.turn("bad"), node.turn("good")

    assert states == ["Empty"] * RETRIES + ["RebalanceFailed"]
    node.metrics.rebalance_failed.assert_called_once_with("bad", "a change", 10 * RETRIES)
    assert (failed.state, failed.generation) == ("RebalanceFailed", 0)
    assert failed.reason is not None and reason in failed.reason
    assert (other.state, other.reason, set(other.target)) == ("CompletingRebalance", None, {"c1"})
    assert node.over == []


def test_a_third_partys_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(Made(raises(ValueError("no luck"))), {"bad": "x1"})

    with caplog.at_level(logging.ERROR):
        node.turn("bad")

    (line,) = [each for each in caplog.records if "turn failed" in each.getMessage()]
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], RebalanceFailed)
    assert isinstance(line.exc_info[1].__cause__, ValueError)


# ---- pace of turns: after acknowledgements, refusals, and requests in a loop


PATHS, KEY = GroupPaths("g"), GroupTurn("g")
ELSEWHERE: Any = None
"""The store, which no test here touches."""


class Group:
    """A group's turns, which a rebalancer of the test's takes.

    :ivar taken: how often it was asked to.
    """

    def __init__(
        self, turn: Turn | None = None, asked: type[OperatorRequests] = OperatorRequests, not_before_s: float = 0.0
    ) -> None:
        self.runtime = ManualRuntime()
        term = a_term(ELSEWHERE, self.runtime)
        self.handlers = Handlers(term, directory_of(term, {}), RANGE, asked(term), print)
        self.handled = HandledGroup(self, paces=TurnPaces(self.runtime.now + not_before_s))  # type: ignore[arg-type]
        self.handlers._groups[KEY] = self.handled
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
        self.handlers.requests.done(KEY)


@pytest.mark.parametrize(
    ("outstanding", "waits_s"),
    [({"c1", "c2"}, 0.01), ({"c1"}, 0.0), (set(), 0.01), ({"c2"}, 0.01)],
    ids=["others follow in quick succession", "the last one", "an unexpected one", "another one"],
)
def test_acknowledgement_is_handled_after(outstanding: set[str], waits_s: float) -> None:
    """All acknowledgements in quick succession in one turn, the last one at once."""
    group = Group()
    group.handled.outstanding = outstanding
    began = group.runtime.now
    group.handlers.on_acknowledge(PATHS.channel("c1"))

    assert group.handlers.requests.take() is not None
    assert round(group.runtime.now - began, 6) == waits_s


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
    paces = TurnPaces()
    now = 100.0
    found = []
    for _ in pauses:
        paces.taken(turn, now)
        found.append(round(paces.not_before - now, 6))
        now = paces.not_before + 0.001

    assert found == pauses
    paces.taken(Turn(0.0), now)
    assert paces.not_before == now


def test_backoff_doubles_with_each_failure_in_a_row_up_to_its_bound() -> None:
    backoff = Backoff(0.2, 5.0)
    assert [backoff.after(failures) for failures in range(8)] == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.after(10**6) == 5.0


def test_idle_turns_far_apart_never_back_off() -> None:
    paces = TurnPaces()
    for now in range(100):
        paces.taken(Turn(None, is_idle=True), float(now))
    assert paces.not_before == 99.0


@pytest.mark.long
def test_requests_during_a_back_off_bring_no_turn_before_its_end() -> None:
    group = Group(Turn(0.05, is_refused=True))
    end = group.runtime.now + 60
    while group.runtime.now < end:
        group.handlers.requests.request(KEY, Trigger("a change"))
        group.handle()
        group.runtime.now += 0.001

    assert 12 <= group.taken <= 25


def test_a_turn_after_an_unanswered_one_counts_from_the_change_that_began_both() -> None:
    changed: list[float] = []

    class Late(Group):
        def take_turn(self, trigger: str, changed_s: float = 0.0) -> Turn:
            changed.append(changed_s)
            if len(changed) == 1:
                raise ConnectionLost("no answer")
            return Turn(None)

    group = Late()
    for _ in range(2):
        group.handlers.request_turn(KEY, "c1 is gone")
        group.runtime.now += 15
        group.handle()

    assert changed == [15, 30]


class AskedAgain(OperatorRequests):
    """An operator repeats its request as soon as it is answered."""

    def requested(self, group: str) -> Requested | None:
        return Requested(1, 0, "requested")

    def answer(self, group: str, request: Requested) -> bool:
        return True


def test_an_operators_requests_in_a_loop_are_paced_a_single_one_is_not() -> None:
    group = Group(Turn(None, state=GroupState("Stable")), AskedAgain, not_before_s=5.0)
    began, taken = group.runtime.now, []
    while group.runtime.now < began + 60:
        group.handlers.requests.request(KEY, Trigger("a request"))
        group.handle()
        taken.append(group.taken)
        group.runtime.now += 0.01

    assert taken[9] == 10, "also within the pause of an earlier turn"
    assert 25 < taken[-1] < 35

    group.runtime.now += 3600
    group.handled.paces.not_before = group.runtime.now + 5.0
    group.handlers.requests.request(KEY, Trigger("a request"))
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
def test_log_record_of_a_failed_turn_holds_no_object(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    group, rebalancer = Group(), FailingRebalancer(error("turn failed"))
    kept = weakref.ref(rebalancer)
    group.handlers._groups[KEY] = HandledGroup(rebalancer)  # type: ignore[arg-type]
    group.handlers.request_turn(KEY, "joined c1")

    with caplog.at_level(logging.DEBUG):
        group.handle()
    del group.handlers._groups[KEY], rebalancer
    gc.collect()

    assert "reason=turn failed" in caplog.text
    assert kept() is None

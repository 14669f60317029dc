"""A failing strategy: its group reports name and reason, others continue; and the record of each assignment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from consumer.membership.registration import register
from coordinator.assignors import Assignment, RangeAssignor, Subscriber, assigned
from coordinator.assignors.sticky import StickyAssignor
from coordinator.rebalance.handlers import Handlers, RecordingAssignor
from coordinator.term.operator_requests import Asked
from coordinator.term.request_queue import Request
from coordinator.zk.errors import EpochOver, RebalanceFailed
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, LONGEST_FAULT, GroupPaths
from coordinator.zk.znodes.records import EpochRecord, Registration, Topic
from tests.property.tree import MemoryTree
from tests.support.strategies import only
from tests.support.terms import a_term
from tests.unit.manual import ManualRuntime
from tests.unit.strategies import numbered, parts

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
    def assign(subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Any:
        raise error

    return assign


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
    assert str(failed.value).isprintable()


def test_error_message_over_the_limit_is_truncated() -> None:
    with pytest.raises(RebalanceFailed) as failed:
        assigned(Made(raises(ValueError("\x00" * 10_000))), [Subscriber("x1", {"t": 1})], {"t": range(2)})

    assert len(str(failed.value)) < LONGEST_FAULT + 100


# ---- one group's failure, and the other groups


class Node:
    """An elected coordinator's handlers on a tree, with a group for each of `members`."""

    def __init__(self, assignor: Made, members: Mapping[str, str]) -> None:
        self.tree = MemoryTree()
        self.over: list[str] = []
        runtime = ManualRuntime()
        self.tree.ensure("/consumers/groups")
        self.tree.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
        self.tree.put(COORDINATOR, b"{}")
        node = self.tree.node(COORDINATOR_EPOCH)
        assert node is not None
        for group, name in members.items():
            registration = Registration(f"{name}-life", {"t": 1}, "static", protocols=("made",), lease_ms=1000)
            register(self.tree.open(), GroupPaths(group), name, registration, None)
        term = a_term(self.tree.open(), runtime, 1, node.stat.version, max_rebalance_retries=RETRIES)
        self.handlers = Handlers(term, only(assignor), self.over.append, Asked(term))
        self.handlers.start(lambda: {"t": Topic("t", "t-1", (0, 1))})

    def turn(self, group: str) -> GroupState:
        """A turn, as a handler takes it; the state afterwards."""
        self.handlers._take_turn(Request(group, ("a change",)))
        path = GroupPaths(group).state
        return GroupState.parse(path, self.tree.data(path) or b"{}")


@pytest.mark.parametrize("fault", ["an error", "the end of the process", "one of the project's errors", "nothing"])
def test_only_the_group_of_a_failing_assignor_fails(fault: str) -> None:
    assign, reason = FAULTS[fault]
    node = Node(Made(assign), {"bad": "x1", "good": "c1"})

    states = [node.turn("bad").state for _ in range(RETRIES + 1)]
    failed, other = node.turn("bad"), node.turn("good")

    assert states == ["Empty"] * RETRIES + ["RebalanceFailed"]
    assert (failed.state, failed.generation) == ("RebalanceFailed", 0)
    assert failed.reason is not None
    assert reason in failed.reason
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


# ---- the record of an assignment in the history (S8): every input of an assignor


class Remembering(ManualRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Mapping[str, Any]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


ONE = Subscriber("c1", {"t": 2}, parts("t:0"), 3, "data", "instance", {part: "c1-1" for part in parts("t:0-1")})


def recorded(*members: Subscriber) -> Mapping[str, Any]:
    runtime = Remembering()
    RecordingAssignor(StickyAssignor(), runtime, "g").assign(members, numbered("t:3"))
    (event,) = runtime.events
    return event


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, threads={"t": 3}),
        replace(ONE, running=parts("t:1")),
        replace(ONE, generation=4),
        replace(ONE, user_data=""),
        replace(ONE, instance_id=""),
        replace(ONE, on_thread={}),
        replace(ONE, on_thread=dict.fromkeys(parts("t:0-1"), "c1-0")),
    ],
)
def test_another_input_is_another_text(other: Subscriber) -> None:
    assert recorded(other)["input"] != recorded(ONE)["input"]


def test_the_order_of_an_input_is_not_in_the_text() -> None:
    two = Subscriber("c0", {"t": 1})
    turned = replace(ONE, on_thread=dict(reversed(list(ONE.on_thread.items()))))

    assert recorded(ONE, two) == recorded(two, turned)

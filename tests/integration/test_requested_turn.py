"""`rebalance G`: an operator's request for a turn, which outlives the elected node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import Result

from coordinator.admin import control
from coordinator.assignors import Assignment, RangeAssignor, Subscriber
from coordinator.term.operator_requests import Asked
from coordinator.zk.errors import EpochOver
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import TurnRequest
from tests.support.cli import run, run_json
from tests.support.hand import ManualStage
from tests.support.terms import with_store
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


class Faulty(RangeAssignor):
    """Fails for as long as `fails` is set."""

    def __init__(self) -> None:
        self.fails = False

    def assign(self, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        if self.fails:
            raise RuntimeError("the assignor is at fault")
        return super().assign(members, topics)


@pytest.fixture
def assignor(world: World) -> Faulty:
    """That of the coordinator of group `g`, which is Stable."""
    assignor = Faulty()
    world.coordinator(assignor=assignor)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    return assignor


def test_a_requested_turn_cuts_the_wait_after_a_failure_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.rebalance.handlers.LONGEST_BACKOFF_S", 600.0)
    assignor = Faulty()
    assignor.fails = True
    world.coordinator(assignor=assignor, max_rebalance_retries=0)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    eventually(lambda: world.state("g").state == "RebalanceFailed", 10, "it has failed")
    for _ in range(8):  # 0.5 s * 2^9 until the next try
        failed = run(world.zk, "rebalance", "g", "--timeout", "0.2")
        assert failed.exit_code == 1
        assert "it is RebalanceFailed (assignor range failed: RuntimeError: the assignor is at fault)" in failed.stderr
        world.remove(PATHS.request)

    assignor.fails = False
    document = run_json(world.zk, "rebalance", "g", "--reason", "mended")

    assert document["before"]["state"] == "RebalanceFailed"
    assert document["changed"]
    assert "requested by " in world.history("g")[-1].trigger and "mended" in world.history("g")[-1].trigger
    world.stable("g", 1)


def test_request_is_kept_until_a_turn_has_succeeded(world: World, assignor: Faulty) -> None:
    assignor.fails = True

    failed = run(world.zk, "rebalance", "g", "--timeout", "0.5")
    stood = world.data(PATHS.request)
    assignor.fails = False

    assert failed.exit_code == 1 and "the request is kept" in failed.stderr
    assert stood is not None
    eventually(lambda: world.data(PATHS.request) is None, 10, "the next try answers it")


def test_unanswered_request_is_left_to_the_next_coordinator(world: World) -> None:
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    eventually(lambda: world.data(PATHS.id("c1")) is not None, 5, "c1 is registered")
    world.put(PATHS.request, TurnRequest("an operator", 1, "long ago").to_bytes())

    world.coordinator()

    eventually(lambda: world.data(PATHS.request) is None, 10, "it is answered")
    assert "requested by an operator: long ago" in world.history("g")[0].trigger


def test_a_deposed_coordinator_answers_no_request(world: World, stage: ManualStage) -> None:
    deposed = stage.hand()
    deposed.close()
    stage.hand()
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    zombie = Asked(with_store(deposed.term, world.store))
    request = zombie.read_requests(["g"], lambda path: None)["g"]

    with pytest.raises(EpochOver):
        zombie.answer("g", request)

    assert world.data(PATHS.request) is not None


def test_second_requester_waits_for_that_turn(world: World, assignor: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    has_asked, await_turn = ThreadRuntime().event(), control.await_turn

    def noted(*words: Any) -> Any:
        has_asked.set()
        return await_turn(*words)

    monkeypatch.setattr(control, "await_turn", noted)
    assignor.fails = True
    world.put(PATHS.request, TurnRequest("the first", 1).to_bytes())
    results: list[Result] = []
    waiting = ThreadRuntime().spawn(lambda: results.append(run(world.zk, "rebalance", "g")), "waiting")
    assert has_asked.wait(20)

    assignor.fails = False
    waiting.join(40)

    assert [result.exit_code for result in results] == [0]
    assert "already requested by the first" in results[0].stderr


def test_a_request_that_cannot_be_read_is_reported_and_taken_all_the_same(world: World) -> None:
    service = world.coordinator()
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    world.put(PATHS.request, b"please")

    eventually(lambda: world.data(PATHS.request) is None, 5, "it is answered")
    eventually(lambda: service.problems.current() == {}, 5, "and mended with it")
    assert service.problems.count == 1

"""The request handlers: which turn sees which change, and that no turn ends a handler; and `rebalance G`.

An operator's request for a turn outlives the elected node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result

from coordinator.admin import control
from coordinator.assignors import Assignment, RangeAssignor, Subscriber
from coordinator.rebalance.handlers import Handlers
from coordinator.term.operator_requests import Asked
from coordinator.zk.errors import ConnectionLost, EpochOver, StoreError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create, Listing, Operation, SetData, Store, Watch
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import TurnRequest
from tests.support.cli import run, run_json
from tests.support.client_side import Hooked
from tests.support.hand import Hand, ManualStage
from tests.support.stores import FrontStore, Reads
from tests.support.strategies import RANGE
from tests.support.terms import with_config, with_store
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


@contextmanager
def handlers_of(hand: Hand, stage: ManualStage, store: Store, asked: Asked, late_ms: int = 100) -> Iterator[Handlers]:
    """One handler without listeners: a test requests every turn."""
    over: list[str] = []
    options = {"group_initial_rebalance_delay_ms": 500, "rebalance_handlers": 1, "rebalance_debounce_ms": late_ms}
    term = with_config(with_store(hand.term, store), **options)
    handlers = Handlers(term, RANGE, over.append, asked)
    tasks = handlers.start(lambda: stage.topics)
    try:
        yield handlers
        assert over == []
    finally:
        handlers.stop()
        for task in tasks:
            task.join(5)


def test_changes_while_a_generation_begins_share_a_turn_with_those_soon_after(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    asked = Asked(hand.term)

    def joins(name: str) -> None:
        stage.puppet("g", name, {"t": 1})
        handlers.ask("g", f"joined {name}")

    store = Hooked(hand.store)
    store.before(lambda commit: any(isinstance(each, SetData) for each in commit), lambda: joins("c2"))
    with handlers_of(hand, stage, store, asked, late_ms=1500) as handlers:
        joins("c1")
        eventually(lambda: world.data(PATHS.state) is not None and world.state("g").generation >= 1, 5, "it began")
        joins("c3")
        eventually(lambda: set(world.state("g").target) == {"c1", "c2", "c3"}, 5, "all of them have a part")

    assert world.state("g").generation == 2


def test_a_request_that_cannot_be_answered_does_not_end_the_handler(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    reads = Reads(hand.store)
    asked = Asked(with_store(hand.term, reads))
    asked.read_requests(["g"], lambda path: None)

    def refused() -> None:
        """As by a server with an ACL on it."""
        raise StoreError("ZooKeeper refused to answer: NoAuthError()")

    reads.after(PATHS.request, refused)

    with handlers_of(hand, stage, hand.store, asked) as handlers:
        handlers.ask("g", "requested")
        eventually(lambda: handlers.turns == 1, 5, "a turn")
        handlers.ask("g", "again")
        eventually(lambda: handlers.turns > 1, 5, "the handler lives on")
        assert reads.paths.count(PATHS.request) > 1, "it was refused"


class Deaf(FrontStore):
    """Loses the connection where the channels that were just commanded are to be watched, once, after `before`."""

    def __init__(self, store: Store, before: Callable[[], None]) -> None:
        super().__init__(store)
        self._before = before
        self._has_sent = False
        self.has_lost = False

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        made = self.behind.commit(operations)
        self._has_sent |= any(
            isinstance(o, Create) and o.path.startswith(PATHS.command_prefix("c1")) for o in operations
        )
        return made

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        if self._has_sent and not self.has_lost and paths == [PATHS.channel("c1")]:
            self.has_lost = True
            self._before()
            raise ConnectionLost("ZooKeeper did not answer: the connection was lost")
        return self.behind.children_many(paths, watch)


@pytest.mark.parametrize("is_fast", [True, False])
def test_command_in_an_unwatched_channel_is_followed_up(world: World, stage: ManualStage, is_fast: bool) -> None:
    """No sweep here, and no timer before the eviction: only the retry of the turn can see what became of it."""
    hand = stage.hand()
    stage.topic("t", 4)
    puppet = stage.puppet("g", "c1", {"t": 1})
    store = Deaf(hand.store, puppet.obey if is_fast else lambda: None)
    asked = Asked(hand.term)
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    asked.read_requests(["g"], lambda path: None)

    with handlers_of(hand, stage, store, asked) as handlers:
        handlers.ask("g", "joined c1")
        eventually(lambda: store.has_lost, 5, "the connection was lost")
        if not is_fast:
            eventually(lambda: handlers.turns == 2, 5, "the turn is taken again, and one behind the request")
            puppet.obey()
        eventually(lambda: world.state("g").state == "Stable", 5, "the group is Stable")
        eventually(lambda: world.data(PATHS.request) is None, 5, "the request is answered")

    (rebalance,) = world.history("g")
    assert rebalance.trigger == "joined c1" and rebalance.finished_ms is not None


# ---- rebalance G


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


def test_request_that_was_replaced_is_not_answered_by_the_turn_before(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("first", 1).to_bytes())
    asked = Asked(with_store(hand.term, world.store))
    request = asked.read_requests(["g"], lambda path: None)["g"]
    world.remove(PATHS.request)
    world.put(PATHS.request, TurnRequest("second", 2).to_bytes())

    asked.answer("g", request)

    assert b"second" in (world.data(PATHS.request) or b"")


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

"""The request handlers: which turn sees which change, and that no turn ends a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from coordinator.rebalance.handlers import Handlers
from coordinator.term.operator_requests import Asked
from coordinator.zk.errors import ConnectionLost, StoreError
from coordinator.zk.store import Create, Listing, Node, Operation, SetData, Store, Watch
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import TurnRequest
from tests.support.hand import Hand, ManualStage
from tests.support.stores import FrontStore
from tests.support.strategies import RANGE
from tests.support.terms import with_config, with_store
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


@contextmanager
def handlers_of(
    hand: Hand, stage: ManualStage, store: Store, asked: Asked, debounce_ms: int = 100
) -> Iterator[Handlers]:
    """One handler without listeners: a test requests every turn."""
    over: list[str] = []
    term = with_config(
        with_store(hand.term, store),
        group_initial_rebalance_delay_ms=500,
        rebalance_handlers=1,
        rebalance_debounce_ms=debounce_ms,
    )
    handlers = Handlers(term, RANGE, over.append, asked)
    tasks = handlers.start(lambda: stage.topics)
    try:
        yield handlers
        assert over == []
    finally:
        handlers.stop()
        for task in tasks:
            task.join(5)


class Interrupted(FrontStore):
    """Calls `then` once, while the multi that begins the first generation is on its way."""

    def __init__(self, store: Store, then: Callable[[], None]) -> None:
        super().__init__(store)
        self._then: Callable[[], None] | None = then

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        begins = any(isinstance(o, SetData) and o.path == PATHS.state for o in operations)
        then, self._then = (self._then, None) if begins else (None, self._then)
        if then is not None:
            then()
        return self.behind.commit(operations)


def test_changes_while_a_generation_begins_share_a_turn_with_those_soon_after(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    asked = Asked(hand.term)

    def joins(name: str) -> None:
        stage.puppet("g", name, {"t": 1})
        handlers.ask("g", f"joined {name}")

    with handlers_of(hand, stage, Interrupted(hand.store, lambda: joins("c2")), asked, debounce_ms=1500) as handlers:
        joins("c1")
        eventually(lambda: world.data(PATHS.state) is not None and world.state("g").generation >= 1, 5, "it began")
        joins("c3")
        eventually(lambda: set(world.state("g").target) == {"c1", "c2", "c3"}, 5, "all of them have a part")

    assert world.state("g").generation == 2


class Shut(FrontStore):
    """Refuses to read requests once it `is_shut`, like a server with an ACL on them."""

    is_shut = False

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if self.is_shut and PATHS.request in paths:
            raise StoreError("ZooKeeper refused to answer: NoAuthError()")
        return self.behind.get_many(paths, watch)


def test_a_request_that_cannot_be_answered_does_not_end_the_handler(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    shut = Shut(hand.store)
    asked = Asked(with_store(hand.term, shut))
    asked.read_requests(["g"], lambda path: None)
    shut.is_shut = True

    with handlers_of(hand, stage, hand.store, asked) as handlers:
        handlers.ask("g", "requested")
        eventually(lambda: handlers.turns == 1, 5, "a turn")
        handlers.ask("g", "again")
        eventually(lambda: handlers.turns > 1, 5, "the handler lives on")


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

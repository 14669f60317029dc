"""The request handlers on a real ZooKeeper: no turn ends a handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from coordinator.asked import Asked
from coordinator.assignors.range import RangeAssignor
from coordinator.config import CoordinatorConfig
from coordinator.handlers import Handlers
from coordinator.zk.asked import TurnRequest
from coordinator.zk.errors import StoreError
from coordinator.zk.paths import GroupPaths
from coordinator.zk.store import Node, Store, Watch
from tests.support.hand import Hand, Stage
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


@contextmanager
def handlers_of(hand: Hand, stage: Stage, store: Store, asked: Asked, debounce_ms: int = 100) -> Iterator[Handlers]:
    """One handler; nobody listens, so a test asks for every turn."""
    config = CoordinatorConfig(zk=stage.zk, node="hand", rebalance_handlers=1, rebalance_debounce_ms=debounce_ms)
    over: list[str] = []
    handlers = Handlers(
        config, store, hand.runtime, hand.term, hand.lease, RangeAssignor(), hand.problems, over.append, asked
    )
    tasks = handlers.start(lambda: stage.topics)
    try:
        yield handlers
        assert over == []
    finally:
        handlers.stop()
        for task in tasks:
            task.join(5)


class Shut(FrontStore):
    """Refuses to read requests once it `is_shut`, as a server does where somebody has put an ACL on them."""

    is_shut = False

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if self.is_shut and PATHS.request in paths:
            raise StoreError("ZooKeeper refused to answer: NoAuthError()")
        return self.behind.get_many(paths, watch)


def test_a_request_that_cannot_be_answered_does_not_end_the_handler(world: World, stage: Stage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    shut = Shut(hand.store)
    asked = Asked(shut, hand.runtime, hand.term, hand.problems)
    asked.read_requests(["g"], lambda path: None)
    shut.is_shut = True

    with handlers_of(hand, stage, hand.store, asked) as handlers:
        handlers.ask("g", "requested")
        eventually(lambda: handlers.turns == 1, 5, "a turn")
        handlers.ask("g", "again")
        eventually(lambda: handlers.turns > 1, 5, "the handler lives on")

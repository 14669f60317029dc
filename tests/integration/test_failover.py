"""A coordinator that ends half-way: its successor completes the started rebalance and starts no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.zk.store import Listing, Store, Watch
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.paths import GroupPaths
from tests.support.hand import ManualStage
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, parts

pytestmark = pytest.mark.both_zookeepers

PATHS = GroupPaths("g")


STOP, START = [("stop-fetcher", 2)], [("start-fetcher", 2)]
"""What the second coordinator has sent, in its epoch."""


@pytest.mark.parametrize(
    ("stopped", "started", "sent"),
    [
        ("c1", "", [START, STOP, []]),  # c3 waits for what c2 still runs
        ("c1 c2", "", [START, START, START]),
        ("c1 c2 c3", "c1", [[], START, START]),
        ("c1 c2 c3", "c1 c2 c3", [[], [], []]),
    ],
    ids=["amid the stops", "between stop and start", "amid the starts", "after the last acknowledgement"],
)
def test_next_coordinator_completes_the_rebalance_that_was_begun(
    stage: ManualStage, world: World, stopped: str, started: str, sent: list[list[tuple[str, int]]]
) -> None:
    first = stage.hand("first")
    puppets = [*stage.stable_pair(first), stage.puppet("g", "c3", {"t": 1})]
    for names in (stopped, started):
        if names:
            first.turn("g")
        for puppet in puppets:
            if puppet.name in names:
                puppet.obey()
    assert world.state("g").state != STABLE
    first.close()

    second = stage.hand("second")
    for _ in range(2):
        second.turn("g")

    assert [[(command.option, command.epoch) for command in puppet.commands()] for puppet in puppets] == sent
    second.settle("g", *puppets)
    assert world.state("g").generation == 2, "the target was decided already"
    assert [len(puppet.gave_up) for puppet in puppets] == [1, 1, 0], "no member stops twice"
    assert [puppet.applied for puppet in puppets] == [3, 3, 1]
    assert frozenset().union(*(puppet.running for puppet in puppets)) == parts("t", 0, 1, 2, 3)
    assert world.history("g")[-1].finished_ms is not None


def test_group_changed_without_an_elected_coordinator_is_rebalanced_by_the_next(
    stage: ManualStage, world: World
) -> None:
    first = stage.hand("first")
    one, two = stage.stable_pair(first)
    first.close()
    two.close()
    three = stage.puppet("g", "c3", {"t": 1})

    stage.hand("second").settle("g", one, three)

    assert (one.running, three.running) == (parts("t", 0, 1), parts("t", 2, 3))


class BreaksOnDemand(FrontStore):
    """Raises an unexpected error when the topics are listed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_broken = False

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        if self.is_broken and any(path.endswith("/topics") for path in paths):
            raise ZeroDivisionError("a bug")
        return super().children_many(paths, watch)


def test_coordinator_whose_thread_crashes_resigns_first(world: World, caplog: pytest.LogCaptureFixture) -> None:
    service = world.coordinator(wrap=BreaksOnDemand)
    world.elected(service)
    session = world.session_of(service)
    assert isinstance(session, BreaksOnDemand)
    session.is_broken = True

    world.topic("t", 2)

    world.elected(service, above=1)
    consumer = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    eventually(lambda: consumer.held == parts("t", 0, 1), 5, "it coordinates")
    assert "ZeroDivisionError" in caplog.text

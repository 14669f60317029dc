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


def test_between_stop_and_start_the_next_coordinator_sends_the_starts(stage: ManualStage, world: World) -> None:
    first = stage.hand("first")
    one, two = stage.stable_pair(first)
    three = stage.puppet("g", "c3", {"t": 1})
    first.turn("g")
    one.obey()
    two.obey()
    assert one.running | two.running == frozenset()
    first.close()

    second = stage.hand("second")
    second.turn("g")

    assert (one.options(), two.options(), three.options()) == (["start-fetcher"],) * 3
    second.settle("g", one, two, three)
    assert world.state("g").generation == 2, "the target was decided already"
    assert (len(one.gave_up), len(two.gave_up)) == (1, 1), "no member stops twice"


def test_amid_the_stops_the_next_coordinator_stops_the_rest(stage: ManualStage, world: World) -> None:
    first = stage.hand("first")
    one, two = stage.stable_pair(first)
    three = stage.puppet("g", "c3", {"t": 1})
    first.turn("g")
    one.obey()
    first.close()
    assert two.options() == ["stop-fetcher"]

    second = stage.hand("second")
    second.turn("g")
    second.turn("g")

    assert (one.options(), three.options()) == (["start-fetcher"], []), "c3 waits for what c2 still runs"
    assert [(command.option, command.epoch) for command in two.commands()] == [("stop-fetcher", 2)]
    second.settle("g", one, two, three)
    assert one.running | two.running | three.running == parts("t", 0, 1, 2, 3)


def test_next_coordinator_waits_for_the_remaining_start_acknowledgements(stage: ManualStage, world: World) -> None:
    stage.topic("t", 4)
    first = stage.hand("first")
    one, two = stage.puppet("g", "c1", {"t": 1}), stage.puppet("g", "c2", {"t": 1})
    first.turn("g")
    one.obey()
    first.close()

    second = stage.hand("second")
    second.settle("g", one, two)

    assert world.state("g").generation == 1
    assert (one.applied, two.applied, one.gave_up) == (1, 1, [])


def test_next_coordinator_completes_a_rebalance_after_the_last_acknowledgement(
    stage: ManualStage, world: World
) -> None:
    stage.topic("t", 4)
    first = stage.hand("first")
    puppet = stage.puppet("g", "c1", {"t": 1})
    first.turn("g")
    puppet.obey()
    first.close()
    assert world.state("g").state != STABLE

    state = stage.hand("second").turn("g").state

    assert state is not None and (state.state, state.generation) == (STABLE, 1)
    (record,) = world.history("g")
    assert record.finished_ms is not None


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


def test_coordinator_whose_thread_crashes_resigns_and_is_a_candidate_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
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

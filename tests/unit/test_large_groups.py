"""Groups whose partitions do not fit into one multi: an interrupted operation is resumed by the next process.

The tree refuses a multi of over 400 operations or 512 kB, and checks after each that no partition runs twice.
"""

from __future__ import annotations

import pytest

from coordinator.assignors import RangeAssignor
from coordinator.rebalance.rebalancer import PARTITIONS_A_STEP
from coordinator.zk.znodes.records import Channel
from tests.property.group_world import GroupWorld
from tests.property.test_convergence import assert_everything_is_assigned, settle

MANY = 2 * PARTITIONS_A_STEP + 30


class FailOverAfter:
    """Another coordinator is elected after so many requests from now."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def __call__(self, world: GroupWorld) -> None:
        self.left -= 1
        if self.left == 0:
            world.elect()
            world.turn()


def a_large_world() -> GroupWorld:
    world = GroupWorld(RangeAssignor())
    world.topic("t", MANY)
    world.start("a", {"t": 1})
    settle(world)
    return world


def channel(world: GroupWorld, name: str) -> Channel:
    return world.channels()[name]


def commits_of_the_end(world: GroupWorld) -> int:
    """The number of requests of a turn that ends `a`, by trial."""
    world.processes[0].expire()
    asked: list[int] = []
    world.meddle = lambda world: asked.append(1)
    world.turn()
    world.meddle = lambda world: None
    return len(asked)


def test_consumer_claims_and_releases_more_partitions_than_one_multi_holds() -> None:
    world = a_large_world()
    world.start("b", {"t": 1})

    settle(world)

    assert_everything_is_assigned(world)
    assert len(channel(world, "a").running) == MANY // 2


def test_dead_consumer_with_more_partitions_than_one_multi_is_ended_in_one_turn() -> None:
    world = a_large_world()
    world.processes[0].expire()

    world.turn()

    assert (channel(world, "a").is_live, dict(channel(world, "a").running)) == (False, {})


@pytest.mark.long
@pytest.mark.parametrize("before_the_last", range(5))
def test_coordinator_failing_over_amid_a_large_end_leaves_the_rest_to_the_next(before_the_last: int) -> None:
    requests = commits_of_the_end(a_large_world())
    world = a_large_world()
    world.processes[0].expire()
    world.meddle = FailOverAfter(requests - before_the_last)
    world.turn()
    world.meddle = lambda world: None
    world.start("b", {"t": 1})

    settle(world)

    assert_everything_is_assigned(world)


@pytest.mark.long
def test_a_large_consumer_that_is_evicted_half_way_keeps_its_partitions_marked() -> None:
    world = a_large_world()
    world.processes[0].stuck = True
    world.tick(5.0)
    world.turn()
    world.start("b", {"t": 1})

    for _ in range(19):  # its lease still runs: it may be fetching, and `check` would see a second one
        world.tick(0.1)
        world.turn()
        world.processes[-1].tend()

    assert not channel(world, "b").running
    settle(world)
    assert_everything_is_assigned(world)


def test_process_that_takes_a_large_name_over_ends_the_earlier_incarnation() -> None:
    world = a_large_world()
    world.start("a", {"t": 1})

    settle(world)

    assert_everything_is_assigned(world)
    assert world.processes[0].fenced is not None
    world.processes[0].tend()
    assert world.processes[0].gone

"""Threads of one member. How partitions move between members is in `turns/reconciliation.txt`."""

from __future__ import annotations

import pytest

from coordinator.assignors import Assignor, RangeAssignor
from coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.records import OwnerRecord
from tests.property.group_world import PATHS, GroupWorld
from tests.property.test_convergence import settle


def threads_of(world: GroupWorld) -> dict[str, str]:
    """Partition -> the thread in its owner znode."""
    found = {}
    for partition in world.snapshot().owners:
        node = world.session().get(PATHS.owner(*partition))
        assert node is not None
        found[str(partition)] = OwnerRecord.parse("", node.data).thread
    return found


def in_target(world: GroupWorld) -> dict[str, str]:
    threads = [item for target in world.state.target.values() for item in target.threads.items()]
    return {str(part): thread for thread, parts in threads for part in parts}


STRATEGIES: tuple[Assignor, ...] = (CooperativeStickyAssignor(), RangeAssignor(), StickyAssignor())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[each.name for each in STRATEGIES])
def test_partition_that_goes_to_another_thread_of_its_member_is_stopped_and_started(strategy: Assignor) -> None:
    world = GroupWorld(strategy)
    world.topic("t", 4)
    member = world.start("j1", {"t": 1})
    settle(world)
    assert set(threads_of(world).values()) == {"j1-0"}

    for count in (2, 4, 1):
        member.change_threads(count)
        settle(world)

        assert world.state.state == STABLE
        assert len(set(in_target(world).values())) == count
        assert threads_of(world) == in_target(world)


def test_partition_that_stays_on_its_thread_is_not_stopped() -> None:
    world = GroupWorld(CooperativeStickyAssignor())
    world.topic("t", 4)
    member = world.start("j1", {"t": 1})
    settle(world)

    member.change_threads(2)
    settle(world)

    (stopped,) = member.stopped
    assert len(stopped) == 2

"""Membership of a group where a turn's reads matter, and the choice of a strategy. All else is in `turns/`."""

from __future__ import annotations

import pytest

from coordinator.assignors import Assignor, RangeAssignor
from coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from coordinator.planning.membership import ESTABLISHED, NEWCOMER, Candidate, GroupRules, choose
from coordinator.zk.znodes.group_state import PREPARING, STABLE
from coordinator.zk.znodes.records import OwnerRecord
from coordinator.zk.znodes.segments import Pool
from tests.property.group_world import PATHS, SESSION_S, GroupWorld, MemberProcess, act_between
from tests.property.test_convergence import settle

T = {"t": 1}
KNOWN = {name: RangeAssignor() for name in ("range", "roundrobin", "sticky")}


def a_world(**rules: float) -> GroupWorld:
    world = GroupWorld(RangeAssignor(), rules=GroupRules(**rules))  # type: ignore[arg-type]
    world.topic("t", 4)
    return world


def running(world: GroupWorld) -> dict[str, list[int]]:
    channels = world.channels().items()
    return {name: sorted(part.partition for part in one.running) for name, one in channels if one.is_live}


def run_turns(world: GroupWorld, turns: int = 3) -> None:
    """Some turns in no time, in which every member polls."""
    for _ in range(turns):
        world.turn()
        for process in list(world.processes):
            process.tend()


# ---- choice of the strategy


@pytest.mark.parametrize(
    ("members", "current", "chosen", "refused"),
    [
        ("range", "", "range", []),
        ("roundrobin,range range", "range", "range", []),
        ("roundrobin,range roundrobin,range", "range", "roundrobin", []),
        ("roundrobin roundrobin,range", "roundrobin", "roundrobin", []),
        ("range,sticky sticky,range", "range", "range", []),
        ("range,sticky sticky,range", "sticky", "sticky", []),
        ("range,sticky sticky,range", "", "range", []),
        ("range,sticky sticky,range sticky,range", "range", "sticky", []),
        ("unheard-of,sticky,range range,sticky sticky", "range", "sticky", []),
        pytest.param("range +sticky range,sticky", "range", "range", ["c1"], id="a newcomer without one is refused"),
        pytest.param("+sticky +range", "", "sticky", ["c1"], id="first of newcomers without one is admitted"),
        pytest.param("range mine", "range", "range", ["c1"], id="incompatible member is removed"),
    ],
)
def test_strategy_that_most_prefer_is_chosen(members: str, current: str, chosen: str, refused: list[str]) -> None:
    """Members in the order of registration, newcomers with a +."""
    candidates = [
        Candidate(f"c{n}", tuple(each.strip("+").split(",")), NEWCOMER if each[0] == "+" else ESTABLISHED, n)
        for n, each in enumerate(members.split())
    ]

    for found in (choose(candidates, current, KNOWN), choose(reversed(candidates), current, KNOWN)):
        assert found.offer is not None
        assert (found.offer.name, list(found.refused)) == (chosen, refused)


# ---- static members


def two_static() -> tuple[GroupWorld, MemberProcess, MemberProcess]:
    world = a_world()
    first, second = (world.start(name, T, is_static=True) for name in "ab")
    settle(world)
    return world, first, second


def test_fenced_static_member_hands_all_partitions_to_the_newer_process() -> None:
    world, first, second = two_static()
    generation = world.state.generation

    world.start("a", T, is_static=True)
    first.tend()
    run_turns(world)

    assert first.gone
    assert running(world) == {"a": [0, 1], "b": [2, 3]}
    assert (world.state.generation, second.stopped) == (generation, [])


def test_a_seat_outlives_the_coordinators_failover() -> None:
    world, first, _ = two_static()
    generation = world.state.generation
    first.leave()
    world.turn()
    world.tick(SESSION_S - 0.1)
    world.elect()
    run_turns(world)

    world.tick(SESSION_S - 0.1)  # for the new coordinator its absence begins with its own election
    world.start("a", T, is_static=True)
    run_turns(world)

    assert world.state.generation == generation
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


def test_reclaimed_seat_survives_a_turn_that_saw_it_empty() -> None:
    world, first, _ = two_static()
    first.leave()
    world.turn()
    world.tick(SESSION_S)
    has_come = act_between(world, 12, lambda: world.start("a", T, is_static=True))  # before the turn's commit

    world.turn()

    assert has_come()
    settle(world)
    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


@pytest.mark.parametrize("nth", range(1, 16))
def test_turn_during_a_restart_of_a_static_member_keeps_its_partitions(nth: int) -> None:
    world, first, second = two_static()
    generation = world.state.generation
    first.leave()
    world.turn()
    act_between(world, nth, lambda: world.start("a", T, is_static=True))
    world.turn()

    run_turns(world)

    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert (world.state.generation, second.stopped) == (generation, [])
    assert "b" in running(world)


# ---- a group's start


@pytest.mark.parametrize("nth", range(1, 16))
def test_static_member_registering_during_a_turn_does_not_end_the_initial_delay(nth: int) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    world.turn()
    act_between(world, nth, lambda: world.start("s", T, is_static=True))
    world.turn()

    world.turn()

    assert (world.state.generation, world.state.state) == (0, PREPARING)


@pytest.mark.parametrize(
    ("data", "generation"),
    [(Pool(1, "run").to_bytes(), 1), (Pool(0, "run").to_bytes(), 0), (Pool(10_000, "run").to_bytes(), 0), (b"no", 0)],
    ids=["its one slot has joined", "no slots", "more slots than a pool may have", "unreadable"],
)
def test_pool_without_slots_to_wait_for_does_not_end_the_initial_delay(data: bytes, generation: int) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("p-slot-0", T)
    world.tree.put(PATHS.pools, b"")
    world.tree.put(PATHS.pool("p"), data)

    world.turn()

    assert world.state.generation == generation


# ---- threads of one member; how partitions move between members is in `turns/reconciliation.txt`


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

"""Membership of a group: common strategy, static members, newcomers, and the start of a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.assignors import RangeAssignor
from coordinator.planning.membership import ESTABLISHED, NEWCOMER, RETURNING, Candidate, GroupRules, choose
from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.store import SetData
from coordinator.zk.znodes.group_state import EMPTY, PREPARING, STABLE
from coordinator.zk.znodes.records import GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, Seat
from coordinator.zk.znodes.segments import Pool
from tests.property.group_world import MAX_POLL_MS, PATHS, SESSION_S, GroupWorld, MemberProcess
from tests.property.test_convergence import CooperativeRange, settle

T = {"t": 1}


class Other(RangeAssignor):
    """Another eager strategy."""

    name = "other"


KNOWN = {name: RangeAssignor() for name in ("range", "roundrobin", "sticky")}


def member(name: str, *protocols: str, rank: int = ESTABLISHED, czxid: int = 0) -> Candidate:
    return Candidate(name, protocols, rank, czxid)


def a_world(*assignors: type[RangeAssignor], partitions: int = 4, **rules: float) -> GroupWorld:
    world = GroupWorld(*(make() for make in assignors or (RangeAssignor,)), rules=GroupRules(**rules))  # type: ignore[arg-type]
    world.topic("t", partitions)
    return world


def running(world: GroupWorld) -> dict[str, list[int]]:
    return {
        name: sorted(part.partition for part in channel.running)
        for name, channel in world.channels().items()
        if channel.is_live
    }


def run_turns(world: GroupWorld, turns: int = 3) -> None:
    """Some turns in no time, in which every member polls."""
    for _ in range(turns):
        world.turn()
        for process in list(world.processes):
            process.tend()


def ended(world: GroupWorld, name: str) -> tuple[str, str]:
    channel = world.channels()[name]
    return channel.error, channel.ended or ""


# ---- choice of the strategy


@pytest.mark.parametrize(
    ("protocols", "current", "chosen"),
    [
        ([("range",)], "", "range"),
        ([("roundrobin", "range"), ("range",)], "range", "range"),
        ([("roundrobin", "range"), ("roundrobin", "range")], "range", "roundrobin"),
        ([("roundrobin",), ("roundrobin", "range")], "roundrobin", "roundrobin"),
        ([("range", "sticky"), ("sticky", "range")], "range", "range"),
        ([("range", "sticky"), ("sticky", "range")], "sticky", "sticky"),
        ([("range", "sticky"), ("sticky", "range")], "", "range"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "range", "sticky"),
        ([("unheard-of", "sticky", "range"), ("range", "sticky"), ("sticky",)], "range", "sticky"),
    ],
)
def test_most_preferred_strategy_supported_by_all_members_is_chosen(
    protocols: list[tuple[str, ...]], current: str, chosen: str
) -> None:
    members = [member(f"c{number}", *each) for number, each in enumerate(protocols)]

    assert choose(members, current, KNOWN).offer.name == chosen
    assert choose(reversed(members), current, KNOWN).offer.name == chosen


def test_newcomer_without_a_common_strategy_is_refused_and_the_group_continues() -> None:
    choice = choose(
        [member("a", "range"), member("b", "sticky", rank=NEWCOMER), member("c", "range", "sticky")],
        "range",
        KNOWN,
    )

    assert choice.offer.name == "range"
    assert list(choice.refused) == ["b"]
    assert "'sticky'" in choice.refused["b"]
    assert "'range'" in choice.refused["b"]


def test_first_of_newcomers_without_a_common_strategy_is_admitted() -> None:
    late, early = member("a", "range", rank=NEWCOMER, czxid=9), member("b", "sticky", rank=NEWCOMER)

    choice = choose([late, early], "", KNOWN)

    assert choice.offer.name == "sticky"
    assert list(choice.refused) == ["a"]


def test_newcomer_without_a_strategy_of_this_node_is_refused() -> None:
    choice = choose([member("a", "unheard-of", rank=NEWCOMER)], "", KNOWN)

    assert choice.offer is None
    assert "unheard-of" in choice.refused["a"]


def test_node_without_the_groups_strategy_refuses_no_existing_member() -> None:
    with pytest.raises(RebalanceFailed, match="install what is missing"):
        choose([member("a", "custom"), member("b", "custom")], "custom", KNOWN)


def test_refused_newcomer_takes_no_place_of_an_admissible_one() -> None:
    choice = choose(
        [member("a", "range"), member("b", "sticky", rank=NEWCOMER), member("c", "range", rank=NEWCOMER, czxid=1)],
        "range",
        KNOWN,
        most=2,
    )

    assert (list(choice.refused), choice.too_many) == (["b"], ())


def test_incompatible_member_is_removed_without_stopping_the_group() -> None:
    choice = choose([member("a", "range"), member("b", "mine", czxid=1)], "range", KNOWN)

    assert (choice.offer.name, list(choice.refused)) == ("range", ["b"])


def test_returning_static_member_precedes_newcomers_that_joined_during_its_absence() -> None:
    choice = choose(
        [
            member("a", "range", "sticky"),
            member("x", "sticky", rank=NEWCOMER, czxid=8),
            member("s", "range", rank=RETURNING, czxid=9),
        ],
        "range",
        KNOWN,
    )

    assert (choice.offer.name, list(choice.refused)) == ("range", ["x"])


def test_refused_newcomer_gets_the_reason_and_no_other_member_is_notified() -> None:
    world = a_world(RangeAssignor, Other)
    world.start("a", T, protocols=("range",))
    settle(world)
    generation = world.state.generation
    world.start("b", T, protocols=("other",))

    run_turns(world, 1)

    error, reason = ended(world, "b")
    assert error == INCONSISTENT_GROUP_PROTOCOL
    assert "'other'" in reason
    assert world.tree.children(PATHS.ids) == ["a"]
    assert world.state.generation == generation
    assert world.state.left_out == {"b": reason}
    assert running(world) == {"a": [0, 1, 2, 3]}


def test_no_generation_has_two_strategies() -> None:
    world = a_world(RangeAssignor, Other)
    both = "other", "range"
    first, second = (world.start(name, T, protocols=("range", "other")) for name in "ab")
    settle(world)
    before = world.state
    first.leave()
    world.start("a", T, protocols=both)
    settle(world)
    assert world.state.strategy == "range"  # one vote each, and it has it
    second.leave()
    world.start("b", T, protocols=both)
    settle(world)
    after = world.state

    assert (before.strategy, after.strategy) == ("range", "other")
    assert after.generation > before.generation


def test_switch_to_a_cooperative_strategy_stops_only_partitions_that_move() -> None:
    world = a_world(RangeAssignor, CooperativeRange)
    first, second = (world.start(name, T, protocols=("range", "cooperative-range"), is_static=True) for name in "ab")
    settle(world)
    assert world.state.strategy == "range"
    for process in (first, second):
        process.leave()
        world.start(process.name, T, protocols=("cooperative-range",), is_static=True)
        run_turns(world)
    assert world.state.strategy == "cooperative-range"

    assert [each.stopped for each in world.processes if not each.gone] == [[], []]
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


def test_member_with_unchanged_partitions_gets_no_cooperative_command() -> None:
    world = GroupWorld(CooperativeRange())
    world.topic("t", 2)
    world.topic("u", 2)
    world.start("a", {"t": 1})
    settle(world)
    before = world.channels()["a"]
    world.start("b", {"u": 1})

    settle(world)

    after = world.channels()["a"]
    assert world.state.generation > before.generation
    assert (after.generation, after.command) == (before.generation, before.command)
    assert running(world) == {"a": [0, 1], "b": [0, 1]}


def test_generation_without_commands_is_finished_when_it_begins() -> None:
    world = a_world(CooperativeRange, partitions=1)
    world.start("a", T)
    idle = world.start("b", T)
    settle(world)
    idle.leave()

    world.turn()

    record = world.snapshot().rebalance
    assert record is not None
    assert record.generation == world.state.generation
    assert (record.left, record.finished_ms is not None) == ((f"b/{'0' * 8}",), True)


def test_idle_member_gets_one_empty_start() -> None:
    world = a_world(CooperativeRange, partitions=1)
    world.start("a", T)
    world.start("b", T)

    settle(world)

    assert world.channels()["b"].generation == world.state.generation
    assert running(world) == {"a": [0], "b": []}


# ---- size limit


def test_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    world = a_world(max_size=2)
    for name in "bc":
        world.start(name, T)
    settle(world)
    world.start("a", T)

    run_turns(world, 1)

    error, reason = ended(world, "a")
    assert error == GROUP_MAX_SIZE_REACHED
    assert "2 members" in reason
    assert running(world) == {"b": [0, 1], "c": [2, 3]}


def test_smaller_limit_removes_the_last_joined_members_and_waits_for_their_lease() -> None:
    world = a_world()
    last = [world.start(name, T) for name in "bca"][-1]
    settle(world)
    world.rules = GroupRules(max_size=2)
    world.elect()

    world.turn()

    assert ended(world, "a")[0] == GROUP_MAX_SIZE_REACHED
    assert [mark.consumer for mark in world.state.marks] == ["a"]
    last.expire()
    settle(world)
    assert running(world) == {"b": [0, 1], "c": [2, 3]}


# ---- static members


def two_static(partitions: int = 4) -> tuple[GroupWorld, MemberProcess, MemberProcess]:
    world = a_world(partitions=partitions)
    processes = [world.start(name, T, is_static=True) for name in "ab"]
    settle(world)
    return world, processes[0], processes[1]


def test_restarted_static_member_gets_its_partitions_back_without_a_rebalance() -> None:
    world, first, second = two_static()
    generation, command = world.state.generation, world.channels()["b"].command
    first.leave()
    run_turns(world)
    assert running(world) == {"b": [2, 3]}
    assert world.state.state == STABLE

    world.start("a", T, is_static=True)
    run_turns(world)

    assert running(world) == {"a": [0, 1], "b": [2, 3]}
    assert world.state.generation == generation
    assert world.channels()["b"].command == command
    assert second.stopped == []
    assert world.state.state == STABLE


def test_fenced_static_member_hands_all_partitions_to_the_newer_process() -> None:
    world, first, second = two_static()
    generation = world.state.generation

    world.start("a", T, is_static=True)
    first.tend()
    run_turns(world)

    assert first.gone
    assert running(world) == {"a": [0, 1], "b": [2, 3]}
    assert (world.state.generation, second.stopped) == (generation, [])


def test_a_seat_is_kept_for_a_session_timeout_and_no_longer() -> None:
    world, first, _ = two_static()
    first.leave()
    world.turn()

    world.tick(SESSION_S - 0.1)
    world.turn()
    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    world.tick(0.1)
    settle(world)

    assert world.tree.children(PATHS.seats) == ["b"]
    assert running(world) == {"b": [0, 1, 2, 3]}


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


def test_static_member_whose_session_ends_loses_its_seat() -> None:
    world, first, _ = two_static()
    first.expire()

    settle(world)

    assert world.tree.children(PATHS.seats) == ["b"]
    assert ended(world, "a") == (UNKNOWN_MEMBER_ID, "its session ended")
    assert running(world) == {"b": [0, 1, 2, 3]}


def test_reclaimed_seat_survives_a_turn_that_saw_it_empty() -> None:
    world, first, _ = two_static()
    first.leave()
    world.turn()
    world.tick(SESSION_S)
    requests = [0]

    def come_back(world: GroupWorld) -> None:
        requests[0] += 1
        if requests[0] == 12:  # between the turn's reads and its commit
            world.start("a", T, is_static=True)

    world.meddle = come_back
    world.turn()
    world.meddle = lambda world: None
    assert requests[0] >= 12
    settle(world)

    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


def test_manual_removal_of_a_seat_takes_it_from_its_member() -> None:
    world, _, _ = two_static()
    path = PATHS.seat("a")
    seat = Seat.parse(path, world.tree.data(path) or b"")
    world.tree.commit([SetData(path, replace(seat, removed="asked for by an operator").to_bytes())], 0)

    world.turn()

    assert ended(world, "a") == (UNKNOWN_MEMBER_ID, "removed: asked for by an operator")
    assert world.tree.children(PATHS.seats) == ["b"]
    assert [mark.consumer for mark in world.state.marks] == ["a"]  # its fetchers may run until its lease is over


def test_group_with_only_absent_static_members_is_not_empty() -> None:
    world, first, second = two_static()
    first.leave()
    second.leave()
    run_turns(world)
    assert world.state.state == STABLE

    world.tick(SESSION_S)
    settle(world)

    assert world.state.state == EMPTY
    assert world.tree.children(PATHS.seats) == []


def test_static_member_returning_with_another_subscription_makes_a_generation() -> None:
    world, first, _ = two_static()
    world.topic("u", 1)
    generation = world.state.generation
    first.leave()
    world.start("a", {"t": 1, "u": 1}, is_static=True)

    settle(world)

    assert world.state.generation == generation + 1
    assert running(world) == {"a": [0, 0, 1], "b": [2, 3]}


def test_dynamic_member_with_the_name_of_a_static_one_removes_its_seat() -> None:
    world, first, _ = two_static()
    first.leave()
    world.start("a", T)

    settle(world)

    assert world.tree.children(PATHS.seats) == ["b"]
    assert running(world) == {"a": [2, 3], "b": [0, 1]}, "static members are first in order"


def test_a_static_member_that_hangs_is_evicted_and_loses_its_seat() -> None:
    world, first, _ = two_static()
    first.stuck = True
    for _ in range(MAX_POLL_MS // 500 + 1):
        world.wait(1)
        world.turn()

    settle(world)

    assert world.tree.children(PATHS.seats) == ["b"]
    assert ended(world, "a")[0] == UNKNOWN_MEMBER_ID


def test_a_static_member_that_restarts_keeps_its_place_in_a_full_group() -> None:
    world = a_world(max_size=2)
    world.start("a", T)
    static = world.start("s", T, is_static=True)
    settle(world)
    before = running(world)
    static.leave()
    late = world.start("x", T)
    world.start("s", T, is_static=True)

    run_turns(world)
    late.expire()
    settle(world)

    assert ended(world, "x")[0] == GROUP_MAX_SIZE_REACHED
    assert running(world) == before


@pytest.mark.parametrize("nth", range(1, 16))
def test_turn_during_a_restart_of_a_static_member_keeps_its_partitions(nth: int) -> None:
    world, first, second = two_static()
    generation = world.state.generation
    first.leave()
    world.turn()
    act_at(world, nth, lambda: world.start("a", T, is_static=True))
    world.turn()
    world.meddle = lambda world: None

    run_turns(world)

    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert (world.state.generation, second.stopped) == (generation, [])
    assert "b" in running(world)


def test_seat_without_partitions_triggers_no_generation() -> None:
    """As left by a coordinator of an earlier release without seats."""
    world, _, second = two_static()
    generation = world.state.generation
    data = world.tree.data(PATHS.seat("a")) or b""
    world.tree.put(PATHS.seat("z"), data)

    run_turns(world)

    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert (world.state.generation, second.stopped) == (generation, [])


# ---- a group's start


def act_at(world: GroupWorld, nth: int, act: Callable[[], object]) -> None:
    """Runs an action before the nth request from now."""
    requests = [0]

    def meddle(world: GroupWorld) -> None:
        requests[0] += 1
        if requests[0] == nth:
            act()

    world.meddle = meddle


@pytest.mark.parametrize("nth", range(1, 16))
def test_static_member_registering_during_a_turn_does_not_end_the_initial_delay(nth: int) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    world.turn()
    act_at(world, nth, lambda: world.start("s", T, is_static=True))
    world.turn()
    world.meddle = lambda world: None

    world.turn()

    assert (world.state.generation, world.state.state) == (0, PREPARING)


def test_a_static_member_that_leaves_while_a_group_forms_has_no_part_in_it() -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("s", T, is_static=True).leave()
    world.start("a", T)

    world.turn()

    assert (world.state.generation, world.state.state) == (0, PREPARING)
    assert world.tree.children(PATHS.seats) == []


def test_empty_group_waits_until_no_member_has_joined_for_the_initial_delay() -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    assert world.turn().again_s == pytest.approx(0.5)
    assert world.state.state == PREPARING
    world.tick(0.4)
    world.start("b", T)
    world.turn()

    world.tick(0.4)
    assert world.turn().again_s == pytest.approx(0.1)
    assert world.state.generation == 0
    world.tick(0.1)
    settle(world)

    assert world.state.generation == 1
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


def test_group_starts_as_soon_as_all_slots_of_its_pools_have_joined() -> None:
    world = a_world(initial_delay_s=0.5)
    for name in ("other", "p-slot-0", "q-slot-0"):
        world.start(name, T)
    world.tree.put(PATHS.pools, b"")
    for pool, slots in (("p", 2), ("q", 1), ("stopped", 0)):
        world.tree.put(PATHS.pool(pool), Pool(slots, "run").to_bytes())
    world.turn()
    assert world.state.generation == 0

    world.start("p-slot-1", T)
    world.turn()

    assert (world.state.generation, len(world.state.target)) == (1, 4)


@pytest.mark.parametrize("data", [Pool(0, "run").to_bytes(), Pool(10_000, "run").to_bytes(), b"nonsense"])
def test_pool_without_slots_to_wait_for_does_not_end_the_initial_delay(data: bytes) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("p-slot-0", T)
    world.tree.put(PATHS.pools, b"")
    world.tree.put(PATHS.pool("p"), data)

    world.turn()

    assert world.state.generation == 0


def test_group_with_continuous_joins_starts_after_three_delays() -> None:
    world = a_world(initial_delay_s=0.5)
    for number in range(15):
        world.start(f"c{number}", T)
        world.turn()
        assert world.state.generation == 0
        world.tick(0.1)

    world.turn()

    assert world.state.generation == 1


def test_member_joining_a_running_group_does_not_wait() -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    world.turn()
    world.tick(0.5)
    settle(world)
    world.start("b", T)

    world.turn()

    assert world.state.generation == 2


def test_running_group_with_a_lost_state_does_not_wait() -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    world.turn()
    world.tick(0.5)
    settle(world)
    world.tree.put(PATHS.state, b"nonsense")
    world.elect()

    world.turn()

    assert world.state.state != PREPARING or not world.state.reason
    assert world.state.target


def test_a_command_of_an_earlier_epoch_is_withdrawn_while_a_group_forms() -> None:
    world = a_world(initial_delay_s=0.5)
    first = world.start("a", T)
    world.turn()
    world.tick(0.5)
    world.turn()
    assert [command for command in world.tree.children(PATHS.channel("a"))]
    first.expire()
    world.elect()
    world.start("b", T)

    settle(world)

    assert running(world) == {"b": [0, 1, 2, 3]}
    assert world.channels()["a"].generation == 0, "the one command that it had was never applied"
    assert world.tree.children(PATHS.channel("a")) == []

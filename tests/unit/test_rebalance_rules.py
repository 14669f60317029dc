"""Isolation of one member's fault from the rest of its group. Real turns, on a tree without time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from coordinator.assignors import RangeAssignor
from coordinator.zk.errors import ConnectionLost, OutcomeUnknown
from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.group_state import COMPLETING, STABLE
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import (
    Channel,
    OffsetRecord,
    Registration,
)
from tests.property.group_world import MAX_POLL_MS, PATHS, GroupWorld, MemberProcess
from tests.property.test_convergence import assert_everything_is_assigned, settle
from tests.property.tree import MemoryTreeStore

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


SEAT_IS_OVER_S = 3.1
"""A session timeout of this world, and a little more."""


def a_world(partitions: int = 4) -> GroupWorld:
    world = GroupWorld(RangeAssignor())
    world.topic("t", partitions)
    return world


def run_turns(world: GroupWorld, seconds: float = 5.0) -> None:
    """Due turns, with polls of every healthy member."""
    for _ in range(round(seconds / 0.1)):
        world.turn()
        for process in list(world.processes):
            process.tend()
        world.tick(0.1)


def running(world: GroupWorld, name: str) -> set[TopicPartition]:
    return set(world.channels()[name].running)


def act_between(world: GroupWorld, requests: int, act: Callable[[], object]) -> Callable[[], bool]:
    """Has `act` called after so many requests from now; returns whether it was."""
    left = [requests]

    def meddle(world: GroupWorld) -> None:
        left[0] -= 1
        if left[0] == 0:
            act()

    world.meddle = meddle
    return lambda: left[0] <= 0


def assert_seat_is_kept(world: GroupWorld, requests: int) -> None:
    """For half of its time, from now."""
    world.turn()
    world.tick(0.5 * SEAT_IS_OVER_S)
    world.turn()
    assert world.tree.children(PATHS.seats) == ["b"], requests


def starts(world: GroupWorld, name: str, is_static: bool = True) -> Callable[[], object]:
    return lambda: world.start(name, {"t": 1}, is_static=is_static)


# ---- one member's fault (L3)


def test_unreadable_registration_delays_only_partitions_of_its_member() -> None:
    world = a_world()
    world.start("a", {"t": 1})
    world.start("b", {"t": 1})
    settle(world)
    world.tree.commit([SetData(PATHS.id("a"), b"{")], 0)
    world.topic("t", 5)

    run_turns(world)

    assert world.state.left_out["a"] == "its registration cannot be read"
    held = running(world, "a")
    assert held
    assert running(world, "b") == {TopicPartition("t", number) for number in range(5)} - held


def test_orphaned_owner_znode_delays_only_its_partition() -> None:
    world = a_world()
    world.tree.ensure(PATHS.owners_of("t"))
    world.tree.commit([Create(PATHS.owner("t", 2), b"{}")], 0)
    world.start("a", {"t": 1})

    run_turns(world)

    assert running(world, "a") == {TopicPartition("t", number) for number in (0, 1, 3)}
    assert world.state.state == COMPLETING
    assert world.state.reason == "a waits for t-2 to become free"


def test_partition_blocked_by_an_owner_znode_starts_after_its_removal() -> None:
    world = a_world()
    world.tree.ensure(PATHS.owners_of("t"))
    world.tree.commit([Create(PATHS.owner("t", 2), b"{}")], 0)
    world.start("a", {"t": 1})
    run_turns(world)
    world.tree.commit([Delete(PATHS.owner("t", 2))], 0)

    settle(world)

    assert_everything_is_assigned(world)


def test_partition_under_an_eager_strategy_waits_only_for_its_own_owner() -> None:
    world = a_world()
    a = world.start("a", {"t": 1})
    world.start("b", {"t": 1})
    settle(world)
    a.deaf = True
    world.start("c", {"t": 1})

    run_turns(world, 2.0)

    assert running(world, "a") == {T0, T1}, "its stop is outstanding"
    assert running(world, "b") == {T2}
    assert running(world, "c") == {TopicPartition("t", 3)}


def test_unreadable_channel_leaves_only_its_member_out() -> None:
    world = a_world()
    world.start("a", {"t": 1}).deaf = True
    world.tree.put(PATHS.channel("a"), b"[")
    world.start("b", {"t": 1})

    run_turns(world, 2.0)

    assert world.state.left_out["a"] == "its channel is missing or cannot be read"
    assert len(running(world, "b")) == 4


def test_consumer_with_an_overwritten_channel_returns_and_the_group_is_whole_again() -> None:
    world = a_world()
    world.start("a", {"t": 1})
    world.start("b", {"t": 1})
    settle(world)
    world.tree.commit([SetData(PATHS.channel("a"), b"nonsense")], 0)
    world.excuse_offsets()

    settle(world)

    assert world.state.state == STABLE
    assert running(world, "a") | running(world, "b") == {TopicPartition("t", number) for number in range(4)}


def test_stuck_consumer_delays_only_its_partitions_for_its_rebalance_timeout() -> None:
    world = a_world(6)
    stuck = world.start("a", {"t": 1})
    world.start("b", {"t": 1})
    settle(world)
    stuck.stuck = True
    world.start("c", {"t": 1})

    run_turns(world, 1.5)

    assert running(world, "a") == {T0, T1, T2}
    free = {TopicPartition("t", number) for number in (3, 4, 5)}
    assert running(world, "b") | running(world, "c") == free
    settle(world)
    assert_everything_is_assigned(world)


@pytest.mark.parametrize("runs_something", [True, False])
def test_churn_does_not_postpone_the_eviction_of_an_unresponsive_consumer(runs_something: bool) -> None:
    world = a_world(6)
    silent = world.start("a", {"t": 1})
    if runs_something:
        settle(world)

    for number in range(3 * MAX_POLL_MS // 500):  # it touches its channel, and applies no command
        world.topic("t", 7 + number % 2)
        world.turn()
        world.tick(0.5)
        channel = world.channels()["a"]
        if channel.is_live:
            touched = replace(channel, touched=channel.touched + 1)
            world.tree.commit([SetData(PATHS.channel("a"), touched.to_bytes())], 0)

    assert silent.fenced is None or silent.fenced.over is not None
    assert "evicted: it carried out no command" in (world.channels()["a"].ended or "")


def test_member_that_has_stopped_has_the_whole_time_to_start_after_a_lost_reply() -> None:
    world = a_world()
    slow = world.start("a", {"t": 1})
    settle(world)
    other = world.start("b", {"t": 1})

    checks = world.tree.after_commit

    def lose_the_reply(operations: object) -> None:
        world.tree.after_commit = checks
        raise OutcomeUnknown("the reply was lost")

    world.tree.after_commit = lose_the_reply
    world.turn()
    for seconds in (0.9 * MAX_POLL_MS / 1000, 0.2 * MAX_POLL_MS / 1000):
        world.tick(seconds)
        other.tend()
        world.turn()
        assert world.channels()["a"].is_live
        slow.tend()
        world.turn()

    assert slow.stopped == [frozenset({T0, T1, T2, TopicPartition("t", 3)})] and running(world, "a") == {T0, T1}


# ---- a member that says it runs what it does not


class LiedTo(GroupWorld):
    """A group whose channels may say the same."""

    def __init__(self) -> None:
        super().__init__(RangeAssignor())
        self.topic("t", 4)

    def check(self) -> None:
        """Nothing."""


def says_it_runs(world: GroupWorld, *numbers: int) -> MemoryTreeStore:
    """A member of topic `u` says that it runs partitions of `t`, at offset 90; its session."""
    store, channel = world.tree.open(), PATHS.channel("z")
    world.tree.ensure(channel)
    said = Channel("z1", running={TopicPartition("t", number): 90 for number in numbers}, topics={"t": "t-1"})
    registered = Registration("z1", {"u": 1}, lease_ms=500, max_poll_interval_ms=MAX_POLL_MS)
    store.commit([SetData(channel, said.to_bytes()), Create(PATHS.id("z"), registered.to_bytes(), ephemeral=True)])
    return store


def written(world: GroupWorld, number: int) -> int | None:
    data = world.tree.data(PATHS.offset("t", number))
    return OffsetRecord.parse("", data).offset if data is not None else None


def test_end_moves_no_offset_and_removes_no_owner_of_what_another_runs() -> None:
    world = LiedTo()
    world.start("a", {"t": 1})
    settle(world)
    owners, before = world.owners(), [written(world, number) for number in range(4)]
    said = says_it_runs(world, 0, 1)

    said.close()
    world.turn()

    assert world.channels()["z"].ended is not None
    assert world.owners() == owners
    assert [written(world, number) for number in range(4)] == before


def test_progress_of_a_member_is_written_although_another_claims_the_same() -> None:
    world = LiedTo()
    member = world.start("a", {"t": 1})
    settle(world)
    member.tend()
    assert member.fenced is not None
    at = {part.partition: offset for part, offset in member.fenced.channel.running.items()}
    said = says_it_runs(world, 0, 1)

    member.expire()
    said.close()
    world.turn()

    assert {number: written(world, number) for number in range(4)} == at


def test_end_makes_no_offset_znode_and_no_mark_for_partitions_that_do_not_exist() -> None:
    world = LiedTo()
    world.start("a", {"t": 1})
    settle(world)
    says_it_runs(world, *range(4, 400))

    world.turn()
    world.wait(MAX_POLL_MS / 1000 + 1)
    world.turn()

    assert "evicted" in (world.channels()["z"].ended or "")
    assert world.channels()["z"].running == {}
    assert not any(mark.partitions - world.owners() for mark in world.state.marks if mark.consumer == "z")
    assert written(world, 4) is None


# ---- reads at slightly different times


@pytest.mark.long
def test_session_ending_between_the_reads_of_ids_and_owners_adds_no_generation() -> None:
    for requests in range(1, 40):
        world = a_world()
        world.start("a", {"t": 1})
        dying = world.start("b", {"t": 1})
        settle(world)
        before = world.state.generation
        act_between(world, requests, dying.expire)
        world.turn()
        world.meddle = lambda world: None
        dying.expire()

        settle(world)

        assert world.state.generation == before + 1


@pytest.mark.long
def test_static_member_returning_between_reads_is_stable_only_with_its_partitions() -> None:
    for requests in range(1, 40):
        world = a_world()
        world.start("a", {"t": 1})
        first_life = world.start("b", {"t": 1}, is_static=True)
        settle(world)
        first_life.leave()
        act_between(world, requests, starts(world, "b"))
        world.turn()

        state, channel = world.state, world.channels()["b"]
        is_told_of = state.target["b"].incarnation == channel.incarnation
        if channel.is_live and is_told_of and state.state == STABLE:
            assert channel.running.keys() == state.target["b"].partitions, requests


@pytest.mark.long
def test_static_member_joining_between_the_reads_of_ids_and_seats_keeps_its_seat() -> None:
    for requests in range(1, 40):
        world = a_world()
        world.start("a", {"t": 1})
        settle(world)
        has_come = act_between(world, requests, starts(world, "b"))
        world.turn()
        world.meddle = lambda world: None
        settle(world)

        if has_come():
            assert world.tree.children(PATHS.seats) == ["b"], requests


@pytest.mark.long
@pytest.mark.parametrize("later", range(8, 24, 2))
def test_seat_of_a_member_that_comes_and_leaves_during_a_turn_is_kept_in_full(later: int) -> None:
    for requests in range(1, 14):
        world = a_world()
        world.start("a", {"t": 1})
        world.start("b", {"t": 1}, is_static=True)
        settle(world)
        lives: list[MemberProcess] = []

        def leave(world: GroupWorld, lives: list[MemberProcess] = lives) -> None:
            world.tick(0.9 * SEAT_IS_OVER_S)
            lives[0].leave()

        def come(requests: int = requests, world: GroupWorld = world, lives: list[MemberProcess] = lives) -> None:
            lives.append(world.start("b", {"t": 1}, is_static=True))
            act_between(world, later, lambda: leave(world))

        act_between(world, requests, come)
        world.turn()
        world.meddle = lambda world: None
        assert_seat_is_kept(world, requests)


@pytest.mark.long
@pytest.mark.parametrize("later", range(2, 6))
def test_seat_of_a_member_that_comes_in_a_turn_and_leaves_after_it_is_kept_in_full(later: int) -> None:
    for requests in range(1, 14):
        world = a_world()
        world.start("a", {"t": 1})
        first_life = world.start("b", {"t": 1}, is_static=True)
        settle(world)
        first_life.leave()
        world.turn()
        lives: list[MemberProcess] = []

        def fail() -> None:
            raise ConnectionLost("its connection is slow")

        def come(world: GroupWorld = world, lives: list[MemberProcess] = lives) -> None:
            lives.append(world.start("b", {"t": 1}, is_static=True))
            act_between(world, later, fail)

        act_between(world, requests, come)
        with suppress(ConnectionLost):
            world.turn()
        world.meddle = lambda world: None
        world.tick(0.9 * SEAT_IS_OVER_S)
        for life in lives:
            life.leave()
        assert_seat_is_kept(world, requests)


@pytest.mark.long
def test_static_member_joining_between_decision_and_commit_keeps_its_seat() -> None:
    """Also when it recreates the seat, which then has the version of the old one that was read."""
    for requests in range(1, 40):
        world = a_world()
        world.start("a", {"t": 1})
        first_life = world.start("b", {"t": 1}, is_static=True)
        settle(world)
        first_life.leave()
        world.turn()
        world.tick(SEAT_IS_OVER_S)
        plainly, on_a_seat = starts(world, "b", is_static=False), starts(world, "b")
        has_come = act_between(world, requests, lambda both=(plainly, on_a_seat): [start() for start in both])  # type: ignore[misc]
        world.turn()
        world.meddle = lambda world: None
        settle(world)

        if has_come():
            assert world.tree.children(PATHS.seats) == ["b"], requests


@pytest.mark.parametrize("every", [3, 12])
def test_unreadable_static_member_that_writes_constantly_delays_no_other_member(every: int) -> None:
    world = a_world()
    world.start("a", {"t": 1})
    unread = world.start("b", {"t": 1}, is_static=True)
    settle(world)
    world.tree.commit([SetData(PATHS.id("b"), b"{")], 0)
    asked = [0]

    def write(world: GroupWorld) -> None:
        asked[0] += 1
        if asked[0] % every == 0:
            unread.tend()

    world.meddle = write
    world.start("c", {"t": 1})
    world.topic("t", 6)

    run_turns(world)

    assert running(world, "c")

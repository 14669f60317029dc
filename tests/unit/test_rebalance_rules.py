"""Isolation of one member's fault from the rest of its group: what its clocks and the order of reads matter for.

Real turns, on a tree without time. What one turn decides of such a member is in `turns/isolation.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.property.group_world import MAX_POLL_MS, PATHS, GroupWorld, MemberProcess, act_between
from tests.property.test_convergence import assert_everything_is_assigned, settle
from tests.property.tree import MemoryTreeStore
from zk_group.coordinator.assignors import RangeAssignor
from zk_group.coordinator.rebalance.rebalancer import PARTITIONS_A_STEP
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown
from zk_group.coordinator.zk.store import Create, SetData
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord, Registration

SEAT_IS_OVER_S = 3.1
"""A session timeout of this world, and a little more."""


def a_world(members: str, make: type[GroupWorld] = GroupWorld, partitions: int = 4) -> GroupWorld:
    """A settled group of members `a`, `b`; or `B`, on a seat."""
    world = make(RangeAssignor())
    world.topic("t", partitions)
    for name in members:
        starts(world, name.lower(), is_static=name.isupper())()
    if members:
        settle(world)
    return world


def starts(world: GroupWorld, name: str, is_static: bool = True) -> Callable[[], MemberProcess]:
    return lambda: world.start(name, {"t": 1}, is_static=is_static)


def swept(members: str, requests: Iterable[int] = range(1, 40)) -> Iterator[tuple[int, GroupWorld]]:
    """A group for each number of requests after which something is to happen in a turn."""
    return ((number, a_world(members)) for number in requests)


def run_turns(world: GroupWorld, seconds: float = 5.0) -> None:
    """Due turns, with polls of every healthy member."""
    for _ in range(round(seconds / 0.1)):
        world.turn()
        for process in list(world.processes):
            process.tend()
        world.tick(0.1)


def running(world: GroupWorld, name: str) -> set[int]:
    return {part.partition for part in world.channels()[name].running}


def turn_amid_changes(world: GroupWorld) -> None:
    """A turn, and no change after it."""
    with suppress(ConnectionLost):
        world.turn()
    world.meddle = lambda world: None


def assert_seat_is_kept(world: GroupWorld, requests: int) -> None:
    """For half of its time, from now."""
    world.turn()
    world.tick(0.5 * SEAT_IS_OVER_S)
    world.turn()
    assert world.tree.children(PATHS.seats) == ["b"], requests


# ---- one member's fault (L3)


def test_consumer_with_an_overwritten_channel_returns_and_the_group_is_whole_again() -> None:
    world = a_world("ab")
    world.tree.commit([SetData(PATHS.channel("a"), b"nonsense")], 0)
    world.excuse_offsets()

    settle(world)

    assert world.state.state == STABLE
    assert running(world, "a") | running(world, "b") == {0, 1, 2, 3}


@pytest.mark.parametrize("runs_something", [True, False])
def test_churn_does_not_postpone_the_eviction_of_an_unresponsive_consumer(runs_something: bool) -> None:
    world = a_world("a" if runs_something else "", partitions=6)
    silent = world.processes[0] if runs_something else starts(world, "a", is_static=False)()

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
    world = a_world("a")
    slow = world.processes[0]
    other = starts(world, "b", is_static=False)()

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

    assert [{part.partition for part in some} for some in slow.stopped] == [{0, 1, 2, 3}]
    assert running(world, "a") == {0, 1}


# ---- a member that says it runs what it does not


class LiedTo(GroupWorld):
    """A group whose channels may say the same."""

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
    world = a_world("a", LiedTo)
    owners, before = world.owners(), [written(world, number) for number in range(4)]
    said = says_it_runs(world, 0, 1)

    said.close()
    world.turn()

    assert world.channels()["z"].ended is not None
    assert world.owners() == owners
    assert [written(world, number) for number in range(4)] == before


def test_progress_of_a_member_is_written_although_another_claims_the_same() -> None:
    world = a_world("a", LiedTo)
    member = world.processes[0]
    member.tend()
    assert member.fenced is not None
    at = {part.partition: offset for part, offset in member.fenced.channel.running.items()}
    said = says_it_runs(world, 0, 1)

    member.expire()
    said.close()
    world.turn()

    assert {number: written(world, number) for number in range(4)} == at


def test_end_makes_no_offset_znode_and_no_mark_for_partitions_that_do_not_exist() -> None:
    world = a_world("a", LiedTo)
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
    for requests, world in swept("ab"):
        before, dying = world.state.generation, world.processes[-1]
        act_between(world, requests, dying.expire)
        turn_amid_changes(world)
        dying.expire()

        settle(world)

        assert world.state.generation == before + 1


@pytest.mark.long
def test_static_member_returning_between_reads_is_stable_only_with_its_partitions() -> None:
    for requests, world in swept("aB"):
        world.processes[-1].leave()
        act_between(world, requests, starts(world, "b"))
        world.turn()

        state, channel = world.state, world.channels()["b"]
        is_told_of = state.target["b"].incarnation == channel.incarnation
        if channel.is_live and is_told_of and state.state == STABLE:
            assert channel.running.keys() == state.target["b"].partitions, requests


@pytest.mark.long
@pytest.mark.parametrize("returns", [False, True], ids=["a new one", "one whose seat is over"])
def test_static_member_joining_during_a_turn_keeps_its_seat(returns: bool) -> None:
    """Also when it recreates the seat, which then has the version of the old one that was read."""
    for requests, world in swept("aB" if returns else "a"):
        if returns:
            world.processes[-1].leave()
            world.turn()
            world.tick(SEAT_IS_OVER_S)
        come = [starts(world, "b", is_static) for is_static in ((False, True) if returns else (True,))]
        has_come = act_between(world, requests, lambda come=come: [start() for start in come])  # type: ignore[misc]
        turn_amid_changes(world)
        settle(world)

        if has_come():
            assert world.tree.children(PATHS.seats) == ["b"], requests


@pytest.mark.long
@pytest.mark.parametrize("later", range(8, 24, 2))
def test_seat_of_a_member_that_comes_and_leaves_during_a_turn_is_kept_in_full(later: int) -> None:
    def come(world: GroupWorld) -> None:
        life = starts(world, "b")()

        def leave() -> None:
            world.tick(0.9 * SEAT_IS_OVER_S)
            life.leave()

        act_between(world, later, leave)

    for requests, world in swept("aB", range(1, 14)):
        act_between(world, requests, lambda world=world: come(world))  # type: ignore[misc]
        turn_amid_changes(world)
        assert_seat_is_kept(world, requests)


@pytest.mark.long
@pytest.mark.parametrize("later", range(2, 6))
def test_seat_of_a_member_that_comes_in_a_turn_and_leaves_after_it_is_kept_in_full(later: int) -> None:
    def fail() -> None:
        raise ConnectionLost("its connection is slow")

    def come(world: GroupWorld) -> None:
        starts(world, "b")()
        act_between(world, later, fail)

    for requests, world in swept("aB", range(1, 14)):
        world.processes[-1].leave()
        world.turn()
        act_between(world, requests, lambda world=world: come(world))  # type: ignore[misc]
        turn_amid_changes(world)
        world.tick(0.9 * SEAT_IS_OVER_S)
        for life in world.processes[2:]:
            life.leave()
        assert_seat_is_kept(world, requests)


@pytest.mark.parametrize("every", [3, 12])
def test_unreadable_static_member_that_writes_constantly_delays_no_other_member(every: int) -> None:
    world = a_world("aB")
    unread = world.processes[-1]
    world.tree.commit([SetData(PATHS.id("b"), b"{")], 0)
    asked = [0]

    def write(world: GroupWorld) -> None:
        asked[0] += 1
        if asked[0] % every == 0:
            unread.tend()

    world.meddle = write
    starts(world, "c", is_static=False)()
    world.topic("t", 6)

    run_turns(world)

    assert running(world, "c")


# ---- partitions that do not fit into one multi: the next process resumes what was interrupted
# The tree refuses a multi of over 400 operations or 512 kB, and checks after each that no partition runs twice.


MANY = 2 * PARTITIONS_A_STEP + 30


@pytest.mark.parametrize(("name", "runs"), [("b", MANY // 2), ("a", MANY)], ids=["another", "its next incarnation"])
def test_consumer_passes_on_more_partitions_than_one_multi_holds(name: str, runs: int) -> None:
    world = a_world("a", partitions=MANY)
    world.start(name, {"t": 1})

    settle(world)

    assert_everything_is_assigned(world)
    assert len(world.channels()["a"].running) == runs
    first = world.processes[0]
    first.tend()
    assert first.gone == (name == "a")


def test_dead_consumer_with_more_partitions_than_one_multi_is_ended_in_one_turn() -> None:
    world = a_world("a", partitions=MANY)
    world.processes[0].expire()

    world.turn()

    assert (world.channels()["a"].is_live, dict(world.channels()["a"].running)) == (False, {})


@pytest.mark.long
@pytest.mark.parametrize("before_the_last", range(5))
def test_coordinator_failing_over_amid_a_large_end_leaves_the_rest_to_the_next(before_the_last: int) -> None:
    tried, asked = a_world("a", partitions=MANY), list[int]()
    tried.processes[0].expire()
    tried.meddle = lambda world: asked.append(1)
    tried.turn()
    world = a_world("a", partitions=MANY)
    world.processes[0].expire()
    act_between(world, len(asked) - before_the_last, lambda: (world.elect(), world.turn()))
    world.turn()
    world.start("b", {"t": 1})

    settle(world)

    assert_everything_is_assigned(world)


@pytest.mark.long
def test_a_large_consumer_that_is_evicted_half_way_keeps_its_partitions_marked() -> None:
    world = a_world("a", partitions=MANY)
    world.processes[0].stuck = True
    world.tick(5.0)
    world.turn()
    world.start("b", {"t": 1})

    for _ in range(19):  # its lease still runs: it may be fetching, and `check` would see a second one
        world.tick(0.1)
        world.turn()
        world.processes[-1].tend()

    assert not world.channels()["b"].running
    settle(world)
    assert_everything_is_assigned(world)

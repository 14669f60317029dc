"""Isolation of one member's fault from the rest of its group. Real turns, on a tree without time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from coordinator.assignors import RangeAssignor
from coordinator.planning.plan import HISTORY_KEPT, plan
from coordinator.planning.snapshot import ChannelView, Member, SentCommand, Snapshot
from coordinator.zk.errors import ConnectionLost
from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.group_state import COMPLETING, STABLE, GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    OffsetRecord,
    Registration,
    Topic,
)
from tests.property.group_world import MAX_POLL_MS, PATHS, GroupWorld, MemberProcess
from tests.property.test_convergence import CooperativeRange, assert_everything_is_assigned, settle
from tests.property.tree import MemoryTreeStore
from tests.support.strategies import RANGE, only

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


# ---- one decision at a time


def snapshot(views: Sequence[ChannelView], state: GroupState, **fields: object) -> Snapshot:
    registration = Registration("", {"t": 1}, protocols=("range", "cooperative-range"), lease_ms=2000)
    members = {
        each.consumer: Member(each.consumer, 1, replace(registration, incarnation=f"{each.consumer}1"))
        for each in views
    }
    known: dict[str, object] = {
        "members": members,
        "topics": {"t": Topic("t", "t-1", (0, 1))},
        "owners": frozenset(part for each in views for part in each.running),
        **fields,
    }
    return Snapshot("g", 5, state, 1, {each.consumer: each for each in views}, **known)  # type: ignore[arg-type]


def test_a_record_of_history_that_is_written_again_is_not_removed_in_the_same_multi() -> None:
    lost = GroupState()  # the state was removed manually, its history was not
    history = tuple(range(1, HISTORY_KEPT + 2))

    decided = plan(snapshot([ChannelView("a", 1, Channel("a1"))], lost, history=history), RANGE)

    assert decided.rebalance is not None
    assert decided.rebalance.generation == 1
    assert decided.forgotten == (2,)


def test_eviction_names_the_option_to_change() -> None:
    view = ChannelView("a", 1, Channel("a1", running={T0: 1}, topics={"t": "t-1"}), idle_s=300.0)

    decided = plan(snapshot([view], GroupState()), RANGE)

    (end,) = decided.ends
    assert end.evicted
    assert end.reason == (
        "evicted: it gave no sign of life for 300000 ms "
        "(its process hangs, or max_poll_interval_ms is too short for it)"
    )
    assert decided.state.left_out == {"a": end.reason}
    assert decided.state.marks == (Mark("a", "a1", frozenset([T0]), 2000, end.reason, 0),)


@pytest.mark.parametrize("age_s", [0.0, 1.9])
def test_partitions_marked_by_an_eviction_wait_for_the_lease(age_s: float) -> None:
    mark = Mark("x", "x1", frozenset([T0]), 2000, "evicted")
    seen = snapshot([ChannelView("a", 1, Channel("a1"))], GroupState(marks=(mark,)), mark_age_s={("x", "x1"): age_s})

    decided = plan(seen, RANGE)

    ((_, command),) = decided.starts
    assert command.started == {T1}
    assert decided.state.marks == (mark,)
    assert decided.again_s == pytest.approx(min(2.0 - age_s, 1.0))


def test_partitions_marked_by_an_eviction_are_free_after_the_lease() -> None:
    mark = Mark("x", "x1", frozenset([T0]), 2000, "evicted")
    seen = snapshot([ChannelView("a", 1, Channel("a1"))], GroupState(marks=(mark,)), mark_age_s={("x", "x1"): 2.0})

    decided = plan(seen, RANGE)

    ((_, command),) = decided.starts
    assert command.started == {T0, T1}
    assert decided.state.marks == ()


def test_the_mark_of_an_eviction_that_never_happened_is_dropped() -> None:
    """The state was written with the mark, and the multi that ends the incarnation was refused: it gave a sign."""
    mark = Mark("a", "a1", frozenset([T0]), 300_000, "evicted")
    view = ChannelView("a", 2, Channel("a1", running={T0: 1}, topics={"t": "t-1"}, touched=1))

    decided = plan(snapshot([view], GroupState(marks=(mark,))), RANGE)

    assert decided.state.marks == ()
    assert decided.ends == ()
    assert decided.state.target["a"].partitions == {T0, T1}


def test_mark_of_an_earlier_incarnation_than_the_live_one_is_kept() -> None:
    mark = Mark("a", "a0", frozenset([T0]), 2000, "evicted")

    decided = plan(
        snapshot([ChannelView("a", 1, Channel("a1"))], GroupState(marks=(mark,)), mark_age_s={("a", "a0"): 0.5}),
        RANGE,
    )

    assert decided.state.marks == (mark,)
    ((_, command),) = decided.starts
    assert command.started == {T1}


def test_valid_stop_is_kept_and_a_second_one_is_withdrawn() -> None:
    stop = Command(STOP_FETCHER, 5, 3, "a1", topics={"t": "t-1"})
    sent = (SentCommand("command-0000000001", stop), SentCommand("command-0000000002", stop))
    view = ChannelView("a", 1, Channel("a1", 5, 2, running={T0: 1}, topics={"t": "t-1"}), sent)
    target = {"a": Target("a1", {"a-0": frozenset([T0, T1])})}
    state = GroupState(generation=3, epoch=5, target=target, topics={"t": "t-1"})

    decided = plan(snapshot([view], state), RANGE)

    assert decided.withdrawn == (("a", sent[1]),)
    assert decided.stops == ()
    assert decided.starts == ()


def test_stop_applied_in_several_commits_is_kept_meanwhile() -> None:
    stop = Command(STOP_FETCHER, 5, 3, "a1", partitions=frozenset([T1, T2]), topics={"t": "t-1"})
    # Of T1 and T2, the second has been released by now.
    view = ChannelView(
        "a",
        2,
        Channel("a1", 5, 2, running={T0: 1, T1: 1}, topics={"t": "t-1"}),
        (SentCommand("command-0000000001", stop),),
    )
    other = ChannelView("b", 1, Channel("b1", 5, 3))
    target = {"a": Target("a1", {"a-0": frozenset([T0])}), "b": Target("b1", {"b-0": frozenset([T1])})}
    state = GroupState("PreparingRebalance", 3, 5, "cooperative-range", target, {"t": "t-1"})

    decided = plan(snapshot([view, other], state), only(CooperativeRange()))

    assert (decided.withdrawn, decided.stops, decided.is_new_generation) == ((), (), False)


def test_a_rebalance_that_a_dead_coordinator_had_finished_but_not_closed_is_closed() -> None:
    target = {"a": Target("a1", {"a-0": frozenset([T0, T1])})}
    state = GroupState("CompletingRebalance", 3, 4, "range", target, {"t": "t-1"})
    channel = Channel("a1", 4, 3, running={T0: 1, T1: 1}, topics={"t": "t-1"})
    record = Rebalance(3, 4, "joined a", 1, stopped_ms=2)
    seen = snapshot([ChannelView("a", 1, channel)], state, rebalance=record, history=(3,), now_ms=9)

    decided = plan(seen, RANGE)

    assert decided.state.state == STABLE
    assert decided.rebalance == replace(record, finished_ms=9)
    assert not decided.is_new_generation


def test_waiting_group_names_the_member_without_an_acknowledgement() -> None:
    command = Command(START_FETCHER, 5, 1, "a1")
    state = GroupState(state=COMPLETING, generation=1, epoch=5, strategy="range", target={"a": Target("a1", {})})
    waiting = ChannelView("a", 1, Channel("a1"), (SentCommand("command-0000000000", command, age_s=0.6),))

    decided = plan(snapshot([waiting], state, topics={}), RANGE)

    assert decided.state.reason == "a has not acknowledged its start-fetcher"

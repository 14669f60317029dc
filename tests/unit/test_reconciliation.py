"""KIP-848's reconciliation table (`testReconciliationProcess` in Kafka), step by step on real turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from coordinator.assignors import Assignment, Assignor, RangeAssignor, Subscriber
from coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from coordinator.planning.membership import membership
from coordinator.planning.reconciliation import Round, Step, moves
from coordinator.planning.target import wanted
from coordinator.zk.znodes.group_state import COMPLETING, PREPARING, STABLE
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.znodes.records import OwnerRecord
from tests.property.group_world import PATHS, GroupWorld, MemberProcess
from tests.property.test_convergence import settle

WANTS = {"foo": 1, "bar": 1}


def parts(text: str) -> PartitionSet:
    """`foo:0,1 bar:2` as partitions."""
    pairs = (each.split(":") for each in text.split())
    return frozenset(TopicPartition(topic, int(number)) for topic, numbers in pairs for number in numbers.split(","))


TABLE = {
    2: {"m1": parts("foo:0,1,2 bar:0,1"), "m2": parts("foo:3,4,5 bar:2")},
    3: {"m1": parts("foo:0,1 bar:0"), "m2": parts("foo:2,3 bar:2"), "m3": parts("foo:4,5 bar:1")},
}


class TableAssignor:
    """Assigns as in the table."""

    name = "table"
    is_eager = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        return {name: {f"{name}-0": found} for name, found in TABLE[len(subscribers)].items()}


def running(world: GroupWorld, name: str) -> PartitionSet:
    return frozenset(world.channels()[name].running)


def out(world: GroupWorld) -> dict[str, str]:
    """Consumer -> the command that it has not acknowledged."""
    commands = ((name, view.commands) for name, view in world.snapshot().channels.items())
    return {name: sent[0].command.option for name, sent in commands if sent and sent[0].command is not None}


def settled() -> tuple[GroupWorld, dict[str, MemberProcess]]:
    world = GroupWorld(TableAssignor())
    world.topic("foo", 6)
    world.topic("bar", 3)
    members = {name: world.start(name, WANTS) for name in ("m1", "m2")}
    world.turn()
    for member in members.values():
        member.tend()
    world.turn()
    assert (world.state.state, world.state.generation) == (STABLE, 1)
    return world, members


def test_joining_member_gets_each_partition_once_released_and_stops_no_other_member() -> None:
    world, members = settled()

    m3 = world.start("m3", WANTS)
    world.turn()
    assert (world.state.state, world.state.generation) == (PREPARING, 2)
    assert out(world) == {"m1": "stop-fetcher", "m2": "stop-fetcher"}
    m3.tend()
    assert running(world, "m3") == NONE, "unreleased"

    members["m1"].tend()
    world.turn()
    assert members["m1"].stopped == [parts("foo:2 bar:1")]
    assert running(world, "m1") == TABLE[3]["m1"]
    assert out(world) == {"m2": "stop-fetcher"}, "m1 runs its target, and gets no more commands"

    world.turn()
    assert running(world, "m2") == TABLE[2]["m2"], "without an acknowledgement nothing changes"
    world.tick(0.5)
    world.turn()
    m3.tend()
    assert running(world, "m3") == parts("bar:1"), "the free partitions, once the holder of the rest is late"

    members["m2"].tend()
    world.turn()
    assert members["m2"].stopped == [parts("foo:4,5")]
    assert out(world) == {"m2": "start-fetcher", "m3": "start-fetcher"}
    assert world.state.state == COMPLETING
    members["m2"].tend()
    world.turn()
    assert running(world, "m2") == TABLE[3]["m2"]
    assert world.state.state == COMPLETING, "until the last"
    m3.tend()
    world.turn()
    assert (world.state.state, world.state.generation) == (STABLE, 2)
    assert running(world, "m3") == TABLE[3]["m3"]


def described(step: Step) -> str:
    waits = "blocked" if step.blocked else "none"
    how = "due" if step.due is not None else "sent" if step.sent is not None else waits
    return f"{step.option.removesuffix('-fetcher')} {how}".strip()


def steps(world: GroupWorld, generation: int) -> dict[str, str]:
    """Consumer -> its step, as a turn in `generation` decides it."""
    snapshot = world.snapshot()
    members = membership(snapshot, world.assignors, world.rules)
    target = wanted(snapshot, members.everybody, TableAssignor())
    found = moves(Round(snapshot, members, target, generation, is_eager=False))
    return {name: described(step) for name, step in found.steps.items()}


def test_member_moves_step_by_step_from_its_running_partitions_to_its_target() -> None:
    world, members = settled()
    assert steps(world, 1) == {"m1": "none", "m2": "none"}

    m3 = world.start("m3", WANTS)
    assert steps(world, 2) == {"m1": "stop due", "m2": "stop due", "m3": "blocked"}

    world.turn()
    assert steps(world, 2) == {"m1": "stop sent", "m2": "stop sent", "m3": "blocked"}

    for member in members.values():
        member.tend()
    assert steps(world, 2) == {"m1": "none", "m2": "start due", "m3": "start due"}

    world.turn()
    m3.tend()
    assert steps(world, 2) == {"m1": "none", "m2": "start sent", "m3": "none"}


# ---- threads of one member


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

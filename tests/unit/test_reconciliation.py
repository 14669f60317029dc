"""KIP-848's reconciliation table (`testReconciliationProcess` in Kafka), step by step on real turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.assignors import Assignment, Subscriber
from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.state import COMPLETING, PREPARING, STABLE
from tests.property.group_world import Process, World

WANTS = {"foo": 1, "bar": 1}


def parts(text: str) -> PartitionSet:
    """`foo:0,1 bar:2` as partitions."""
    pairs = (each.split(":") for each in text.split())
    return frozenset(TopicPartition(topic, int(number)) for topic, numbers in pairs for number in numbers.split(","))


TABLE = {
    2: {"m1": parts("foo:0,1,2 bar:0,1"), "m2": parts("foo:3,4,5 bar:2")},
    3: {"m1": parts("foo:0,1 bar:0"), "m2": parts("foo:2,3 bar:2"), "m3": parts("foo:4,5 bar:1")},
}


class Told:
    """Assigns as the table says."""

    name = "told"
    is_eager = False

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        return {name: {f"{name}-0": found} for name, found in TABLE[len(subscribers)].items()}


def running(world: World, name: str) -> PartitionSet:
    return frozenset(world.channels()[name].running)


def out(world: World) -> dict[str, str]:
    """Consumer -> the command that it has not acknowledged."""
    commands = ((name, view.commands) for name, view in world.snapshot().channels.items())
    return {name: sent[0].command.option for name, sent in commands if sent and sent[0].command is not None}


def settled() -> tuple[World, dict[str, Process]]:
    world = World(Told())
    world.topic("foo", 6)
    world.topic("bar", 3)
    members = {name: world.start(name, WANTS) for name in ("m1", "m2")}
    world.turn()
    for member in members.values():
        member.tend()
    world.turn()
    assert (world.state.state, world.state.generation) == (STABLE, 1)
    return world, members


def test_a_member_that_joins_gets_each_partition_when_its_holder_has_given_it_up_and_nobody_else_stops() -> None:
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
    assert out(world) == {"m2": "stop-fetcher"}, "m1 has what it shall run, and hears nothing more"

    world.turn()
    assert running(world, "m2") == TABLE[2]["m2"], "without an acknowledgement nothing changes"
    world.tick(0.5)
    world.turn()
    m3.tend()
    assert running(world, "m3") == parts("bar:1"), "what is free, once the holder of the rest is late"

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

"""A group from the first consumer to the last."""

from __future__ import annotations

import pytest

from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.both_zookeepers


def parts(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def test_one_consumer_gets_every_partition_of_its_topic(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=250))
    world.stable("g", 1)
    eventually(lambda: consumer.held == parts("t", 0, 1, 2, 3), 5, "c1 holds all")
    eventually(lambda: len(consumer.records) == 1000, 10, "all records were delivered")
    assert len(set(consumer.records)) == 1000


def test_a_second_consumer_takes_over_its_share_and_gives_it_back_when_it_leaves(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = world.consumer("g", "c1", {"t": 1})
    first = world.stable("g", 1)
    two = world.consumer("g", "c2", {"t": 1})
    second = world.stable("g", 2, above=first.generation)
    eventually(lambda: (one.held, two.held) == (parts("t", 0, 1), parts("t", 2, 3)), 5, "range over both")
    two.close()
    world.stable("g", 1, above=second.generation)
    eventually(lambda: one.held == parts("t", 0, 1, 2, 3), 5, "c1 holds all again")

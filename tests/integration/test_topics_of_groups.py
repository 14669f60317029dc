"""A group's partitions while topics are created, grow, are deleted and are created again under their names."""

from __future__ import annotations

import pytest

from coordinator.zk.store import Create
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, OffsetRecord
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


@pytest.mark.parametrize(
    ("pattern", "kind", "wanted"),
    [
        ("fl.*", WHITE_LIST, {"flights", "fleet"}),
        ("fl.*,weather", BLACK_LIST, {"planes"}),
        ('"planes"', WHITE_LIST, {"planes"}),
    ],
    ids=["white list", "black list", "a name as Kafka quotes it"],
)
def test_a_wildcard_group_reads_what_its_pattern_means(world: World, pattern: str, kind: str, wanted: set[str]) -> None:
    world.coordinator()
    for name in ("flights", "fleet", "weather", "planes", "__consumer_offsets"):
        world.topic(name, 1)

    consumer = world.consumer("g", "c1", {pattern: 1}, pattern=kind)

    world.stable("g", 1)
    eventually(lambda: {part.topic for part in consumer.held} == wanted, 5, "it holds what its pattern means")


def test_sixty_topics_that_appear_at_once_make_a_history_that_can_be_read(world: World) -> None:
    service = world.coordinator(rebalance_debounce_ms=500)
    consumer = world.consumer("g", "c1", {"t.*": 1}, pattern=WHITE_LIST)
    world.stable("g", 1)

    names = [f"t-{'x' * 150}-{number}" for number in range(60)]
    world.topic("model", 1)  # which the group does not mean
    data = world.data(world.brokers.topic("model")) or b""
    world.store.commit([Create(world.brokers.topic(name), data) for name in names])

    eventually(lambda: len(consumer.held) == 60, 10, "all are read")
    world.stable("g", 1)
    eventually(lambda: all(r.finished_ms is not None for r in world.history("g")), 5, "each rebalance is finished")
    assert service.problems.current() == {}


def test_recreated_topic_is_another_topic_and_begins_at_the_earliest_offset(world: World) -> None:
    world.coordinator()
    old = world.topic("t", 2)
    log = MemoryLog(end=50)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    before = world.stable("g", 1)
    eventually(lambda: len(consumer.records) == 100, 10, "all is read")

    world.remove(world.brokers.topic("t"))
    gone = world.stable("g", 1, above=before.generation)
    eventually(lambda: consumer.held == frozenset(), 5, "it is given up")
    assert OffsetRecord.parse("", world.data(PATHS.offset("t", 0)) or b"").offset == 50
    assert gone.left_out == {"t": "no such topic (yet)"}
    new = world.topic("t", 3)

    after = world.stable("g", 1, above=gone.generation)
    assert (after.topics["t"], after.left_out) == (new.id, {})
    assert new.id != old.id
    eventually(lambda: len(consumer.records) == 100 + 150, 10, "the new topic is read from its beginning")
    assert world.channel("g", "c1").running[TopicPartition("t", 0)] == 50


def test_kafka_topic_without_an_id_is_distinguished_from_its_successor_by_czxid(world: World) -> None:
    world.coordinator()
    world.put(world.brokers.topic("t"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=10))
    before = world.stable("g", 1)
    eventually(lambda: len(consumer.records) == 20, 10, "all is read")

    world.put(world.brokers.topic("t"), b'{"version":2,"partitions":{"0":[2],"1":[2]}}')
    world.more_partitions("t", 2)
    assert world.state("g").generation == before.generation, "other replicas are no other topic"
    world.remove(world.brokers.topic("t"))
    world.put(world.brokers.topic("t"), b'{"version":1,"partitions":{"0":[1],"1":[1]}}')

    world.stable("g", 1, above=before.generation)
    eventually(lambda: len(consumer.records) == 40, 10, "its successor is read from the beginning")

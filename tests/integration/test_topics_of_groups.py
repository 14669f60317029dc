"""A group's partitions while topics are created, grow, are deleted and are created again under their names."""

from __future__ import annotations

import pytest

from coordinator.zk.store import Create
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, OffsetRecord
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts

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


def test_a_wildcard_group_follows_topics_that_appear_and_vanish(world: World) -> None:
    world.coordinator()
    world.topic("flights", 2)
    world.topic("other", 1)
    white = world.consumer("white", "c1", {"fl.*": 1}, pattern=WHITE_LIST)
    black = world.consumer("black", "c1", {"other": 1}, pattern=BLACK_LIST)
    world.stable("white", 1)
    world.stable("black", 1)

    world.topic("fleet", 1)
    both = parts("flights", 0, 1) | parts("fleet", 0)
    eventually(lambda: (white.held, black.held) == (both, both), 5, "both read the new topic")
    world.topic("weather", 1)
    eventually(lambda: black.held == both | parts("weather", 0), 5, "only the black list means this one")

    world.remove(world.brokers.topic("flights"))
    eventually(
        lambda: (white.held, black.held) == (parts("fleet", 0), parts("fleet", 0) | parts("weather", 0)), 5, "gone"
    )
    assert world.owners("white").keys() == parts("fleet", 0)


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


def test_a_topic_that_is_made_again_before_anybody_looks_is_another_topic_too(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=50))
    before = world.stable("g", 1)
    eventually(lambda: len(consumer.records) == 100, 10, "all is read")

    world.remove(world.brokers.topic("t"))
    new = world.topic("t", 2)

    after = world.stable("g", 1, above=before.generation)
    assert after.topics["t"] == new.id
    eventually(lambda: len(consumer.records) == 200, 10, "the new topic is read from its beginning")
    assert ("revoked", parts("t", 0, 1)) in consumer.events


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

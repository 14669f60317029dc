"""Kafka's source returns each record of its partitions once and in order, whatever happens to brokers and clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from consumer.logs.base import OffsetOutOfRange
from coordinator.zk.znodes.partitions import TopicPartition
from tests.property.effort import Draw, tried
from tests.unit.modelled_kafka import MB, Brokers, Reader, modelled_kafka

TOPICS = ("t", "u")
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in range(3)]

Step = Callable[[Brokers, Reader], None]


def steps(draw: Draw) -> list[Step]:
    return draw.many(lambda draw: draw.choice(KINDS)(draw), 60, 5)


def polls(draw: Draw) -> Step:
    max_bytes, passes_s = draw.choice((0, 1, 500, 5000, MB)), draw.choice((0.0, 0.02, 0.3, 2.0))
    wanted = draw.maybe(lambda draw: draw.some(range(3)))
    topic, times = draw.choice(TOPICS), draw.randint(1, 10)

    def step(kafka: Brokers, reader: Reader) -> None:
        for _ in range(times):
            reader.poll(max_bytes, wanted, passes_s, topic)

    return step


def appends(draw: Draw) -> Step:
    partition, count = draw.choice(PARTITIONS), draw.choice((1, 7, 300))
    gaps = set(draw.some(range(count), min(count, 5))) if draw.truth() else set()

    def step(kafka: Brokers, reader: Reader) -> None:
        place = (partition.topic, partition.partition)
        end = kafka.ends.get(place, 0)
        kafka.ends[place] = end + count
        topic_id = kafka.ids.get(partition.topic, "id")
        kafka.markers.setdefault((partition.topic, topic_id, partition.partition), set()).update(
            end + gap for gap in gaps
        )

    return step


def assigns(draw: Draw) -> Step:
    partitions, shift = draw.some(PARTITIONS, least=1), draw.choice((0.0, 0.0, 0.5, 1.0))

    def step(kafka: Brokers, reader: Reader) -> None:
        for topic, number in partitions:
            place = (topic, number)
            begin, end = kafka.begins.get(place, 0), kafka.ends.get(place, 0)
            offset = begin + int(shift * (end - begin))
            reader.assign(number, offset=offset, topic=topic, topic_id=kafka.ids.get(topic, "id"))

    return step


def releases(draw: Draw) -> Step:
    partitions = draw.some(PARTITIONS)

    def step(kafka: Brokers, reader: Reader) -> None:
        for topic, number in partitions:
            if TopicPartition(topic, number) in reader.positions:
                reader.release(number, topic=topic)

    return step


def recreates(draw: Draw) -> Step:
    """Records of the old topic that are left never come; those of the new one come after an assignment."""
    topic, topic_id, end = draw.choice(TOPICS), f"id-{draw.randint(0, 10**9)}", draw.choice((0, 50, 1000))

    def step(kafka: Brokers, reader: Reader) -> None:
        kafka.ids[topic] = topic_id
        for partition in range(3):
            kafka.ends[topic, partition] = end
            kafka.begins.pop((topic, partition), None)

    return step


def expires(draw: Draw) -> Step:
    partition, part = draw.choice(PARTITIONS), draw.random()

    def step(kafka: Brokers, reader: Reader) -> None:
        place = (partition.topic, partition.partition)
        kafka.begins[place] = max(kafka.begins.get(place, 0), int(part * kafka.ends.get(place, 0)))
        for client in kafka.clients:
            client.reports_again(place)

    return step


def disturbs(draw: Draw) -> Step:
    name, value = draw.choice(
        (
            ("down", set(draw.some(("a:1", "b:2")))),
            ("refusing", set(draw.some(("a:1", "b:2")))),
            ("is_mute", draw.truth()),
            ("is_holding", draw.truth()),
            ("is_unfair", draw.truth()),
            ("rewind", draw.choice((0, 7))),
        )
    )
    return lambda kafka, reader: setattr(kafka, name, value)


def answers(draw: Draw) -> Step:
    behind = draw.randint(0, 2)
    return lambda kafka, reader: setattr(kafka, "answered", len(kafka.described) - behind)


def loses_a_client(draw: Draw) -> Step:
    return lambda kafka, reader: reader.log._connection.discard()


def fails_to_hold_records(draw: Draw) -> Step:
    def spoil() -> None:
        raise MemoryError

    def step(kafka: Brokers, reader: Reader) -> None:
        kafka.spoil = spoil
        with suppress(MemoryError):
            reader.poll()
        kafka.spoil = lambda: None

    return step


KINDS = [polls] * 6 + [appends] * 4 + [assigns, releases, disturbs, disturbs, answers]
KINDS += [recreates, expires, loses_a_client, fails_to_hold_records]


def is_behind(kafka: Brokers, reader: Reader, partition: TopicPartition) -> bool:
    position = reader.positions[partition]
    return position.topic_id == kafka.ids.get(partition.topic, "id") and position.offset != kafka.ends.get(
        (partition.topic, partition.partition), 0
    )


@pytest.mark.long
@tried(150, steps)
def test_records_come_once_and_in_order_and_all_of_them_when_the_brokers_are_back(schedule: list[Step]) -> None:
    """The reader checks each poll: consecutive offsets, of the topic with its id, of assigned partitions."""
    with modelled_kafka() as kafka:
        kafka.leaders = {("t", 2): "b:2", ("u", 0): "b:2"}
        reader = Reader(kafka)
        for step in schedule:
            step(kafka, reader)

        kafka.down, kafka.refusing = set(), set()
        kafka.is_mute = kafka.is_holding = False
        until = kafka.now + 300
        while any(is_behind(kafka, reader, partition) for partition in reader.positions):
            for partition, problem in reader.source.problems.items():
                if isinstance(problem, OffsetOutOfRange):
                    begin = kafka.begins.get((partition.topic, partition.partition), 0)
                    topic_id = kafka.ids.get(partition.topic, "id")
                    reader.assign(partition.partition, offset=begin, topic=partition.topic, topic_id=topic_id)
            reader.poll(passes_s=0.5)
            assert kafka.now < until, reader.source.problems
        reader.polls(60.0, 1.0)

        old = {key for key, at in reader.positions.items() if at.topic_id != kafka.ids.get(key.topic, "id")}
        assert reader.source.problems.keys() <= old, "which an idle partition does not notice"
        assert reader.source._queue.size == 0

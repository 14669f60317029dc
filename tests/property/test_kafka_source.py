"""Kafka's source returns each record of its partitions once and in order, whatever happens to brokers and clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.property.effort import Draw, tried
from tests.unit.kafka_schedules import Schedule
from tests.unit.modelled_kafka import MB, Brokers, Reader, modelled_kafka
from zk_group.consumer.logs.base import OffsetOutOfRange
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

TOPICS = ("t", "u")
PLACES = [f"{topic}-{number}" for topic in TOPICS for number in range(3)]


def steps(draw: Draw) -> list[str]:
    """A schedule, as in `kafka_schedules.py`."""
    return draw.many(lambda draw: draw.choice(KINDS)(draw), 60, 5)


def listed(some: list[str]) -> str:
    return ",".join(some) or "-"


def polls(draw: Draw) -> str:
    max_bytes, passes_s = draw.choice((0, 1, 500, 5000, MB)), draw.choice((0.0, 0.02, 0.3, 2.0))
    wanted = draw.maybe(lambda draw: f" wanted={listed(draw.some(PLACES))}") or ""
    return f"poll {max_bytes} takes={passes_s} times={draw.randint(1, 10)}{wanted}"


def appends(draw: Draw) -> str:
    count = draw.choice((1, 7, 300))
    gaps = draw.some(range(count), min(count, 5)) if draw.truth() else []
    return f"append {draw.choice(PLACES)} {count} gaps={listed(list(map(str, gaps)))}"


def recreates(draw: Draw) -> str:
    """Records of the old topic that are left never come; those of the new one come after an assignment."""
    topic, end = draw.choice(TOPICS), draw.choice((0, 50, 1000))
    return f"ids {topic}=id{draw.randint(0, 10**9)}; ends {topic}-0-2={end}; begins {topic}-0-2=0"


def disturbs(draw: Draw) -> str:
    addresses = " ".join(draw.some(("a:1", "b:2")))
    flag = draw.choice(("mute", "holding", "unfair")) + draw.choice(("", "=no"))
    brokers = [f"brokers {flag}"] * 3 + [f"brokers rewind={draw.choice((0, 7))}"]
    return draw.choice([f"down {addresses}", f"refusing {addresses}", *brokers])


KINDS: list[Callable[[Draw], str]] = [
    *([polls] * 6 + [appends] * 4 + [recreates, disturbs, disturbs]),
    lambda draw: f"assign {listed(draw.some(PLACES, least=1))} at={draw.choice((0, 0, 50, 100))}%",
    lambda draw: f"release {listed(draw.some(PLACES))}",
    lambda draw: f"answer behind={draw.randint(0, 2)}",
    lambda draw: f"expire {draw.choice(PLACES)} {draw.random()}",
    lambda draw: "loses",
    lambda draw: "fails",
]


def is_behind(kafka: Brokers, reader: Reader, partition: TopicPartition) -> bool:
    position = reader.positions[partition]
    is_there = position.topic_id == kafka.ids.get(partition.topic, "id")
    return is_there and position.offset != kafka.ends.get(partition, 0)


@pytest.mark.long
@tried(200, steps)
def test_records_come_once_and_in_order_and_all_of_them_when_the_brokers_are_back(lines: list[str]) -> None:
    """The reader checks each poll: consecutive offsets, of the topic with its id, of assigned partitions."""
    with modelled_kafka() as kafka:
        schedule = Schedule(kafka)
        schedule.play("leaders t-2=b:2 u-0=b:2")
        for line in lines:
            schedule.play(line)

        schedule.play("down; refusing; brokers mute=no holding=no")
        reader, until = schedule.reader, kafka.now + 300
        while any(is_behind(kafka, reader, partition) for partition in reader.positions):
            for (topic, number), problem in reader.source.problems.items():
                if isinstance(problem, OffsetOutOfRange):
                    schedule.play(f"assign {topic}-{number} at=0%")
            reader.poll(passes_s=0.5)
            assert kafka.now < until, reader.source.problems
        reader.polls(60.0, 1.0)

        old = {key for key, at in reader.positions.items() if at.topic_id != kafka.ids.get(key.topic, "id")}
        assert reader.source.problems.keys() <= old, "which an idle partition does not notice"
        assert reader.source._queue.size == 0

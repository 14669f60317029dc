"""A topic changes between any two requests to Kafka: no record of another topic is returned, and none is lost.

`Reader` checks each poll: consecutive offsets, of the topic with its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.support.points import Point, at_every_point
from tests.unit.modelled_kafka import Answer, Brokers, Client, Place, Reader, modelled_kafka

PARTITIONS = (0, 1)
Change = Callable[[Brokers, Reader], None]


class Pointed(Client):
    """A client before (or after) whose requests, and looks into its queue, something happens."""

    point: Point

    def assign(self, starts: Mapping[Place, int]) -> None:
        with self.point.asked("assign"):
            super().assign(starts)

    def consume(self, most: int) -> list[Any]:
        with self.point.asked("consume"):
            return super().consume(most)

    def describe(self, topics: Iterable[str]) -> Answer:
        with self.point.asked("describe"):
            return super().describe(topics)

    def offsets(self, requested: Mapping[Place, int]) -> Answer:
        with self.point.asked("offsets"):
            return super().offsets(requested)


def recreated(end: int) -> Change:
    def change(kafka: Brokers, reader: Reader) -> None:
        kafka.ids["t"] = "new"
        for number in PARTITIONS:
            kafka.ends["t", number] = end

    return change


def deleted(kafka: Brokers, reader: Reader) -> None:
    kafka.ids["t"] = ""


def recreated_while_the_controller_is_away(kafka: Brokers, reader: Reader) -> None:
    kafka.is_mute = True
    recreated(1000)(kafka, reader)


def recreated_before_an_answer_comes(kafka: Brokers, reader: Reader) -> None:
    kafka.is_holding, kafka.answered = True, len(kafka.described)
    recreated(1000)(kafka, reader)


def controller_is_away(kafka: Brokers, reader: Reader) -> None:
    kafka.is_mute = True


def answers_are_late(kafka: Brokers, reader: Reader) -> None:
    kafka.is_holding, kafka.answered = True, len(kafka.described)


def leader_is_down(kafka: Brokers, reader: Reader) -> None:
    kafka.leaders["t", 1] = "b:2"
    kafka.down = {"b:2"}


ENDS = [
    recreated(0),
    recreated(15),
    recreated(1000),
    deleted,
    recreated_while_the_controller_is_away,
    recreated_before_an_answer_comes,
]
PASSES = [controller_is_away, answers_are_late, leader_is_down]


@pytest.mark.parametrize("change", [*ENDS, *PASSES])
@pytest.mark.long
def test_change_between_any_two_requests_to_kafka_mixes_up_no_topics(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(point: Point) -> None:
        with modelled_kafka() as kafka:
            monkeypatch.setattr(Pointed, "point", point, raising=False)
            monkeypatch.setattr("consumer.logs.kafka.connection.KafkaClient", lambda servers, *_: made(kafka, servers))
            kafka.ends = {("t", number): 30 for number in PARTITIONS}
            reader = Reader(kafka)
            reader.assign(*PARTITIONS)
            with point.sequence(lambda: change(kafka, reader)):
                reader.polls(0.1)
            reader.polls(1.0, 0.1)
            kafka.is_mute = kafka.is_holding = False
            kafka.down = set()
            if change in ENDS:
                reader.polls(3.0, 0.2)
                first = {number: reader.offset(number) for number in PARTITIONS}
                reader.assign(*PARTITIONS, topic_id="new")
                kafka.ids["t"] = "new"
                for number in PARTITIONS:
                    kafka.ends["t", number] = 45
                assert all(offset <= 30 for offset in first.values()), first
            until = kafka.now + 60
            end = kafka.ends["t", 0]
            while any(reader.offset(number) != end for number in PARTITIONS):
                reader.poll(passes_s=0.2)
                assert kafka.now < until, reader.source.problems
            reader.polls(5.0, 0.5)
            assert reader.source._queue.size == 0 and not reader.source.problems

    assert at_every_point(play) > 5


def made(kafka: Brokers, servers: str) -> Client:
    kafka.clients.append(Pointed(kafka, servers))
    return kafka.clients[-1]

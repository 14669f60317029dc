"""A topic changes between any two requests to Kafka: no record of another topic is returned, and none is lost.

`Reader` checks each poll: consecutive offsets, of the topic with its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.support.points import Point, at_every_point
from tests.unit.kafka_schedules import Schedule
from tests.unit.modelled_kafka import Answer, Brokers, Client, Place, modelled_kafka


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


ENDS = {
    "recreated0": "ids t=new; ends 0,1=0",
    "recreated1": "ids t=new; ends 0,1=15",
    "recreated2": "ids t=new; ends 0,1=1000",
    "deleted": "ids t=-",
    "recreated_while_the_controller_is_away": "brokers mute; ids t=new; ends 0,1=1000",
    "recreated_before_an_answer_comes": "brokers holding; answer; ids t=new; ends 0,1=1000",
}
PASSES = {
    "controller_is_away": "brokers mute",
    "answers_are_late": "brokers holding; answer",
    "leader_is_down": "leaders 1=b:2; down b:2",
}


@pytest.mark.parametrize("change", [*ENDS, *PASSES])
@pytest.mark.long
def test_change_between_any_two_requests_to_kafka_mixes_up_no_topics(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(point: Point) -> None:
        with modelled_kafka() as kafka:
            monkeypatch.setattr(Pointed, "point", point, raising=False)
            monkeypatch.setattr("consumer.logs.kafka.connection.KafkaClient", lambda servers, *_: made(kafka, servers))
            schedule = Schedule(kafka)
            schedule.play("ends 0,1=30; assign 0,1")
            with point.sequence(lambda: schedule.play((ENDS | PASSES)[change])):
                schedule.play("polls 0.1")
            schedule.play("polls 1 step=0.1; brokers mute=no holding=no; down")
            reader = schedule.reader
            if change in ENDS:
                schedule.play("polls 3 step=0.2")
                first = [position.offset for position in reader.positions.values()]
                schedule.play("assign 0,1 id=new; ids t=new; ends 0,1=45")
                assert all(offset <= 30 for offset in first), first
            until = kafka.now + 60
            while any(position.offset != kafka.ends["t", 0] for position in reader.positions.values()):
                reader.poll(passes_s=0.2)
                assert kafka.now < until, reader.source.problems
            schedule.play("polls 5 step=0.5; count queue=0")
            assert not reader.source.problems

    assert at_every_point(play) > 5


def made(kafka: Brokers, servers: str) -> Client:
    kafka.clients.append(Pointed(kafka, servers))
    return kafka.clients[-1]

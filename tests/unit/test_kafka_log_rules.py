"""Kafka's source and lookups on modelled brokers: `kafka_schedules.txt`, and what it has no words for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import confluent_kafka as ck
import pytest

from tests.support import kafka_group
from tests.support.points import Point, at_every_point
from tests.support.turns import cases
from tests.support.wait import PATIENCE, eventually
from tests.unit.kafka_schedules import Schedule, variants
from tests.unit.manual import ManualRuntime
from tests.unit.modelled_kafka import Brokers, Client, Place, modelled_kafka
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.fetching.polling import Fetcher, Polling
from zk_group.consumer.logs.base import LogError, Position, TopicIdPartition, UnknownTopic
from zk_group.consumer.membership.call_guard import CallGuard
from zk_group.consumer.membership.start_position import StartRule, Starts
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

T0 = TopicPartition("t", 0)
FILE = Path(__file__).with_name("kafka_schedules.txt")
CASES = [
    pytest.param(text.removeprefix("long\n"), id=title, marks=[pytest.mark.long] if text.startswith("long\n") else [])
    for case in cases(FILE.read_text())[1]
    for title, text in variants(case.title, case.text)
]


@pytest.fixture
def kafka(caplog: pytest.LogCaptureFixture) -> Iterator[Brokers]:
    caplog.set_level(logging.INFO)
    with modelled_kafka() as kafka:
        yield kafka


@pytest.fixture
def schedule(kafka: Brokers) -> Schedule:
    return Schedule(kafka)


@pytest.mark.parametrize("text", CASES)
def test_reader_of_kafka(kafka: Brokers, text: str, caplog: pytest.LogCaptureFixture) -> None:
    Schedule(kafka, caplog=caplog).play(text)


def after(name: str) -> Callable[..., None]:
    """A method of a client that fails once it has done its work."""
    real = getattr(Client, name)

    def change_both(client: Client, places: Iterable[Place]) -> None:
        real(client, places)
        raise MemoryError

    return change_both


OUT_OF_RANGE = "ends 0=10 1=5; brokers holding; assign 0; assign 1 at=7; poll; brokers holding=no"
AGAIN = "polls 1 gives=1..; assign 0,2 at=40; polls 2; at 0,1=100"
FAILING: dict[str, tuple[str, Callable[..., Any], tuple[str, str, str]]] = {
    "records that were taken": (
        "zk_group.consumer.logs.kafka.source._joined", Mock(side_effect=[None, MemoryError]),
        ("ends 0,1=5; assign 0,1", "poll", "polls 1 gives=10"),
    ),
    # The range of an offset out of range is looked up in the poll that returns others' records.
    "a lookup beside records that were taken": (
        "zk_group.consumer.logs.kafka.topics.Questions.many", Mock(side_effect=MemoryError),
        (OUT_OF_RANGE, "poll times=3", "polls 2; at 0=10"),
    ),
    **{
        f"a change of the assignment: {name}": (
            f"tests.unit.modelled_kafka.Client.{name}", after(name),
            ("ends 0,1=100; assign 0,1; poll 500", "release 0; assign 2; poll", AGAIN),
        )
        for name in ("assign", "unassign")
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "fails", "plays"), FAILING.values(), ids=FAILING)
def test_unexpected_error_is_made_up_for(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[..., Any], plays: tuple[str, ...]
) -> None:
    """The reader checks that each record is returned once, and nothing comes of a released partition."""
    before, failing, then = plays
    schedule.play(before)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(name, fails)
        schedule.play(failing)

    schedule.play(then)


def test_idle_source_closes_its_connection_and_continues(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, turn = threading.Event(), threading.Event()

    def wait(_: float) -> bool:
        looked.set()
        assert turn.wait(60)
        turn.clear()
        return schedule.kafka.now > 2000

    monkeypatch.setattr(schedule.reader.log._connection.closed, "wait", wait)
    schedule.play("ends 0=100; assign 0; poll 1000")
    for passes_s in (29.0, 2.0, 1000.0):
        assert looked.wait(60)
        looked.clear()
        was_closed = schedule.kafka.clients[0].is_closed
        schedule.kafka.now += passes_s
        turn.set()
        assert (passes_s == 1000.0) == was_closed

    schedule.play("polls 1 gives=92; count clients=2")


def test_source_without_partitions_is_idle(schedule: Schedule) -> None:
    """Its connection would collect statistics that no poll reads."""
    schedule.play("assign 0; poll; release 0")
    polled_at = schedule.reader.source._polled_at
    schedule.play("polls 10")

    assert schedule.reader.source._polled_at == polled_at


@pytest.mark.long
@pytest.mark.parametrize(("max_bytes", "passes_s"), [(2000, 0.02), (40_000, 0.1)], ids=["slow", "fast"])
def test_first_partitions_starve_no_others(kafka: Brokers, schedule: Schedule, max_bytes: int, passes_s: float) -> None:
    """librdkafka begins with the same ones again whenever its queue was full: before a slow reader it always is."""
    schedule.play("ends 0-18=1000000 19=10; brokers unfair; assign 0-19")
    began, gap, count = kafka.now, 0.0, 0
    last = dict.fromkeys(schedule.reader.positions, began)
    while kafka.now < began + 60:
        for partition, offsets in schedule.reader.poll(max_bytes, passes_s=passes_s).items():
            gap = max(gap, kafka.now - last[partition])
            last[partition], count = kafka.now, count + len(offsets)
    del last["t", 19]

    assert max(gap, kafka.now - min(last.values())) < 8
    schedule.play("at 19=10")
    assert kafka.fetched <= 1.1 * count + 200


def test_poll_waits_for_no_lookup_of_others(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule.play("ends 0,1=10; assign 0; poll")
    asked, answer = threading.Event(), threading.Event()

    def find(*_: object) -> None:
        asked.set()
        assert answer.wait(60)
        raise LogError("no leader")

    def ask() -> None:
        with suppress(LogError):
            schedule.reader.log.latest("t", "id", 1)

    monkeypatch.setattr(schedule.kafka.clients[-1], "offsets", find)
    other = threading.Thread(target=ask)
    other.start()
    assert asked.wait(60)
    monkeypatch.undo()

    schedule.play("ends 0=20; polls 1 gives=10")
    answer.set()
    other.join(60)
    assert not other.is_alive()


def test_partition_of_another_topic_of_the_name_has_no_end(kafka: Brokers) -> None:
    kafka.ids["t"], kafka.ends["t", 0] = "new", 3
    old, new = (TopicIdPartition("t", topic_id, 0) for topic_id in ("old", "new"))
    found = kafka.log().latest_of([new, old])

    assert found[new] == 3
    assert isinstance(found[old], UnknownTopic)


def test_fetching_does_not_wait_for_a_slow_broker_lookup(kafka: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, find = threading.Event(), kafka.find
    kafka.lookup_wait_s = 0.01

    def slow() -> str:
        assert kafka.servers == "a:1" or answer.wait(10 * PATIENCE), "a fetch waits for it"
        return find()

    monkeypatch.setattr(kafka, "find", slow)
    schedule = Schedule(kafka)
    schedule.play("ends 0=10; assign 0; polls 3 gives=10; down a:1; servers b:2; polls 12 step=1")
    schedule.play("down; ends 0=20; polls 5 gives=10; clients a:1; down a:1")
    answer.set()
    reader = schedule.reader
    eventually(lambda: reader.polls(1.0) == 0 and len(kafka.clients) == 2, 10, "the other servers are used")


def test_client_that_cannot_be_made_leaves_no_closed_one(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(servers: str, *options: object) -> Client:
        if servers == "b:2" and schedule.kafka.now < 1060:
            raise UsageError("a certificate cannot be read")
        return schedule.kafka.client(servers, None, None)

    monkeypatch.setattr("zk_group.consumer.logs.kafka.connection.KafkaClient", client)
    schedule.play("ends 0=10; assign 0; polls 3 gives=10; down a:1; servers b:2")
    failed = 0
    while schedule.kafka.now < 1070:
        try:
            schedule.play("poll takes=1")
        except UsageError:
            failed += 1
            schedule.kafka.now += 1.0

    assert failed > 0
    schedule.play("down; ends 0=20; polls 5 gives=10")


def test_record_written_during_a_lookup_by_time_is_not_skipped(kafka: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.ends["t", 0] = 3
    real_offset = Client._offset

    def overtaken(client: Client, place: Place, what: int) -> int | LogError:
        if what < 0:
            return real_offset(client, place, what)
        kafka.ends[place] = kafka.ends.get(place, 0) + 1
        return -1

    monkeypatch.setattr(Client, "_offset", overtaken)

    assert kafka.log().offset_for_timestamp("t", "id", 0, 5) == 3


def test_end_of_a_topic_unknown_to_a_broker_is_no_start_nor_0_nor_sought(kafka: Brokers) -> None:
    """A 0 would be recorded as the group's start, although a broker that just started learns the topic later."""
    kafka.ends["t", 0], kafka.ids["t"] = 100, ""
    consumer, starts = Asking(kafka, {T0: Position("id", 40)}), Starts(kafka.log(), StartRule.parse("end", "latest"))

    for ask in (lambda: starts.find(T0, "id", False), lambda: consumer.end_offsets([T0])):
        with pytest.raises(UnknownTopic, match="no such topic"):
            ask()
    with pytest.raises(UnknownTopic):
        consumer.seek_to_end(T0)
    assert consumer.position(T0) == 40
    kafka.ids.clear()

    assert starts.find(T0, "id", came_later=False).offset == 100
    assert consumer.end_offsets([T0]) == {T0: 100}


@pytest.mark.long
def test_several_threads_look_up_offsets_while_records_are_read(schedule: Schedule) -> None:
    schedule.play("ends 0-3=1000; assign 0-3")
    found: list[int] = []

    def look(partition: int) -> None:
        found.extend(schedule.reader.log.latest("t", "id", partition) for _ in range(50))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    schedule.play("polls 10 gives=4000")
    for thread in threads:
        thread.join(60)

    assert found == [1000] * 200


class Asking(Consumer):
    """A consumer that holds partitions, and is only queried."""

    def __init__(self, kafka: Brokers, held: dict[TopicPartition, Position]) -> None:
        config = ConsumerConfig("zk:2181", "g", "c1")
        self._config = config
        self._calls = CallGuard(ManualRuntime(), ManualRuntime().event())
        self._log = log = kafka.log()
        self._member: Any = SimpleNamespace(channel=None)
        self._polling = Polling(config, Fetcher(log), ManualRuntime(), Mock(), Mock())
        self._polling.begin(held)


def test_writer_of_tests_counts_a_record_that_is_acknowledged_without_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that died before its answer had written the record: the second attempt's answer names no offset."""
    producer = SimpleNamespace(produce=lambda *args, **options: None, poll=lambda timeout: 0, flush=lambda timeout: 0)
    monkeypatch.setattr(kafka_group, "Producer", lambda options: producer)
    with kafka_group.Writing(SimpleNamespace(servers="127.0.0.1:1"), "orders", 2) as writing:  # type: ignore[arg-type]
        writing._on_delivery(None, ck.Message(topic="orders", partition=1))

    assert writing.ends == {0: 0, 1: 1}


# ---- something happens between any two requests


REQUESTS = {name: getattr(Client, name) for name in ("assign", "consume", "describe", "offsets")}
"""Requests of a client, and looks into its queue."""
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


def asked(point: Point, name: str) -> Callable[..., Any]:
    def request(client: Client, *arguments: Any) -> Any:
        with point.asked(name):
            return REQUESTS[name](client, *arguments)

    return request


@pytest.mark.parametrize("change", [*ENDS, *PASSES])
@pytest.mark.long
def test_change_between_any_two_requests_mixes_up_no_topics(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record of another topic is returned, and none is lost: `Reader` checks each poll."""

    def play(point: Point) -> None:
        with modelled_kafka() as kafka:
            for name in REQUESTS:
                monkeypatch.setattr(Client, name, asked(point, name))
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

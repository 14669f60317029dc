"""Kafka's source and lookups on modelled brokers that are down, moved, or refuse the credentials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from consumer.config import ConsumerConfig
from consumer.consumer import Consumer
from consumer.fetching.polling import Fetcher, Polling
from consumer.logs.base import LogError, Position, UnknownTopic
from consumer.membership.call_guard import CallGuard
from consumer.membership.start_position import StartRule, Starts
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.partitions import TopicPartition
from tests.support import kafka_group
from tests.support.wait import PATIENCE, eventually
from tests.unit.manual import ManualRuntime
from tests.unit.modelled_kafka import Brokers, Client, Place, Reader, modelled_kafka


@pytest.fixture
def kafka(caplog: pytest.LogCaptureFixture) -> Iterator[Brokers]:
    caplog.set_level(logging.INFO)
    with modelled_kafka() as kafka:
        yield kafka


@pytest.fixture
def reader(kafka: Brokers) -> Reader:
    return Reader(kafka)


def begun(kafka: Brokers, reader: Reader, count: int = 10) -> None:
    """The partition 0 has been fetched up to `count`."""
    kafka.ends["t", 0] = count
    reader.assign(0)
    assert reader.polls(3.0) == count


# ---- outages of all brokers


def test_outage_of_all_brokers_is_logged_once_and_so_is_its_end(
    kafka: Brokers, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    begun(kafka, reader)
    for outages in (1, 2):
        kafka.down = {"a:1"}
        reader.polls(60.0, 0.5)
        assert reader.log.outages == outages
        assert reader.problem(0) == "", "the outage is logged, and no partition's problem"

        kafka.down = set()
        kafka.ends["t", 0] += 10
        assert reader.polls(5.0) == 10

    messages = [message for message in caplog.messages if "Kafka broker" in message]
    assert ["down" in message for message in messages] == [True, False] * 2
    assert len(kafka.clients) == 1


def test_returned_brokers_are_noticed_at_once_although_no_new_records_arrive(
    kafka: Brokers, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    begun(kafka, reader)
    kafka.down = {"a:1"}
    while not reader.log.outages and kafka.now < 1100:
        reader.polls(0.1)
    kafka.down = set()
    reader.polls(2.0)  # before the next statistics

    assert "Kafka brokers available: servers=a:1" in caplog.text


def test_moved_brokers_are_looked_up_every_ten_seconds_during_an_outage_only(kafka: Brokers) -> None:
    places, looked = ["a:1"], list[float]()

    def find() -> str:
        looked.append(kafka.now)
        return places[-1]

    reader = Reader(kafka, kafka.log(find))
    begun(kafka, reader)
    reader.polls(60.0, 1.0)
    assert len(looked) == 1

    kafka.down = {"a:1"}
    reader.polls(25.0, 1.0)
    places.append("b:2")
    reader.polls(15.0, 1.0)
    kafka.down, kafka.ends["t", 0] = set(), 20

    assert reader.polls(5.0) == 10
    assert [client.servers for client in kafka.clients] == ["a:1", "b:2"]
    assert all(9 <= later - earlier <= 11 for earlier, later in pairwise(looked[1:4]))
    assert reader.log.outages == 1


def test_moved_brokers_are_looked_up_though_enough_unconfirmed_records_are_here(
    kafka: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's queue, which has its statistics, is not read then."""
    monkeypatch.setattr("consumer.logs.kafka.source.UNCONFIRMED_BYTES", 5000)
    places = ["a:1"]
    reader = Reader(kafka, kafka.log(lambda: places[-1]))
    kafka.ends["t", 0] = 4000
    kafka.is_mute = True
    reader.assign(0)
    reader.polls(3.0)
    kafka.down = {"a:1"}
    places.append("b:2")
    reader.polls(60.0, 0.5)

    assert [client.servers for client in kafka.clients] == ["a:1", "b:2"]


def test_failed_lookups_of_brokers_are_an_outage_at_the_start_and_stop_no_fetching(kafka: Brokers) -> None:
    def find() -> str:
        if not 1030 <= kafka.now < 1060:
            raise LogError("ZooKeeper does not answer")
        return "a:1"

    reader = Reader(kafka, kafka.log(find))
    kafka.ends["t", 0] = 10
    reader.assign(0)
    assert reader.polls(29.0, 1.0) == 0
    assert reader.log.outages == 1
    assert reader.polls(31.0, 1.0) == 10

    kafka.down = {"a:1"}
    reader.polls(30.0, 1.0)
    kafka.down, kafka.ends["t", 0] = set(), 20
    assert reader.polls(5.0) == 10
    assert reader.log.outages == 2


def test_fetching_does_not_wait_for_a_slow_broker_lookup(kafka: Brokers) -> None:
    places, answer = ["a:1"], threading.Event()
    kafka.lookup_wait_s = 0.01

    def find() -> str:
        assert len(places) == 1 or answer.wait(10 * PATIENCE), "a fetch waits for it"
        return places[-1]

    reader = Reader(kafka, kafka.log(find))
    begun(kafka, reader)
    kafka.down = {"a:1"}
    places.append("b:2")
    reader.polls(12.0, 1.0)
    kafka.down, kafka.ends["t", 0] = set(), 20
    assert reader.polls(5.0) == 10
    assert [client.servers for client in kafka.clients] == ["a:1"]
    kafka.down = {"a:1"}
    answer.set()
    eventually(lambda: reader.polls(1.0) == 0 and len(kafka.clients) == 2, 10, "the other servers are used")


def test_failed_creation_of_a_client_leaves_no_closed_one_behind(
    kafka: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["a:1"]

    def client(servers: str, *options: object) -> Client:
        if servers == "b:2" and kafka.now < 1060:
            raise UsageError("a certificate cannot be read")
        return kafka.client(servers, None, None)

    monkeypatch.setattr("consumer.logs.kafka.connection.KafkaClient", client)
    reader = Reader(kafka, kafka.log(lambda: places[-1]))
    begun(kafka, reader)
    kafka.down = {"a:1"}
    places.append("b:2")
    failed = 0
    while kafka.now < 1070:
        try:
            reader.poll(passes_s=1.0)
        except UsageError:
            failed += 1
            kafka.now += 1.0
    kafka.down, kafka.ends["t", 0] = set(), 20

    assert failed > 0
    assert reader.polls(5.0) == 10


# ---- one of two brokers


def test_leader_that_is_down_is_its_partitions_problem_after_some_seconds(
    kafka: Brokers, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.leaders["t", 1] = "b:2"
    kafka.ends = {("t", 0): 10, ("t", 1): 10}
    reader.assign(0, 1)
    assert reader.polls(3.0) == 20
    kafka.down = {"b:2"}
    kafka.ends = {("t", 0): 20, ("t", 1): 20}
    assert reader.polls(3.0) == 10
    assert reader.problem(1) == ""
    reader.polls(10.0)
    assert (reader.problem(0), reader.problem(1)) == ("", "b:2 down")

    kafka.down = set()
    assert reader.polls(6.0) == 10
    assert reader.problem(1) == ""
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "Kafka broker unavailable, retrying",
        "Kafka broker available",
    ]
    assert reader.log.outages == 0


def test_credentials_refused_by_one_broker_are_the_problem_of_its_partitions(kafka: Brokers, reader: Reader) -> None:
    kafka.leaders["t", 1] = "b:2"
    kafka.refusing = {"b:2"}
    reader.assign(0, 1)
    reader.poll()
    kafka.ends = {("t", 0): 10, ("t", 1): 10}

    assert reader.polls(20.0) == 10
    assert reader.problem(0) == ""
    assert reader.problem(1).startswith("Kafka at b:2 refuses the credentials: Invalid password; set security.protocol")
    assert [client.is_closed for client in kafka.clients] == [False]
    assert reader.log.latest("t", "id", 0) == 10


@pytest.mark.parametrize("accepted_s", [0.0, 60.0], ids=["from the start", "later"])
def test_credentials_refused_by_all_brokers_close_the_client_for_half_a_minute(
    kafka: Brokers, reader: Reader, accepted_s: float
) -> None:
    reader.assign(0)
    reader.polls(accepted_s, 0.5)
    kafka.refusing = {"a:1"}
    kafka.ends["t", 0] = 10
    assert reader.polls(25.0, 0.5) == 0
    problem = "Kafka at a:1 refuses the credentials: Invalid password; set security.protocol, sasl.mechanism"
    assert reader.problem(0).startswith(problem)
    assert [client.is_closed for client in kafka.clients] == [True]
    with pytest.raises(LogError, match="refuses the credentials"):
        reader.log.latest("t", "id", 0)

    kafka.refusing = set()
    assert reader.polls(10.0, 0.5) == 10
    assert reader.problem(0) == ""
    assert len(kafka.clients) == 2


# ---- lookups


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


def test_topic_unknown_to_a_broker_has_no_start_instead_of_0(kafka: Brokers) -> None:
    """A 0 would be recorded as the group's start, although a broker that just started learns the topic later."""
    kafka.ends["t", 0], kafka.ids["t"] = 100, ""
    starts = Starts(kafka.log(), StartRule.parse("end", "latest"))
    t0 = TopicPartition("t", 0)

    with pytest.raises(UnknownTopic, match="no such topic"):
        starts.find(t0, "id", came_later=False)
    kafka.ids.clear()

    assert starts.find(t0, "id", came_later=False).offset == 100


def test_end_of_a_topic_unknown_to_a_broker_is_neither_reported_as_0_nor_sought(kafka: Brokers) -> None:
    kafka.ends["t", 0], kafka.ids["t"] = 100, ""
    t0 = TopicPartition("t", 0)
    consumer = Asking(kafka, {t0: Position("id", 40)})

    with pytest.raises(UnknownTopic):
        consumer.end_offsets([t0])
    with pytest.raises(UnknownTopic):
        consumer.seek_to_end(t0)
    assert consumer.position(t0) == 40
    kafka.ids.clear()

    assert consumer.end_offsets([t0]) == {t0: 100}


@pytest.mark.long
def test_several_threads_look_up_offsets_while_records_are_read(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", number): 1000 for number in range(4)}
    found: list[int] = []

    def look(partition: int) -> None:
        found.extend(reader.log.latest("t", "id", partition) for _ in range(50))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    reader.assign(*range(4))
    for thread in threads:
        thread.start()
    assert reader.polls(10.0) == 4000
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
        self._polling = Polling(
            config, Fetcher(log), ManualRuntime(), lambda fetched, checked: None, lambda jumps: None
        )
        self._polling.begin(held)


def test_writer_of_tests_counts_a_record_that_is_acknowledged_without_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that died before its answer had written the record: the second attempt's answer names no offset."""
    producer = SimpleNamespace(produce=lambda *args, **options: None, poll=lambda timeout: 0, flush=lambda timeout: 0)
    monkeypatch.setattr(kafka_group, "Producer", lambda options: producer)
    with kafka_group.Writing(SimpleNamespace(servers="127.0.0.1:1"), "orders", 2) as writing:  # type: ignore[arg-type]
        writing._on_delivery(None, ck.Message(topic="orders", partition=1))

    assert writing.ends == {0: 0, 1: 1}

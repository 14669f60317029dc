"""Kafka as a log on a broker that is made up: what it keeps when a connection ends and errors come between records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.config import ConsumerConfig
from consumer.control import Control
from consumer.fetcher import Fetcher
from consumer.holder import Start
from consumer.logs import LogError, UnknownTopic
from consumer.logs.kafka import CREDENTIALS, EARLIEST, Described, Signal
from consumer.logs.kafka_batches import Columns
from consumer.logs.kafka_log import KafkaLog
from consumer.polling import Polling
from consumer.start_position import StartRule
from consumer.starts import Starts
from coordinator.zk.partitions import TopicPartition
from tests.support.kafka import fetched
from tests.unit.manual import ManualRuntime

IDLE = 1
"""A partition of every topic that has no records: to fetch it is to look, and to get nothing."""


class Cluster:
    """Brokers whose topics all have the id `id`, and the partitions 0 and 1.

    :ivar counts: how many records a partition has.
    :ivar size: how large each is.
    :ivar unknown: topics of which the brokers know nothing yet.
    :ivar leaderless: topics of which no broker tells an offset.
    :ivar refuses: whether they refuse the credentials.
    :ivar asked: the topics of each question for offsets.
    :ivar spoil: is called with each look that has taken something out of the queue.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}
        self.size = 10
        self.unknown: set[str] = set()
        self.leaderless: set[str] = set()
        self.refuses = False
        self.asked: list[set[str]] = []
        self.spoil: Callable[[], None] = lambda: None

    def client(self, servers: str, options: Mapping[str, str]) -> Client:
        return Client(self, servers)


class Answered:
    """A `Pending` whose answers are there."""

    is_done = True

    def __init__(self, answers: Mapping[Any, Any]) -> None:
        self._answers = answers

    def wait(self, timeout_s: float) -> bool:
        return True

    def results(self) -> dict[Any, Any]:
        return dict(self._answers)


class Client:
    """What `KafkaClient` does: each look brings up to five records of each partition that is assigned."""

    def __init__(self, cluster: Cluster, servers: str) -> None:
        self.servers = servers
        self._cluster = cluster
        self._assigned: dict[tuple[str, int], int] = {}

    def assign(self, topic: str, partition: int, offset: int) -> None:
        self._assigned[topic, partition] = offset

    def unassign(self, topic: str, partition: int) -> None:
        del self._assigned[topic, partition]

    def consume(self, most: int) -> list[Columns | Signal]:
        found: list[Columns | Signal] = []
        for (topic, partition), first in sorted(self._assigned.items()):
            end = min(self._cluster.counts.get((topic, partition), 0), first + 5)
            if end > first:
                self._assigned[topic, partition] = end
                found.append(records(topic, partition, range(first, end), self._cluster.size))
        if found:
            self._cluster.spoil()
        return found

    def events(self) -> list[Signal]:
        return [Signal(CREDENTIALS, "", -1, -1, "not this user")] if self._cluster.refuses else []

    def describe(self, topics: Iterable[str]) -> Answered:
        return Answered({topic: self._described(topic) for topic in topics})

    def _described(self, topic: str) -> Described | LogError:
        if topic in self._cluster.unknown:
            return Described("", frozenset(), "Kafka has no such topic")
        return Described("id", frozenset({0, IDLE}))

    def offsets(self, wanted: Mapping[tuple[str, int], int]) -> Answered:
        self._cluster.asked.append({topic for topic, _ in wanted})
        return Answered({place: self._offset(place, what) for place, what in wanted.items()})

    def _offset(self, place: tuple[str, int], what: int) -> int | LogError:
        if place[0] in self._cluster.leaderless:
            return LogError("no leader")
        return 0 if what == EARLIEST else self._cluster.counts.get(place, 0)

    def close(self) -> None:
        self._assigned.clear()


def records(topic: str, partition: int, offsets: range, size: int) -> Columns:
    count = len(offsets)
    values: list[bytes | None] = [b"x" * size] * count
    return Columns(
        [topic] * count, [partition] * count, list(offsets), [None] * count, values, [(1, 5)] * count, [None] * count
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr("consumer.logs.kafka_log.KafkaClient", made.client)
    monkeypatch.setattr("consumer.logs.kafka_log.LOOKED_S", 0.0)
    monkeypatch.setattr("consumer.logs.kafka_log.CREDENTIALS_RETRY_S", 0.0)
    return made


def opened() -> KafkaLog:
    """A log of the cluster that the fixture has made."""
    return KafkaLog(lambda: "a:1", {})


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


# ---- records


def test_what_waited_when_a_connection_ended_takes_no_room_from_what_comes_over_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.logs.kafka_log.BUFFER_BYTES", 8_000)
    cluster.counts["t", 0] = 10
    cluster.size = 1000
    log = opened()
    log.fetch("t", "id", 0, 0, 0, 0)
    log.fetch("t", "id", IDLE, 0, 1 << 20, 1)  # and the buffer is full of what came of the other

    cluster.refuses = True
    with pytest.raises(LogError, match="refuses the credentials"):
        log.latest("t", "id", 0)
    cluster.refuses = False

    assert offsets_of(fetched(log, "t", "id", upto=10)) == list(range(10))


def test_records_that_an_error_nobody_expected_has_swallowed_are_fetched_again(cluster: Cluster) -> None:
    cluster.counts = {("t", 0): 15, ("u", 0): 15}
    log = opened()
    for topic in ("t", "u"):
        log.fetch(topic, "id", 0, 0, 0, 0)

    def spoil() -> None:
        cluster.spoil = lambda: None
        raise MemoryError("no room for a batch")

    cluster.spoil = spoil
    with pytest.raises(MemoryError):
        log.fetch("t", "id", 0, 0, 1 << 20, 1000)

    for topic in ("t", "u"):
        assert offsets_of(fetched(log, topic, "id", upto=15)) == list(range(15))


# ---- questions


def test_a_topic_without_leaders_keeps_no_other_from_its_start_and_is_not_asked_for_again_at_once(
    cluster: Cluster,
) -> None:
    cluster.counts = {("bad", 0): 3, ("good", 0): 3}
    cluster.leaderless = {"bad"}
    log = opened()

    for partition in (0, IDLE):
        with pytest.raises(LogError, match="no leader"):
            log.latest("bad", "id", partition)
    assert log.latest("good", "id", 0) == 3
    with pytest.raises(LogError, match="no leader"):
        log.latest("bad", "id", 0)

    assert cluster.asked.count({"bad"}) == 1


def test_a_topic_that_a_broker_does_not_know_yet_has_no_start_rather_than_one_at_0(cluster: Cluster) -> None:
    """A 0 would be recorded, and be where the group begins for good, once a broker that has just started knows it."""
    cluster.counts["t", 0] = 100
    cluster.unknown = {"t"}
    starts = Starts(opened(), StartRule.parse("end", "latest"))
    t0 = TopicPartition("t", 0)

    with pytest.raises(UnknownTopic, match="no such topic"):
        starts.find(t0, "id", came_later=False)
    cluster.unknown.clear()

    assert starts.find(t0, "id", came_later=False).offset == 100


def test_the_end_of_a_topic_that_a_broker_does_not_know_yet_is_not_told_as_0_nor_sought(cluster: Cluster) -> None:
    cluster.counts["t", 0] = 100
    cluster.unknown = {"t"}
    t0 = TopicPartition("t", 0)
    consumer = Asking(opened(), {t0: Start("id", 40)})

    with pytest.raises(UnknownTopic):
        consumer.end_offsets([t0])
    with pytest.raises(UnknownTopic):
        consumer.seek_to_end(t0)
    assert consumer.position(t0) == 40
    cluster.unknown.clear()

    assert consumer.end_offsets([t0]) == {t0: 100}


class Asking(Control):
    """A consumer that holds partitions, and is only asked."""

    def __init__(self, log: KafkaLog, held: Mapping[TopicPartition, Start]) -> None:
        config = ConsumerConfig("zk:2181", "g", "c1")
        self._log = log
        self._member: Any = SimpleNamespace(channel=None)
        self._polling = Polling(config, Fetcher(log), ManualRuntime(), lambda fetched: None, lambda jumps: None)
        self._polling.begin(held)

"""Kafka as a log on a modelled broker: buffered records after lost connections, and errors between records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.config import ConsumerConfig
from consumer.control import Control
from consumer.fetching.fetcher import Fetcher
from consumer.fetching.polling import Polling
from consumer.logs import LogError, OffsetOutOfRange, UnknownTopic
from consumer.logs.kafka.arrow_batches import Columns
from consumer.logs.kafka.client import AWAY, CORRUPT, CREDENTIALS, EARLIEST, END, OTHER, OUT_OF_RANGE, Described, Signal
from consumer.logs.kafka.fairness import make_room
from consumer.logs.kafka.log import KafkaLog
from consumer.membership.start_offsets import Starts
from consumer.membership.start_position import StartRule
from consumer.types import Position
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.allocated import allocated_bytes
from tests.support.kafka import fetched
from tests.support.wait import PATIENCE, eventually
from tests.unit.manual import ManualRuntime

IDLE = 1
"""A partition of every topic that has no records: to fetch it is to poll, and to get nothing."""


class Cluster:
    """Brokers whose topics all have the id `id`, and the partitions 0 and 1.

    :ivar counts: how many records a partition has.
    :ivar size: how large each is.
    :ivar unknown: topics that are unknown to the brokers yet.
    :ivar leaderless: topics without an offset on any broker.
    :ivar refuses: whether they refuse the credentials.
    :ivar asked: the topics of each question for offsets.
    :ivar spoil: is called with each poll that took records out of the queue.
    :ivar ahead: how many records a client fetches ahead of what is taken out of its queue.
    :ivar taken: how many records clients have fetched from the brokers.
    :ivar lost: librdkafka's error that all brokers are down, behind the records queued now; "" for none.
    :ivar is_mute: whether they leave questions unanswered.
    :ivar now: the time.
    :ivar known: the servers that clients were made with.
    :ivar is_unfair: whether clients begin each answer with the same partitions, ten records each, until it is full.
    :ivar damaged: partitions whose first record is damaged.
    :ivar cut: partitions that were cut off at an offset, behind which clients had fetched.
    :ivar failing: partitions of which the brokers have only errors behind what they have given.
    :ivar failures: librdkafka's errors of failed connections, at each poll.
    :ivar described: the topics of each question what is known of them.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}
        self.size = 10
        self.unknown: set[str] = set()
        self.leaderless: set[str] = set()
        self.refuses = False
        self.asked: list[set[str]] = []
        self.spoil: Callable[[], None] = lambda: None
        self.ahead = 0
        self.taken = 0
        self.lost = ""
        self.is_mute = False
        self.now: Callable[[], float] = lambda: 0.0
        self.known: list[str] = []
        self.is_unfair = False
        self.damaged: set[tuple[str, int]] = set()
        self.cut: dict[tuple[str, int], int] = {}
        self.failing: set[tuple[str, int]] = set()
        self.failures: list[str] = []
        self.described: list[set[str]] = []

    def client(self, servers: str, options: Mapping[str, str]) -> Client:
        self.known.append(servers)
        return Ahead(self, servers) if self.ahead else Client(self, servers)


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
    """In place of `KafkaClient`: each poll returns up to five records of each assigned partition."""

    def __init__(self, cluster: Cluster, servers: str) -> None:
        self.servers = servers
        self._cluster = cluster
        self._assigned: dict[tuple[str, int], int] = {}
        self._is_closed = False

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
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        return [Signal(CREDENTIALS, "", -1, -1, "not this user")] if self._cluster.refuses else []

    def describe(self, topics: Iterable[str]) -> Answered:
        topics = set(topics)
        self._cluster.described.append(topics)
        return Answered({topic: self._described(topic) for topic in topics})

    def _described(self, topic: str) -> Described | LogError:
        if self._cluster.is_mute:
            return LogError("no answer")
        if topic in self._cluster.unknown:
            return Described("", frozenset(), "Kafka has no such topic")
        return Described("id", frozenset(range(20)))

    def offsets(self, wanted: Mapping[tuple[str, int], int]) -> Answered:
        self._cluster.asked.append({topic for topic, _ in wanted})
        return Answered({place: self._offset(place, what) for place, what in wanted.items()})

    def _offset(self, place: tuple[str, int], what: int) -> int | LogError:
        if place[0] in self._cluster.leaderless:
            return LogError("no leader")
        return 0 if what == EARLIEST else self._cluster.cut.get(place, self._cluster.counts.get(place, 0))

    def close(self) -> None:
        self._assigned.clear()
        self._is_closed = True


class Ahead(Client):
    """A client that fetches ahead, as librdkafka does: into one queue, the partitions in turn, five records each.

    Queued records of an unassigned partition are not returned. The end of a partition is reported when it is reached.
    """

    def __init__(self, cluster: Cluster, servers: str) -> None:
        super().__init__(cluster, servers)
        self._queue: list[tuple[str, int, range]] = []
        self._outage_signals: list[Signal] = []
        self._begun: set[tuple[str, int]] = set()
        self._since: dict[tuple[str, int], float] = {}
        self._answers_at = 0.0

    def assign(self, topic: str, partition: int, offset: int) -> None:
        super().assign(topic, partition, offset)
        self._begun.add((topic, partition))
        self._since[topic, partition] = self._cluster.now()

    def unassign(self, topic: str, partition: int) -> None:
        super().unassign(topic, partition)
        self._queue = [item for item in self._queue if item[:2] != (topic, partition)]
        self._answers_at = self._cluster.now() + 0.1  # records on their way, useless now, are returned first

    def consume(self, most: int) -> list[Columns | Signal]:
        if not most:
            return []  # nor are the events between records
        while not self._cluster.lost and self._fetch_ahead():
            pass
        found: list[Columns | Signal] = []
        while self._queue and most > 0:
            topic, partition, offsets = self._queue.pop(0)
            if not offsets:
                found.append(self._after((topic, partition), offsets.start))
                continue
            if len(offsets) > most:
                self._queue.insert(0, (topic, partition, offsets[most:]))
            found.append(records(topic, partition, offsets[:most], self._cluster.size))
            most -= len(offsets)
        if self._cluster.lost and not self._queue:
            self._outage_signals.append(Signal(AWAY, "", -1, -1, self._cluster.lost))
            self._cluster.lost, self._cluster.is_mute = "", True
        return found

    def events(self) -> list[Signal]:
        logged, self._outage_signals = self._outage_signals, []
        failures = [Signal(OTHER, "", -1, -1, text) for text in self._cluster.failures]
        return [*super().events(), *failures, *logged]

    def _after(self, place: tuple[str, int], offset: int) -> Signal:
        if place in self._cluster.failing:
            return Signal(OTHER, *place, -1001, "Broker: Unknown error")
        if place in self._cluster.damaged:
            return Signal(CORRUPT, *place, offset, "")
        return Signal(OUT_OF_RANGE if place in self._cluster.cut else END, *place, offset, "")

    def _fetch_ahead(self) -> int:
        """One answer of the broker; how many records are in it."""
        before, most, room = self._cluster.taken, 5, self._cluster.ahead
        if self._cluster.is_unfair:
            is_due = self._queued() < room and self._cluster.now() >= self._answers_at
            most, room = 10, room if is_due else 0
        for place, first in sorted(self._assigned.items()) if self._cluster.is_unfair else list(self._assigned.items()):
            end = min(self._cluster.counts.get(place, 0), first + most) if place not in self._cluster.damaged else first
            if self._since[place] == self._cluster.now():
                continue  # the broker has not answered yet
            if end > first and (self._cluster.taken - before if self._cluster.is_unfair else self._queued()) < room:
                if not self._cluster.is_unfair:
                    del self._assigned[place]  # the others precede its next turn
                self._assigned[place] = end
                self._queue.append((*place, range(first, end)))
                self._cluster.taken += end - first
                self._begun.add(place)
            elif end <= first and place in self._begun:
                self._queue.append((*place, range(first, first)))
                self._begun.remove(place)
        return self._cluster.taken - before

    def _queued(self) -> int:
        return sum(len(offsets) for _, _, offsets in self._queue)


class Mixed(Client):
    """A client whose looks bring 99 records of the partition 0 of a topic, and then one of the partition 1."""

    def consume(self, most: int) -> list[Columns | Signal]:
        if len(self._assigned) < 2:
            return []
        topic, size = next(iter(self._assigned))[0], self._cluster.size
        many, one = (self._moved((topic, number), count) for number, count in ((0, 99), (1, 1)))
        first, second = records(topic, 0, many, size), records(topic, 1, one, size)
        return [Columns(*(before + after for before, after in zip(first, second, strict=True)))]

    def _moved(self, place: tuple[str, int], count: int) -> range:
        first = self._assigned[place]
        self._assigned[place] += count
        return range(first, first + count)


def records(topic: str, partition: int, offsets: range, size: int) -> Columns:
    count = len(offsets)
    values: list[bytes | None] = [b"x" * size] * count
    return Columns(
        [topic] * count, [partition] * count, list(offsets), [None] * count, values, [(1, 5)] * count, [None] * count
    )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr("consumer.logs.kafka.log.KafkaClient", made.client)
    monkeypatch.setattr("consumer.logs.kafka.log.EMPTY_POLL_BACKOFF_S", 0.0)
    monkeypatch.setattr("consumer.logs.kafka.log.CREDENTIALS_RETRY_S", 0.0)
    return made


def opened() -> KafkaLog:
    """A log of the cluster that the fixture has made."""
    return KafkaLog(lambda: "a:1", {})


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


# ---- records


def test_buffered_records_of_a_closed_connection_take_no_room_from_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.logs.kafka.log.BUFFER_BYTES", 8_000)
    cluster.counts["t", 0] = 10
    cluster.size = 1000
    log = opened()
    log.fetch("t", "id", 0, 0, 0, 0)
    log.fetch("t", "id", IDLE, 0, 1 << 20, 1)  # and the buffer is full of records of the other

    cluster.refuses = True
    with pytest.raises(LogError, match="refuses the credentials"):
        log.latest("t", "id", 0)
    cluster.refuses = False

    assert offsets_of(fetched(log, "t", "id", upto=10)) == list(range(10))


def test_records_lost_to_an_unexpected_error_are_fetched_again(cluster: Cluster) -> None:
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


def test_records_lost_to_an_error_are_refetched_though_no_partition_is_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation that fails."""
    cluster.counts = {("t", 0): 15, ("u", 0): 15}
    log = opened()
    for topic in ("t", "u"):
        log.fetch(topic, "id", 0, 0, 0, 0)

    def fail(*_: object) -> None:
        raise MemoryError("no room for a batch")

    cluster.spoil = fail
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(Client, "unassign", fail)
        log.fetch("t", "id", 0, 0, 1 << 20, 1000)
    cluster.spoil = lambda: None

    for topic in ("t", "u"):
        assert offsets_of(fetched(log, topic, "id", upto=15)) == list(range(15))


def test_metadata_of_a_deleted_topic_affects_no_partition_of_its_successor(cluster: Cluster) -> None:
    log = opened()
    log.fetch("t", "old", 0, 0, 1 << 20, 10)  # the query is sent, and the answer is on its way
    cluster.counts["t", 0] = 5

    assert log.fetch("t", "id", 0, 0, 1 << 20, 10).next_offset == 5


# ---- slow applications


RECORD = 1100
"""Bytes of a record of 1,000, about."""


class Desk:
    """An application that asks for a partition when it has nothing of it any more, in a time that is made up.

    The client holds 100 records ahead, and the log 400; a poll brings ten.
    """

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("consumer.logs.kafka.log.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("consumer.logs.kafka.log.BUFFER_BYTES", 400 * RECORD)
        monkeypatch.setattr("consumer.logs.kafka.log.POLL_RECORDS", 10)
        cluster.size, cluster.ahead, cluster.now = 1000, 100, lambda: self.now
        self.log = opened()
        self.offsets: dict[int, int] = {}
        self.has: dict[int, int] = {}
        self.most = 0

    def ask(self, partition: int, most: int = 10, passes_s: float = 0.02) -> int:
        """The number of returned records, which are the expected ones."""
        first = self.offsets.get(partition, 0)
        batches, self.offsets[partition] = self.log.fetch("t", "id", partition, first, most * RECORD, most)
        came = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert came == list(range(first, self.offsets[partition]))
        self.most = max(self.most, self.log._room.size)
        self.now += passes_s
        return len(came)

    def poll(self, partitions: Iterable[int], passes_s: float) -> None:
        """Consumes ten records of one partition, while partitions without buffered records are polled."""
        partitions = list(partitions)
        until = self.now + passes_s
        turn = next((partition for partition in self.has if self.has[partition]), None)
        if turn is not None:
            self.has[turn] = max(0, self.has.pop(turn) - 10)
        while True:
            for partition in partitions:
                if not self.has.get(partition):
                    self.has[partition] = self.ask(partition, 20, 0.0)
            self.now += 0.02
            if self.now >= until:
                break
        self.now = until

    @property
    def returned(self) -> int:
        return sum(self.offsets.values())


@pytest.fixture
def desk(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(cluster, monkeypatch)


def test_slow_application_fetches_each_record_once_while_polling_an_idle_partition(
    cluster: Cluster, desk: Desk
) -> None:
    cluster.counts["t", 0] = 4000
    while desk.returned < 4000:
        desk.poll([0, IDLE], 1.0)

    assert cluster.taken == 4000
    assert desk.most <= 410 * RECORD


def test_slow_application_that_alternates_partitions_fetches_little_extra(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", partition): 400 for partition in range(12)}
    while desk.returned < 12 * 400:
        desk.poll(range(13), 1.0)

    assert cluster.taken <= 1.1 * 12 * 400
    assert desk.most <= 410 * RECORD
    assert (desk.log._room.size, desk.log._room.held) == (0, 0)


def test_slow_application_fetches_little_extra_despite_a_sparse_second_partition(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", 0): 4000, ("t", IDLE): 0}
    late = 0
    while desk.offsets.get(0, 0) < 4000:
        late = max(late, cluster.counts["t", IDLE] - desk.offsets.get(IDLE, 0))
        cluster.counts["t", IDLE] += 1
        desk.poll([0, IDLE], 2.0)

    assert cluster.taken <= 1.2 * desk.returned
    assert late <= 2
    assert desk.most <= 410 * RECORD


def test_nearly_consumed_partition_is_not_paused_for_another(cluster: Cluster, desk: Desk) -> None:
    """An occasional record of the other partition is returned once the queue has moved on."""
    cluster.counts = {("t", 0): 10_000, ("t", IDLE): 0}
    while desk.offsets.get(0, 0) < 10_000:
        cluster.counts["t", IDLE] += 1
        desk.ask(0, 20)
        for _ in range(3):
            desk.ask(IDLE)

    assert cluster.taken <= 10_000 + cluster.counts["t", IDLE]
    assert cluster.counts["t", IDLE] - desk.offsets[IDLE] < 10


@pytest.mark.parametrize("most", [20, 400])
def test_every_partition_is_served_though_the_first_ones_fill_the_prefetch_queue(
    cluster: Cluster, desk: Desk, most: int
) -> None:
    """Whenever it had too much librdkafka begins with the same ones again; before a slow reader it always has."""
    cluster.counts = {("t", partition): 1_000_000 for partition in range(19)} | {("t", 19): 10}
    cluster.is_unfair = True
    began = desk.now
    last, gaps = [began] * 20, [0.0] * 20
    while desk.now < began + 25:
        for partition in range(20):
            first = desk.offsets.get(partition, 0)
            if desk.ask(partition, most, 0.005) or first == cluster.counts["t", partition]:
                gaps[partition] = max(gaps[partition], desk.now - last[partition])
                last[partition] = desk.now

    assert max(*gaps, desk.now - min(last)) < 4
    assert cluster.taken <= 1.1 * desk.returned
    assert desk.most <= 410 * RECORD


def test_end_offsets_are_not_queried_again_while_all_partitions_are_idle(cluster: Cluster, desk: Desk) -> None:
    """For any number of records since the first request of the idle one: a large query takes the brokers' time."""
    cluster.counts = {("t", 0): 1000}
    while desk.offsets.get(0, 0) < 1000:
        desk.ask(0)
        desk.ask(IDLE)
    for _ in range(100):
        desk.ask(0)
        desk.ask(IDLE)
    cluster.asked.clear()
    for _ in range(2000):
        desk.ask(0)
        desk.ask(IDLE)

    assert len(cluster.asked) <= 1


def test_no_partition_is_paused_for_a_damaged_one(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", 0): 4000, ("t", IDLE): 10}
    cluster.damaged = {("t", IDLE)}
    desk.ask(IDLE)
    with pytest.raises(LogError, match="are damaged"):
        desk.ask(IDLE)
    until = desk.now + 9  # it is tried again after ten seconds
    while desk.now < until:
        desk.ask(0, passes_s=0.1)
        with pytest.raises(LogError, match="are damaged"):
            desk.ask(IDLE, passes_s=0.0)
        assert desk.log._parts["t", 0].is_assigned

    assert desk.log._room.size >= 400 * RECORD


def test_pause_of_the_application_refetches_no_record(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", partition): 100 for partition in range(3)}
    while desk.returned < 3 * 100:
        for partition in range(3):
            desk.ask(partition, passes_s=300.0)

    assert cluster.taken == 3 * 100


def test_records_behind_a_partition_polled_one_record_at_a_time_arrive_soon(cluster: Cluster, desk: Desk) -> None:
    cluster.counts["t", 0] = 4000
    for _ in range(100):
        desk.ask(IDLE)
        desk.ask(0, 1)
    cluster.counts["t", IDLE] = 50
    begun = desk.now
    while desk.offsets[IDLE] < 50:
        desk.ask(0, 1)
        desk.ask(IDLE)

    assert desk.now - begun < 2
    assert desk.most <= 410 * RECORD


def test_released_partition_is_not_fetched_and_its_memory_is_freed_when_needed(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", 0): 4000, ("t", IDLE): 8000}
    desk.ask(0)
    while desk.offsets.get(IDLE, 0) < 8000:
        desk.ask(IDLE, 100, 0.2)
    held = desk.log._parts

    assert [key for key, part in held.items() if part.is_assigned] == [("t", IDLE)]
    assert cluster.taken <= 8000 + 600
    assert desk.most <= 410 * RECORD
    assert desk.ask(0) <= 10  # and resumes at its position


def test_buffered_records_of_a_paused_partition_hold_no_memory_of_other_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 1 << 20
    monkeypatch.setattr("consumer.logs.kafka.log.BUFFER_BYTES", bound)
    monkeypatch.setattr(cluster, "client", lambda servers, options: Mixed(cluster, servers))
    monkeypatch.setattr("consumer.logs.kafka.log.KafkaClient", cluster.client)
    cluster.size = 1000
    log = opened()
    before = allocated_bytes()
    log.fetch("t", "id", IDLE, 0, 1, 1)
    most = offset = 0
    while offset < 20_000:
        offset = log.fetch("t", "id", 0, offset, bound, 1000).next_offset
        most = max(most, allocated_bytes() - before)

    assert log._room.size > 100 * cluster.size, "some wait"
    assert most < 4 * bound
    first, end = log._parts["t", IDLE].position, log._parts["t", IDLE].tail
    assert offsets_of(fetched(log, "t", "id", first, IDLE, upto=end)) == list(range(first, end))


# ---- brokers that are away


def test_outage_is_noticed_while_a_full_buffer_holds_the_requested_partition(cluster: Cluster, desk: Desk) -> None:
    cluster.counts["t", 0] = 450
    desk.ask(0, 1)
    while desk.log._room.size < 400 * RECORD:
        desk.ask(IDLE)
    cluster.lost = "1/1 brokers are down"
    for _ in range(30):  # a few records precede it
        desk.ask(0, 1, 1.0)

    assert desk.log.outages == 1
    assert desk.most <= 410 * RECORD
    assert desk.ask(0) == 10


def test_outage_is_reported_although_records_arrive_with_its_event(cluster: Cluster, desk: Desk) -> None:
    """As is usual while a slow application has a full queue."""
    cluster.counts["t", 0] = 15
    desk.ask(0, 1)
    desk.ask(0, 1)
    cluster.lost = "1/1 brokers are down"
    for _ in range(100):
        desk.ask(0)

    assert desk.offsets[0] == 10  # the topic of the others is unconfirmed
    assert desk.log.outages == 1


def test_outage_is_noticed_while_enough_unconfirmed_records_are_buffered(cluster: Cluster, desk: Desk) -> None:
    """Otherwise brokers that have all moved would never be looked up again."""
    cluster.counts["t", 0] = 4000
    desk.ask(0, 1)
    desk.ask(0, 1)
    cluster.lost, cluster.is_mute = "1/1 brokers are down", True
    for _ in range(30):  # some records precede it
        desk.ask(0, passes_s=1.0)

    assert desk.log.outages == 1
    assert desk.most <= 410 * RECORD


def test_moved_brokers_are_looked_up_again_though_the_queue_is_overfull(cluster: Cluster, desk: Desk) -> None:
    """Several brokers send more at once than the queue limit, and later events are not read."""
    places = ["a:1"]
    desk.log = KafkaLog(lambda: places[-1], {})
    cluster.counts["t", 0], cluster.ahead = 4000, 1000
    desk.ask(0, 1)
    desk.ask(0, 1)
    cluster.lost, cluster.is_mute = "1/1 brokers are down", True
    places.append("b:2")
    for _ in range(60):
        with suppress(LogError):
            desk.ask(0, 500, passes_s=1.0)

    assert cluster.known[-1] == "b:2"
    assert desk.most <= 410 * RECORD


def test_unconfirming_brokers_are_not_reported_down_when_their_lookup_fails(cluster: Cluster, desk: Desk) -> None:
    def find() -> str:
        if cluster.known:
            raise LogError("ZooKeeper does not answer")
        return "a:1"

    cluster.known.clear()
    desk.log = KafkaLog(find, {})
    cluster.is_mute = True
    with pytest.raises(LogError, match=r"^Kafka has not confirmed topic t"):
        for _ in range(60):
            desk.ask(0, passes_s=0.5)
    with pytest.raises(LogError, match=r"^Kafka has not confirmed topic t"):
        desk.ask(0)

    assert desk.log.outages == 0


@pytest.mark.parametrize("is_mute", [False, True], ids=["back", "gone"])
def test_outage_that_is_over_is_not_reported(
    cluster: Cluster, desk: Desk, is_mute: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.counts["t", 0] = 15
    desk.ask(0, 1)
    desk.ask(0, 1)
    cluster.lost = "1/1 brokers are down"
    for _ in range(100):
        desk.ask(0)
        cluster.is_mute = is_mute

    assert desk.log.outages == is_mute
    assert ("all Kafka brokers down" in caplog.text, "Kafka brokers available" in caplog.text) == (is_mute, False)


def test_returned_brokers_are_noticed_although_no_new_records_arrive(
    cluster: Cluster, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise they would be looked up every ten seconds, without any fetch, until the next record arrives."""
    caplog.set_level(logging.INFO)
    cluster.counts["t", 0] = 10
    while desk.offsets.get(0, 0) < 10:
        desk.ask(0)
    for _ in range(5):
        desk.ask(0, passes_s=1.0)
    cluster.lost = "1/1 brokers are down"
    for _ in range(5):
        desk.ask(0, passes_s=1.0)
    assert (desk.log.outages, "Kafka brokers available" in caplog.text) == (1, False)

    cluster.is_mute = False
    for _ in range(5):
        desk.ask(0, passes_s=1.0)

    assert "Kafka brokers available" in caplog.text
    assert desk.log.outages == 1


def test_brokers_that_have_all_moved_are_looked_up_again_while_none_answers(cluster: Cluster, desk: Desk) -> None:
    places = ["a:1"]
    looked: list[float] = []

    def find() -> str:
        looked.append(desk.now)
        return places[-1]

    desk.log = KafkaLog(find, {})
    cluster.counts["t", 0] = 10
    while desk.offsets.get(0, 0) < 10:
        desk.ask(0)
    for _ in range(60):
        desk.ask(0, passes_s=1.0)
    assert len(looked) == 1

    cluster.lost = "1/1 brokers are down"
    for _ in range(15):
        desk.ask(0, passes_s=1.0)
    places.append("b:2")
    for _ in range(10):
        desk.ask(0, passes_s=1.0)
    cluster.is_mute, cluster.counts["t", 0] = False, 20
    while desk.offsets[0] < 20:
        desk.ask(0)

    assert cluster.known[-2:] == ["a:1", "b:2"]
    assert [round(later - earlier) for earlier, later in pairwise(looked[1:])] == [10] * (len(looked) - 2)
    assert desk.log.outages == 1


def test_fetching_does_not_wait_for_a_slow_broker_lookup_in_zookeeper(cluster: Cluster, desk: Desk) -> None:
    places, answer = ["a:1"], threading.Event()

    def find() -> str:
        assert len(places) == 1 or answer.wait(10 * PATIENCE), "a fetch waits for it"
        return places[-1]

    desk.log = KafkaLog(find, {})
    cluster.counts = {("t", 0): 20, ("t", IDLE): 10}
    while desk.offsets.get(IDLE, 0) < 10:
        desk.ask(IDLE)
    while not desk.offsets.get(0):
        desk.ask(0, 1)
    desk.now += 10.0
    cluster.lost = "1/1 brokers are down"
    places.append("b:2")
    while not desk.log.outages:
        desk.ask(IDLE)

    assert desk.ask(0, 5) > 0  # which has waited
    desk.log.released("t", IDLE)
    assert (cluster.known[-1], list(desk.log._parts)) == ("a:1", [("t", 0)])

    answer.set()
    cluster.is_mute = False
    eventually(lambda: desk.ask(0) >= 0 and desk.offsets[0] == 20, 10, "the consumer continues with the other servers")
    assert cluster.known[-1] == "b:2"


def test_failed_client_creation_for_moved_brokers_leaves_no_closed_client_behind(
    cluster: Cluster, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["a:1"]

    def client(servers: str, options: Mapping[str, str]) -> Client:
        if servers == "b:2" and desk.now < 1030:
            raise UsageError("a certificate cannot be read")
        return cluster.client(servers, options)

    monkeypatch.setattr("consumer.logs.kafka.log.KafkaClient", client)
    desk.log = KafkaLog(lambda: places[-1], {})
    cluster.counts["t", 0] = 10
    while desk.offsets.get(0, 0) < 10:
        desk.ask(0)
    cluster.lost = "1/1 brokers are down"
    places.append("b:2")
    while desk.now < 1040:
        with suppress(UsageError):
            desk.ask(0)
        desk.now += 1.0
    cluster.is_mute, cluster.counts["t", 0] = False, 20
    while desk.offsets[0] < 20:
        desk.ask(0)


# ---- offsets out of range


def test_out_of_range_offset_is_not_reported_for_another_that_is_reached_again(cluster: Cluster, desk: Desk) -> None:
    """Earlier records gave way to records of others: the fetch position precedes it."""
    cluster.counts["t", 0], cluster.cut = 8, {("t", 0): 4}
    desk.ask(0, 1)
    assert desk.ask(0, 1) == 1
    assert make_room(desk.log._parts.values(), desk.log._room, desk.log._room.size) == []

    with pytest.raises(OffsetOutOfRange) as refused:
        while desk.ask(0, 1):
            pass
        for _ in range(10):
            desk.ask(0, 1)
    assert str(refused.value).startswith(f"offset {desk.offsets[0]} of t-0 is out of range")


def test_broker_unreachable_for_long_is_logged_once_while_others_answer(
    cluster: Cluster, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions that it leads have nothing, and there is no outage."""

    def logged() -> list[str]:
        return [message for message in caplog.messages if "broker unreachable" in message]

    first, second = (f"ssl://b:2/{name}: SSL handshake failed: wrong version number" for name in ("bootstrap", "2"))
    cluster.counts["t", 0] = 10
    cluster.failures = ["ssl://c:3/3: Disconnected"]
    desk.ask(0)
    cluster.failures = [first, second, "GroupCoordinator: Connect failed"]
    for _ in range(9):
        desk.ask(0, passes_s=1.0)
    assert logged() == []
    for _ in range(100):
        desk.ask(0, passes_s=1.0)
    assert logged() == [f"Kafka broker unreachable: servers=a:1 reason={first}"]

    cluster.failures = []
    for _ in range(60):
        desk.ask(0, passes_s=1.0)
    cluster.failures = [second]
    for _ in range(20):
        desk.ask(0, passes_s=1.0)
    assert logged()[1:] == [f"Kafka broker unreachable: servers=a:1 reason={second}"]
    assert desk.log.outages == 0


def test_two_disconnections_within_half_a_minute_are_no_unreachable_broker(
    cluster: Cluster, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.counts["t", 0] = 10
    for failures in (["b:2/2: Disconnected"], [], ["b:2/2: Disconnected"], []):
        cluster.failures = failures
        desk.ask(0, passes_s=0.0)
        cluster.failures = []
        desk.ask(0, passes_s=7.0)

    assert "broker unreachable" not in caplog.text


def test_unreachable_broker_is_not_logged_while_all_brokers_are_down(
    cluster: Cluster, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.lost, cluster.failures = "1/1 brokers are down", ["a:1/1: Connect failed"]
    for _ in range(60):
        desk.ask(0, passes_s=1.0)

    cluster.is_mute = False
    for _ in range(5):
        desk.ask(0, passes_s=1.0)

    assert (desk.log.outages, desk.log._outage.since) == (1, None)
    assert "broker unreachable" not in caplog.text


def test_unconfirmed_topic_is_reported_with_the_reason_unless_all_brokers_are_down(
    cluster: Cluster, desk: Desk
) -> None:
    """As with brokers that cannot be queried or do not answer: buffered records wait."""
    cluster.counts["t", 0] = 20
    while desk.offsets.get(0, 0) < 10:
        desk.ask(0)
    cluster.is_mute = True
    begun = desk.now
    with pytest.raises(LogError, match=r"^Kafka has not confirmed topic t with id id, asked again: no answer$"):
        for _ in range(60):
            desk.ask(0, passes_s=0.5)
    assert 9 < desk.now - begun < 15
    cluster.is_mute = False
    begun = desk.now
    while desk.offsets[0] < 20:
        with suppress(LogError):
            desk.ask(0)
        desk.now += 0.1
    assert desk.now - begun < 2

    cluster.lost, cluster.counts["t", 0] = "1/1 brokers are down", 30
    for _ in range(100):
        desk.ask(0, passes_s=0.5)
    assert desk.log.outages == 1


def test_valid_offset_is_not_reported_out_of_range_for_a_later_one(cluster: Cluster, desk: Desk) -> None:
    """Earlier records gave way before the brokers had reported their offsets."""
    cluster.counts["t", 0], cluster.cut = 10, {("t", 0): 8}
    desk.ask(0, 1)
    assert desk.ask(0, 1) == 1
    desk.ask(IDLE)
    assert ("t", 0) in desk.log._ranges
    make_room([desk.log._parts["t", 0]], desk.log._room, desk.log._room.size)
    assert desk.log._parts["t", 0].tail < 8

    with pytest.raises(LogError) as refused:
        for _ in range(100):
            desk.ask(0, 1)
    assert str(refused.value) == "offset 10 of t-0 is out of range: Kafka holds 0 to 8"


# ---- errors of a partition


def test_partition_error_is_reported_until_records_return_and_refetches_none(cluster: Cluster, desk: Desk) -> None:
    cluster.counts["t", 0] = 10
    cluster.failing = {("t", 0)}
    while desk.offsets.get(0, 0) < 10:
        desk.ask(0)
    with pytest.raises(LogError, match=r"^t-0 cannot be read, tried again: Broker: Unknown error$"):
        for _ in range(10):
            desk.ask(0)

    cluster.failing.clear()
    cluster.counts["t", 0] = 20
    with suppress(LogError):
        desk.ask(0)
    while desk.offsets[0] < 20:
        desk.ask(0)
    for _ in range(10):
        desk.ask(0)
    assert cluster.taken == 20


# ---- released partitions


def test_released_partition_is_unassigned_at_once_and_buffers_no_records(cluster: Cluster, desk: Desk) -> None:
    cluster.counts = {("t", 0): 4000, ("t", IDLE): 50}
    fetcher = Fetcher(desk.log)
    fetcher.begin({TopicPartition("t", number): Position("id", 0) for number in (0, IDLE)})
    for _ in range(10):
        fetcher.fetch(10, 10 * RECORD)
        desk.now += 0.1
    assert desk.log._parts["t", 0].is_assigned

    fetcher.end([TopicPartition("t", 0), TopicPartition("t", 7)])
    assert list(desk.log._parts) == [("t", IDLE)]
    assert desk.log._room.size == desk.log._parts["t", IDLE].size

    desk.offsets[0] = 3
    while desk.offsets[0] < 100:  # it is available again
        desk.ask(0)


def test_partition_is_released_although_the_log_is_closed_or_has_no_client(cluster: Cluster, desk: Desk) -> None:
    cluster.counts["t", 0] = 10
    desk.ask(0)
    cluster.refuses = True
    with pytest.raises(LogError, match="refuses the credentials"):
        desk.log.latest("t", "id", 0)
    desk.log.released("t", 0)
    cluster.refuses = False
    while desk.offsets[0] < 10:
        desk.ask(0)

    desk.log.close()
    desk.log.released("t", 0)


def test_topic_without_requests_is_not_queried_forever(cluster: Cluster, desk: Desk) -> None:
    cluster.unknown = {"gone"}
    with suppress(UnknownTopic):
        for _ in range(3):
            desk.log.fetch("gone", "id", 0, 0, 1, 1)
    for _ in range(100):
        desk.ask(IDLE, passes_s=1.0)
    assert {"gone"} in cluster.described
    cluster.described.clear()
    for _ in range(100):
        desk.ask(IDLE, passes_s=1.0)

    assert {"gone"} not in cluster.described


# ---- queries


def test_leaderless_topic_blocks_no_other_start_and_is_not_queried_again_at_once(
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


def test_record_written_during_a_query_by_time_is_not_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.counts["t", 0] = 3
    real_offset = Client._offset

    def overtaken(client: Client, place: tuple[str, int], what: int) -> int | LogError:
        if what < 0:
            return real_offset(client, place, what)
        cluster.counts[place] = cluster.counts.get(place, 0) + 1
        return -1

    monkeypatch.setattr(Client, "_offset", overtaken)

    assert opened().offset_for_timestamp("t", "id", 0, 5) == 3


def test_topic_unknown_to_a_broker_has_no_start_instead_of_0(cluster: Cluster) -> None:
    """A 0 would be recorded as the group's start, although a broker that just started learns the topic later."""
    cluster.counts["t", 0] = 100
    cluster.unknown = {"t"}
    starts = Starts(opened(), StartRule.parse("end", "latest"))
    t0 = TopicPartition("t", 0)

    with pytest.raises(UnknownTopic, match="no such topic"):
        starts.find(t0, "id", came_later=False)
    cluster.unknown.clear()

    assert starts.find(t0, "id", came_later=False).offset == 100


def test_end_of_a_topic_unknown_to_a_broker_is_neither_reported_as_0_nor_sought(cluster: Cluster) -> None:
    cluster.counts["t", 0] = 100
    cluster.unknown = {"t"}
    t0 = TopicPartition("t", 0)
    consumer = Asking(opened(), {t0: Position("id", 40)})

    with pytest.raises(UnknownTopic):
        consumer.end_offsets([t0])
    with pytest.raises(UnknownTopic):
        consumer.seek_to_end(t0)
    assert consumer.position(t0) == 40
    cluster.unknown.clear()

    assert consumer.end_offsets([t0]) == {t0: 100}


class Asking(Control):
    """A consumer that holds partitions, and is only queried."""

    def __init__(self, log: KafkaLog, held: Mapping[TopicPartition, Position]) -> None:
        config = ConsumerConfig("zk:2181", "g", "c1")
        self._config = config
        self._log = log
        self._member: Any = SimpleNamespace(channel=None)
        self._polling = Polling(
            config, Fetcher(log), ManualRuntime(), lambda fetched, checked: None, lambda jumps: None
        )
        self._polling.begin(held)

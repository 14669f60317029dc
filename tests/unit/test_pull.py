"""The source over a log whose partitions are fetched one by one."""

from __future__ import annotations

from collections.abc import Collection

from consumer.logs.base import NO_LIMITS, Fetched, FetchLimits, Log, LogError, Position, UnknownTopic
from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.sizedlog import SizedLog
from tests.unit.manual import ManualRuntime

MB = 1 << 20


class BadLog(SizedLog):
    """Topics that do not exist, and partitions that cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[tuple[str, str]] = set()
        self.bad: set[int] = set()
        self.asked: list[tuple[str, str, int]] = []

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        self.asked.append((topic, topic_id, partition))
        if (topic, topic_id) in self.unknown:
            raise UnknownTopic("no such topic")
        if partition in self.bad:
            raise LogError("bad disk")
        return super().fetch(topic, topic_id, partition, offset, max_bytes)


class Reader:
    def __init__(self, log: Log, limits: FetchLimits = NO_LIMITS, runtime: ManualRuntime | None = None) -> None:
        self.source = log.source(limits._replace(clock=(runtime or ManualRuntime()).monotonic))

    def assign(self, *partitions: int, topic: str = "t", topic_id: str = "id", offset: int = 0) -> None:
        self.source.assign({TopicPartition(topic, number): Position(topic_id, offset) for number in partitions})

    def poll(self, max_bytes: int = MB, wanted: Collection[int] | None = None) -> list[tuple[int, int, int]]:
        """(partition, first, next) of each fetch."""
        targets = None if wanted is None else {TopicPartition("t", number) for number in wanted}
        fetches = self.source.poll(max_bytes, targets)
        return [(fetch.partition.partition, fetch.first, fetch.next) for fetch in fetches]

    def problem(self, partition: int) -> str:
        return str(self.source.problems.get(TopicPartition("t", partition), ""))


def test_partitions_that_had_records_come_after_those_that_waited() -> None:
    log = SizedLog()
    for partition in range(3):
        log.append(partition, 30, 1000)
    reader = Reader(log, FetchLimits(max_partition_bytes=5000))
    reader.assign(0, 1, 2)

    order = [[number for number, _, _ in reader.poll(4500)] for _ in range(3)]

    assert order == [[0, 1], [2, 0], [1, 2]]


def test_poll_returns_at_most_its_bytes_and_those_of_a_partition() -> None:
    log = SizedLog()
    for partition in range(3):
        log.append(partition, 30, 1000)
    reader = Reader(log, FetchLimits(max_partition_bytes=5500))
    reader.assign(0, 1, 2)

    assert reader.poll() == [(number, 0, 5) for number in range(3)]
    assert reader.poll(6000) == [(0, 5, 10), (1, 5, 6)]
    assert reader.poll(0) == []


def test_time_limit_ends_a_poll_that_has_records_and_no_other() -> None:
    log, runtime = SizedLog(), ManualRuntime()
    log.takes_s = (runtime, 0.01)
    log.append(2, 10)
    log.append(3, 10)
    reader = Reader(log, FetchLimits(max_s=0.005), runtime)
    reader.assign(*range(4))

    assert reader.poll() == [(2, 0, 10)]
    assert log.fetched == [0, 1, 2]


def test_only_wanted_partitions_are_fetched() -> None:
    log = SizedLog()
    reader = Reader(log)
    reader.assign(*range(4))
    reader.poll(MB, [1, 3, 9])

    assert log.fetched == [1, 3]


def test_partitions_of_an_unknown_topic_are_asked_for_once_a_poll() -> None:
    log = BadLog()
    log.unknown = {("t", "id")}
    log.append(0, 5)
    reader = Reader(log)
    reader.assign(*range(5))
    reader.assign(5, topic_id="new")
    reader.assign(0, topic="u")

    assert reader.poll() == [(0, 0, 5)]
    assert log.asked == [("t", "id", 0), ("t", "new", 5), ("u", "id", 0)]


def test_problem_of_a_partition_is_over_when_it_is_fetched_assigned_or_released() -> None:
    log = BadLog()
    log.bad = {0, 1, 2}
    log.append(3, 5)
    reader = Reader(log)
    reader.assign(*range(4))
    assert reader.poll() == [(3, 0, 5)]
    assert [reader.problem(number) for number in range(4)] == ["bad disk"] * 3 + [""]

    reader.assign(1, offset=0)
    reader.source.release([TopicPartition("t", 2)])
    log.bad = set()
    assert [reader.problem(number) for number in range(4)] == ["bad disk", "", "", ""]
    reader.poll()
    assert reader.problem(0) == ""


def test_reassigned_partition_continues_at_its_offset_and_a_released_one_ends() -> None:
    log = SizedLog()
    for partition in range(2):
        log.append(partition, 10)
    reader = Reader(log)
    reader.assign(0, 1)
    reader.poll()
    reader.assign(0, offset=7)
    reader.source.release([TopicPartition("t", 1)])
    log.append(1, 10)

    assert reader.poll() == [(0, 7, 10)]

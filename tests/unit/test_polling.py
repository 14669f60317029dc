"""Returned, fetched and buffered records of polls: KIP-41, on a log in memory and without a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from consumer.config import ConsumerConfig
from consumer.fetching.poll_order import share
from consumer.fetching.polling import Polling, fetcher_of
from consumer.fetching.record_buffer import Buffer, packed, records_of
from consumer.logs.base import (
    LOG_SCHEMA,
    NO_LIMITS,
    Fetch,
    Fetched,
    FetchLimits,
    Jump,
    Log,
    LogError,
    OffsetOutOfRange,
    Position,
    UnknownTopic,
)
from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.allocated import allocated_bytes
from tests.support.memlog import batch_of
from tests.support.sizedlog import SizedLog
from tests.unit.manual import ManualRuntime

A, B, C = (TopicPartition("t", number) for number in range(3))
MB = 1 << 20


class Desk:
    """A consumer's polling with partitions A, B and C, or some of them.

    :param records: how many there are of each partition of the topic.  :param size: of each, in bytes.
    """

    def __init__(
        self, *partitions: TopicPartition, records: Iterable[int] = (), size: int = 10, **options: Any
    ) -> None:
        self.jumps: list[Mapping[TopicPartition, Jump]] = []
        self.log = SizedLog()
        for number, count in enumerate(records):
            self.log.append(number, count, size)
        self.runtime = ManualRuntime()
        config = ConsumerConfig("zk:2181", "g", "c1", **options)
        fetcher = fetcher_of(config, self.log, None, self.runtime.monotonic)
        self.may_fetch = True
        self.checked: list[float] = []
        self.polling = Polling(config, fetcher, self.runtime, self._fetched, self.jumps.append, lambda: self.may_fetch)
        self.polling.begin(dict.fromkeys(partitions or (A, B, C), Position("id", 0)))

    def poll(self, most: int | None = None) -> dict[TopicPartition, int]:
        """Partition -> number of records that a poll returned, a while after the previous poll."""
        self.runtime.now += 2
        self.polling.looks.at_once()
        return {partition: len(records) for partition, records in self.polling.poll(most).items()}

    @property
    def retained(self) -> int:
        return self.polling.retained[0]

    def _fetched(self, fetched: Sequence[Fetch], checked: float) -> None:
        self.checked.append(checked)


# ---- number of records


def test_leftover_records_are_returned_by_later_polls_before_any_new_fetch() -> None:
    desk = Desk(A, records=[1000], max_poll_records=300, prefetch="total")

    assert (desk.poll(), len(desk.log.fetched)) == ({A: 300}, 1)
    assert (desk.poll(), len(desk.log.fetched)) == ({A: 300}, 1), "400 wait: enough for the next poll"
    desk.log.is_away = True
    assert desk.poll() == {A: 300}
    assert desk.poll() == {A: 100}
    assert desk.poll() == {}


@pytest.mark.parametrize(
    ("option", "most", "returned"), [(-1, None, 1000), (300, None, 300), (1, None, 1), (300, 20, 20), (300, 1000, 300)]
)
def test_a_poll_returns_at_most_its_bound_and_max_poll_records(option: int, most: int | None, returned: int) -> None:
    """Where -1 is none."""
    assert Desk(A, records=[1000], max_poll_records=option).poll(most) == {A: returned}


def test_empty_poll_fetches_and_returns_the_time_of_the_next_fetch() -> None:
    desk = Desk(A)

    assert desk.poll() == {}
    looks = len(desk.log.fetched)
    assert desk.polling.poll(None) == {}
    assert len(desk.log.fetched) == looks, "not before it is due"
    assert desk.polling.looks.wait_s > 0


def test_no_fetch_begins_after_the_lease_has_lapsed_and_buffered_records_stay() -> None:
    desk = Desk(A, records=[400], max_poll_records=300, prefetch="total")
    desk.poll()
    desk.may_fetch = False

    assert (desk.poll(), desk.poll()) == ({A: 100}, {})
    assert (len(desk.log.fetched), desk.checked) == (1, [1002.0])


# ---- choice of partitions


@pytest.mark.parametrize(
    ("order", "polls"),
    [
        ("greedy", [{A: 300}, {B: 300}, {C: 300}, {A: 100, B: 100, C: 100}]),
        ("proportional", [{A: 100, B: 100, C: 100}] * 4),
    ],
)
def test_kip_41_poll_of_300_is_of_one_or_100_of_each(order: str, polls: list[dict[TopicPartition, int]]) -> None:
    desk = Desk(records=[400] * 3, max_poll_records=300, poll_order=order, prefetch="total")

    assert [desk.poll() for _ in range(4)] == polls


def test_greedy_resumes_in_the_last_partition_of_the_previous_poll() -> None:
    desk = Desk(records=[100, 400, 400], max_poll_records=300, prefetch="total")

    assert [desk.poll() for _ in range(3)] == [{A: 100, B: 200}, {B: 200, C: 100}, {C: 300}]


# ---- prefetch


@pytest.mark.parametrize(
    ("prefetch", "order", "polls"),
    [("total", "greedy", 1000), ("total", "proportional", 1000), ("share", "greedy", 3), ("share", "proportional", 3)],
)
def test_kip_41_partition_waits_for_records_of_another(prefetch: str, order: str, polls: int) -> None:
    """KIP-41's example: max.poll.records is 1, and the first fetch brings 1,000 records of A and none of B."""
    desk = Desk(A, B, records=[1000], max_poll_records=1, prefetch=prefetch, poll_order=order)
    assert desk.poll() == {A: 1}
    desk.log.append(1, 1)

    waited = next(count for count in range(1, 2000) if B in desk.poll())

    assert waited == polls


def test_kip_41_total_prefetch_keeps_one_fetch_and_share_one_per_partition() -> None:
    kept = {}
    for prefetch in ("total", "share"):
        desk = Desk(A, B, records=[1000], max_poll_records=2, prefetch=prefetch)
        desk.poll()
        desk.log.append(1, 1000)
        desk.poll()
        kept[prefetch] = desk.retained

    assert kept == {"total": 996, "share": 1996}, "roughly twice as many, as in KIP-41"


@pytest.mark.parametrize(
    ("waiting", "fetchable", "fetched"),
    [
        ({}, {A, B, C}, {A, B, C}),
        ({A: 99, B: 100, C: 101}, {A, B, C}, {A}),
        ({A: 100}, {A}, set()),  # the other two are paused
        ({A: 300}, {A, B}, {B}),
    ],
)
def test_kip_41_share_is_a_poll_divided_by_the_assigned_partitions(
    waiting: dict[TopicPartition, int], fetchable: set[TopicPartition], fetched: set[TopicPartition]
) -> None:
    assert share(waiting, fetchable, 3, 300) == fetched


def test_idle_partitions_are_fetched_now_and_then_while_other_records_wait() -> None:
    desk = Desk(A, B, records=[1000], max_poll_records=1)
    desk.poll()
    desk.log.fetched.clear()

    for _ in range(100):
        desk.polling.looks.at_once()
        desk.polling.poll(None)

    assert desk.log.fetched == [1]


def test_fetch_from_a_slow_log_ends_with_its_first_records_and_resumes_there() -> None:
    partitions = [TopicPartition("t", number) for number in range(100)]
    desk = Desk(*partitions, records=[1] * 100)
    desk.log.takes_s = (desk.runtime, 0.002)
    polls, began = [], desk.runtime.now

    while len(polls) < 50 and sum(map(len, polls)) < 100:
        polls.append(desk.polling.poll(None))

    assert max(map(len, polls)) <= 3, "5 ms of looking"
    assert {partition for poll in polls for partition in poll} == set(partitions)
    assert desk.runtime.now - began < 0.21, "hardly any was fetched twice"


# ---- memory


def test_fetch_stays_within_the_bounds_per_partition_and_in_total() -> None:
    desk = Desk(
        records=[100] * 3, size=1000, max_poll_records=-1, max_partition_fetch_bytes=30_000, fetch_max_bytes=50_000
    )

    polled = desk.poll()

    assert 27 <= polled[A] <= 30
    assert 45 <= sum(polled.values()) + desk.retained <= 51, "but for one record"


def test_waiting_records_stay_within_the_buffer_for_any_number_of_partitions() -> None:
    partitions = [TopicPartition("t", number) for number in range(100)]
    desk = Desk(*partitions, records=[100] * 100, size=1000, max_poll_records=1, buffer_memory=200_000)

    sizes = []
    for _ in range(30):
        desk.poll()
        sizes.append(desk.polling.retained[1])

    assert max(sizes) <= 200_000 + 2000
    assert sizes[-1] >= 150_000, "it is used"


@pytest.mark.parametrize("order", ["greedy", "proportional"])
def test_a_record_that_is_larger_than_every_bound_is_returned_alone(order: str) -> None:
    desk = Desk(A, B, poll_order=order, max_partition_fetch_bytes=1000, fetch_max_bytes=2000, buffer_memory=4000)
    desk.log.append(0, 5)
    desk.log.append(1, 1, 50_000)
    desk.log.append(1, 5)

    polls = [desk.poll() for _ in range(4)]

    assert {B: 1} in polls
    assert sum(poll.get(A, 0) for poll in polls) == 5
    assert sum(poll.get(B, 0) for poll in polls) == 6


def test_poll_returns_at_most_fetch_max_bytes_and_resumes_with_the_truncated_one() -> None:
    desk = Desk(A, B, fetch_max_bytes=40_000, buffer_memory=1 * MB, prefetch="share", max_poll_records=30)
    desk.log.append(0, 100, 900)
    desk.log.append(1, 100, 2500)
    for _ in range(3):
        desk.poll(1)

    polls = [desk.poll() for _ in range(6)]

    assert all(900 * poll.get(A, 0) + 2500 * poll.get(B, 0) <= 40_000 for poll in polls)
    assert all(A in first or A in second for first, second in pairwise(polls))
    assert all(B in first or B in second for first, second in pairwise(polls))


def test_leftover_records_are_copied_out_of_the_fetched_batch() -> None:
    desk = Desk(A, max_poll_records=1, max_partition_fetch_bytes=20_000)
    desk.log.append(0, 2000, 1000)  # the log gives a piece of 20 kB of a batch of 2 MB
    before = allocated_bytes()

    desk.poll()

    assert 10_000 < desk.polling.retained[1] < 25_000
    assert allocated_bytes() - before < 30_000


def test_waiting_records_take_their_own_size_and_not_that_of_their_batch() -> None:
    whole = batch_of("t", 0, 0, [b"x" * 100] * 100_000)
    buffer = Buffer()
    buffer.begin({A: Position("id", 0)})
    before = allocated_bytes()
    buffer.add(Fetch(A, "id", 0, 10, [whole.slice(0, 10)]))
    buffer.pack()

    assert allocated_bytes() - before == pytest.approx(buffer.nbytes, abs=256)
    assert buffer.nbytes < 5000


def test_waiting_records_are_returned_unchanged() -> None:
    rows = [
        {"key": None, "value": b"v", "timestamp": 1_000_000, "headers": [{"key": "h", "value": b"x"}]},
        {"key": b"k", "value": None, "timestamp": None, "headers": None},
        {"key": b"", "value": b"", "timestamp": 2_000_000, "headers": [{"key": "h", "value": None}] * 2},
    ]
    same = {"topic": "t", "partition": 0, "timestampType": 1}
    full = [{**row, **same, "offset": offset} for offset, row in enumerate(rows)]
    columns = [pa.array([row[field.name] for row in full], field.type) for field in LOG_SCHEMA]
    for some in (slice(0, 3), slice(1, 2)):
        batch = pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA).slice(some.start, some.stop - some.start)
        waited, size = packed(batch)

        assert records_of(Fetch(A, "id", 0, 3, [waited])) == records_of(Fetch(A, "id", 0, 3, [batch]))
        assert size >= waited.nbytes


# ---- positions, pauses, seeks


def test_offsets_without_a_record_are_skipped() -> None:
    buffer = Buffer()
    buffer.begin({A: Position("id", 0), B: Position("id", 0)})
    buffer.add(Fetch(A, "id", 0, 5, [batch_of("t", 0, 0, [b"1", b"2"])]))
    buffer.add(Fetch(B, "id", 0, 7, []))

    assert buffer.positions[B].offset == 7, "nothing to return of it"
    buffer.take([(A, 1)], MB)
    assert buffer.positions[A].offset == 1
    buffer.take([(A, 1)], MB)
    assert buffer.positions[A].offset == 5, "no record follows the last one"


def test_waiting_records_of_a_paused_partition_are_returned_when_it_is_resumed() -> None:
    desk = Desk(A, B, records=[250], max_poll_records=100)
    desk.poll()
    desk.polling.pause([A])
    desk.log.append(1, 50)
    desk.log.fetched.clear()

    assert [desk.poll(), desk.poll()] == [{B: 50}, {}]
    assert (desk.retained, desk.polling.positions[A].offset) == (150, 100)
    assert 0 not in desk.log.fetched, "nor is it fetched"
    desk.polling.resume([A])
    assert [desk.poll(), desk.poll()] == [{A: 100}, {A: 50}]


def test_a_paused_partition_that_fills_the_buffer_does_not_stop_the_others() -> None:
    desk = Desk(A, B, max_poll_records=1, buffer_memory=2000)
    desk.log.append(0, 1, 1000)
    desk.log.append(1, 1, 5000)
    assert desk.poll() == {A: 1}
    desk.polling.pause([B])
    assert desk.polling.retained[1] > 2000
    desk.log.append(0, 5)

    assert [desk.poll() for _ in range(6)] == [{A: 1}] * 5 + [{}]


def test_waiting_records_and_pause_of_a_released_partition_are_dropped() -> None:
    desk = Desk(A, B, records=[250], max_poll_records=100)
    desk.poll()
    desk.polling.pause([A])

    desk.polling.end([A])

    assert (desk.polling.retained, desk.polling.paused, set(desk.polling.positions)) == ((0, 0), frozenset(), {B})
    desk.polling.begin({A: Position("id", 100)})
    assert desk.poll() == {A: 100}
    assert desk.polling.positions[A].offset == 200


def test_seek_drops_waiting_records_and_sets_the_position_of_the_next_poll() -> None:
    desk = Desk(A, records=[250], max_poll_records=10)
    desk.poll()

    desk.polling.seek(A, 200)

    assert (desk.polling.retained, desk.polling.positions[A].offset) == ((0, 0), 200)
    desk.runtime.now += 1
    assert [record.offset for record in desk.polling.poll(None)[A]] == list(range(200, 210))


@pytest.mark.parametrize("prefetch", ["share", "total"])
def test_records_withheld_by_a_failed_prefetch_come_next(prefetch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(A, B, records=[8], max_poll_records=5, prefetch=prefetch)
    assert desk.poll() == {A: 5}

    def broken(*args: Any) -> Any:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(desk.log, "fetch", broken)
        with pytest.raises(RuntimeError):
            desk.poll()
    assert desk.polling.positions[A].offset == 5, "a commit does not go over them"

    desk.runtime.now += 2
    assert [record.offset for record in desk.polling.poll(None)[A]] == [5, 6, 7]


# ---- out of range


def test_buffered_records_are_returned_before_a_partition_skips_a_gap_in_the_log() -> None:
    desk = Desk(A, records=[250], max_poll_records=100)
    assert desk.poll() == {A: 100}

    desk.log.append(0, 190)
    desk.log.begin = 400

    assert [desk.poll() for _ in range(2)] == [{A: 100}, {A: 50}]
    assert (desk.jumps, desk.polling.positions[A].offset) == ([], 250)
    assert desk.poll() == {A: 40}
    assert desk.jumps == [{A: Jump("id", 250, 400)}]


def test_waiting_records_are_returned_before_the_error_of_reset_none() -> None:
    desk = Desk(A, records=[250], max_poll_records=100, auto_offset_reset="none")
    assert desk.poll() == {A: 100}

    desk.log.begin = 400

    assert [desk.poll() for _ in range(2)] == [{A: 100}, {A: 50}]
    with pytest.raises(OffsetOutOfRange, match="auto_offset_reset is none"):
        desk.poll()
    assert desk.polling.positions[A].offset == 250


# ---- the source over a log whose partitions are fetched one by one


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

"""Returned, fetched and buffered records of polls: KIP-41, on a log in memory and without a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.memlog import SizedLog, batch_of
from tests.support.stories import play, stories
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.fetching.partition_state import PartitionState
from zk_group.consumer.fetching.poll_order import share
from zk_group.consumer.fetching.polling import Polling, fetcher_of
from zk_group.consumer.fetching.record_buffer import Buffer, packed, records_of
from zk_group.consumer.logs.base import (
    LOG_SCHEMA,
    NO_LIMITS,
    POOL,
    Fetch,
    Fetched,
    Jump,
    LogError,
    OffsetOutOfRange,
    Position,
    UnknownTopic,
)
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))
NAMES = "ABCDE"
MB = 1 << 20


def allocated_bytes() -> int:
    """Of all pools: what waits may be in another than the default one."""
    pools = {pool.backend_name: pool for pool in (pa.default_memory_pool(), POOL)}
    return sum(pool.bytes_allocated() for pool in pools.values())


class BadLog(SizedLog):
    """A topic may be unknown (`t/id`), partitions may be bad (`AB`), or it raises an unexpected error."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown = ""
        self.bad = ""
        self.is_broken = False
        self.asked: list[tuple[str, str, int]] = []

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        self.asked.append((topic, topic_id, partition))
        if self.is_broken:
            raise RuntimeError("unexpected")
        if f"{topic}/{topic_id}" == self.unknown:
            raise UnknownTopic("no such topic")
        if partition in map(NAMES.index, self.bad):
            raise LogError("bad disk")
        return super().fetch(topic, topic_id, partition, offset, max_bytes)


class Desk:
    """A consumer's polling with partitions A, B and C, or some of them.

    :param records: how many there are of each partition of the topic.  :param size: of each, in bytes.
    """

    def __init__(
        self, *partitions: TopicPartition, records: Iterable[int] = (), size: int = 10, **options: Any
    ) -> None:
        self.jumps: list[Mapping[TopicPartition, Jump]] = []
        self.log = BadLog()
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


def test_empty_poll_fetches_and_returns_the_time_of_the_next_fetch() -> None:
    desk = Desk(A)

    assert desk.poll() == {}
    looks = len(desk.log.fetched)
    assert desk.polling.poll(None) == {}
    assert len(desk.log.fetched) == looks, "not before it is due"
    assert desk.polling.looks.wait_s > 0


# ---- prefetch


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
    state = PartitionState(Position("id", 0), Position("id", 10))
    before = allocated_bytes()
    buffer.add(state, Fetch(A, "id", 0, 10, [whole.slice(0, 10)]))
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
    a, b = (PartitionState(Position("id", 0), Position("id", fetched)) for fetched in (5, 7))
    buffer.add(a, Fetch(A, "id", 0, 5, [batch_of("t", 0, 0, [b"1", b"2"])]))
    buffer.add(b, Fetch(B, "id", 0, 7, []))

    assert b.position.offset == 7, "nothing to return of it"
    buffer.take([(A, 1)], MB)
    assert a.position.offset == 1
    buffer.take([(A, 1)], MB)
    assert a.position.offset == 5, "no record follows the last one"


# ---- stories


def named(names: str, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, NAMES.index(name)) for name in names]


def by_name(found: Iterable[tuple[TopicPartition, object]]) -> str:
    return " ".join(f"{NAMES[partition.partition]}:{what}" for partition, what in found) or "nothing"


class PollingStory:
    """Steps of stories (see `stories.py`) about a consumer's polling, or the source of a log."""

    errors: tuple[type[Exception], ...] = (OffsetOutOfRange, RuntimeError)

    def shown(self, text: str) -> str:
        return text

    def desk(self, names: str, records: object = "", size: int = 10, **options: Any) -> None:
        counts = map(int, str(records).split(",") if records else [])
        self._desk = Desk(*named(names), records=counts, size=size, **options)
        self._log = self._desk.log

    def source(self, names: str, records: object = "", size: int = 10, takes_s: float = 0.0, **limits: Any) -> None:
        """The log's, which is fetched partition by partition."""
        self.desk(names, records, size)
        self._log.takes_s = (self._desk.runtime, takes_s)
        self._source = self._log.source(NO_LIMITS._replace(clock=self._desk.runtime.monotonic, **limits))
        self.assign(names)

    # ---- the log

    def add(self, name: str, count: int, size: int = 10) -> None:
        self._log.append(NAMES.index(name), count, size)

    def log(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self._log, name, value)

    def forget(self) -> None:
        self._log.fetched.clear()

    def fetches(self) -> str:
        """The partition of each."""
        return "fetches of " + " ".join(NAMES[number] for number in self._log.fetched)

    def checked(self) -> str:
        return f"checked at {self._desk.checked}"

    def asked(self) -> list[str]:
        return [f"{topic} {topic_id} {NAMES[number]}" for topic, topic_id, number in self._log.asked]

    # ---- a consumer's polling

    def poll(self, times: int = 1, most: int | None = None) -> str:
        """How many records of each partition some polls return."""
        return ", ".join(by_name(self._desk.poll(most).items()) for _ in range(times))

    def records(self) -> str:
        """The first and last offset of each partition that a poll returns."""
        self._desk.runtime.now += 2
        found = self._desk.polling.poll(None)
        return by_name((part, f"{some[0].offset}-{some[-1].offset} of {len(some)}") for part, some in found.items())

    def until(self, name: str) -> str:
        """How many polls it takes until one returns records of a partition."""
        return f"{next(count for count in range(1, 2000) if named(name)[0] in self._desk.poll())} polls"

    def waiting(self) -> str:
        count, size = self._desk.polling.retained
        return f"{count} records of {size // 1000} kB wait"

    def at(self, name: str) -> str:
        position = self._desk.polling.positions.get(named(name)[0])
        return f"{name} at {position.offset}" if position is not None else f"no {name}"

    def jumps(self) -> str:
        found = [item for jumps in self._desk.jumps for item in jumps.items()]
        return "jumps of " + by_name((part, f"{jump.before}-{jump.after}") for part, jump in found)

    def lapse(self) -> None:
        """The lease does."""
        self._desk.may_fetch = False

    def pause(self, names: str) -> None:
        self._desk.polling.pause(named(names))

    def resume(self, names: str) -> None:
        self._desk.polling.resume(named(names))

    def seek(self, name: str, offset: int) -> None:
        self._desk.polling.seek(named(name)[0], offset)

    def begin(self, name: str, at: int) -> None:
        self._desk.polling.begin({partition: Position("id", at) for partition in named(name)})

    def end(self, names: str) -> None:
        self._desk.polling.end(named(names))
        assert not self._desk.polling.paused

    # ---- the source

    def assign(self, names: str, topic: str = "t", id: str = "id", at: int = 0) -> None:
        self._source.assign({partition: Position(id, at) for partition in named(names, topic)})

    def release(self, names: str) -> None:
        self._source.release(named(names))

    def fetch(self, max_bytes: int = MB, wanted: str = "") -> str:
        """The first offset that a poll fetches of each partition, and the next one."""
        found = self._source.poll(max_bytes, set(named(wanted)) if wanted else None)
        return by_name((fetch.partition, f"{fetch.first}-{fetch.next}") for fetch in found)

    def problems(self) -> str:
        return by_name(sorted(self._source.problems.items()))


STORIES = Path(__file__).with_name("polling.txt")


@pytest.mark.parametrize("title", stories(STORIES))
def test_polling(title: str, request: pytest.FixtureRequest) -> None:
    play(request, STORIES, title, PollingStory(), is_joined=True)

"""Polls are fair within the bounds of consumer/fetching/poll_order.py, and lose, repeat and reorder nothing."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.config import ConsumerConfig
from consumer.fetching.fetcher import Fetcher
from consumer.fetching.poll_order import ORDERS, greedy, proportional
from consumer.fetching.polling import Polling
from consumer.types import Position
from coordinator.zk.znodes.partitions import TopicPartition
from tests.property.effort import effort
from tests.support.sizedlog import SizedLog
from tests.unit.manual import ManualRuntime

PARTITIONS = [TopicPartition("t", number) for number in range(5)]
THERE = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(1, 400))
MOST = st.integers(1, 600)


@effort(300)
@given(THERE, MOST)
def test_both_orders_return_all_that_may_be_and_no_more_than_is_there(
    there: dict[TopicPartition, int], most: int
) -> None:
    for pick in (greedy, proportional):
        picked = pick(there.items(), most)

        assert sum(rows for _, rows in picked) == min(most, sum(there.values()))
        assert all(0 < rows <= there[partition] for partition, rows in picked)
        assert len(dict(picked)) == len(picked)


@effort(300)
@given(THERE, MOST)
def test_proportional_poll_gives_equal_shares_but_for_one_record_or_too_few(
    there: dict[TopicPartition, int], most: int
) -> None:
    picked = dict(proportional(there.items(), most))

    largest = max(picked.values(), default=0)
    assert all(picked.get(partition, 0) >= min(rows, largest - 1) for partition, rows in there.items())


@pytest.mark.parametrize("order", ORDERS)
@effort(300)
@given(
    there=st.dictionaries(st.sampled_from(PARTITIONS), st.integers(1, 50), min_size=1),
    arrivals=st.lists(st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(1, 60)), max_size=5), max_size=30),
    most=st.integers(1, 20),
)
def test_partition_with_records_is_served_within_its_bound_despite_new_arrivals(
    order: str, there: dict[TopicPartition, int], arrivals: list[list[tuple[TopicPartition, int]]], most: int
) -> None:
    """n polls for greedy, ceil(n / most) for proportional, where n is how many partitions there are with records."""
    pick, behind = ORDERS[order]
    waited: Counter[TopicPartition] = Counter()
    most_at_once = 0
    for arrived in [*arrivals, *[[]] * 6]:
        for partition, rows in arrived:
            there[partition] = there.get(partition, 0) + rows
        most_at_once = max(most_at_once, len(there))
        picked = pick(there.items(), most)
        for partition, rows in picked:
            there[partition] -= rows
        there = {partition: rows for partition, rows in there.items() if rows}
        for partition in behind(picked, there):
            there[partition] = there.pop(partition)
        waited = Counter({partition: waited[partition] + 1 for partition in there if partition not in dict(picked)})

        bound = most_at_once if order == "greedy" else ceil(most_at_once / most)
        assert max(waited.values(), default=0) < bound


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.lists(st.integers(0, 3000), max_size=20)),
    st.tuples(st.just("poll"), st.integers(1, 30), st.none()),
    st.tuples(st.just("pause"), st.integers(0, 3), st.none()),
    st.tuples(st.just("resume"), st.integers(0, 3), st.none()),
    st.tuples(st.just("seek"), st.integers(0, 3), st.integers(0, 50)),
    st.tuples(st.just("hand on"), st.integers(0, 3), st.none()),
)


class Model:
    """Polling, and the offset of the next record that each partition must return."""

    def __init__(self, **options: Any) -> None:
        self.log = SizedLog()
        self.options = options
        self.runtime = ManualRuntime()
        config = ConsumerConfig("zk:2181", "g", "c1", **options)
        self.polling = Polling(config, Fetcher(self.log), self.runtime, lambda fetched: None, lambda jumps: None)
        self.next = dict.fromkeys(PARTITIONS[:4], 0)
        self.polling.begin({partition: Position("id", 0) for partition in self.next})
        self.paused: set[TopicPartition] = set()

    def do(self, what: str, number: int, given: Any) -> None:
        partition = PARTITIONS[number % 4]
        if what == "append":
            self.log.records[partition.partition] += [b"x" * size for size in given]
        elif what == "poll":
            self.poll(number)
        elif what == "pause":
            self.polling.pause([partition])
            self.paused.add(partition)
        elif what == "resume":
            self.polling.resume([partition])
            self.paused.discard(partition)
        elif what == "seek":
            self.next[partition] = min(given, len(self.log.records[partition.partition]))
            self.polling.seek(partition, self.next[partition])
        else:  # to somebody who gives it back: what was not returned comes again, and a pause is forgotten
            self.polling.end([partition])
            self.polling.begin({partition: Position("id", self.next[partition])})
            self.paused.discard(partition)

    def poll(self, most: int) -> int:
        self.runtime.now += 2
        self.polling.look()
        found = self.polling.poll(most)
        sizes = []
        for partition, records in found.items():
            assert partition not in self.paused
            for record in records:
                assert (record.partition, record.offset) == (partition.partition, self.next[partition])
                assert record.value == self.log.records[partition.partition][record.offset]
                self.next[partition] += 1
                sizes.append(len(record.value))
        assert len(sizes) <= min(most, self.options["max_poll_records"])
        assert sum(sizes) <= self.options["fetch_max_bytes"] or len(sizes) == 1
        assert self.polling.retained[1] <= self.options["buffer_memory"] + 10_000, "but for one record"
        assert {part: at.offset for part, at in self.polling.positions.items()} == self.next
        return len(sizes)


@pytest.mark.parametrize("order", ["greedy", "proportional"])
@effort(100)
@given(
    operations=st.lists(OPERATIONS, max_size=60),
    prefetch=st.sampled_from(["total", "share"]),
    most=st.integers(1, 40),
    fetch=st.integers(1, 20_000),
    of_each=st.integers(1, 20_000),
    memory=st.integers(1, 40_000),
)
def test_record_is_returned_once_in_order_within_bounds_over_pause_seek_and_move(
    operations: list[tuple[str, int, Any]], order: str, prefetch: str, most: int, fetch: int, of_each: int, memory: int
) -> None:
    model = Model(
        poll_order=order,
        prefetch=prefetch,
        max_poll_records=most,
        fetch_max_bytes=fetch,
        max_partition_fetch_bytes=of_each,
        buffer_memory=memory,
    )
    for operation in operations:
        model.do(*operation)
    for number in range(4):
        model.do("resume", number, None)

    left = sum(len(model.log.records[part.partition]) - at for part, at in model.next.items())
    polls = 0
    while model.poll(1000):
        polls += 1
        assert polls <= left, "each poll returns something"

    assert model.next == {part: len(model.log.records[part.partition]) for part in model.next}

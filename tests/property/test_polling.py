"""Polls are fair within the bounds of consumer/fetching/poll_order.py, and lose, repeat and reorder nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from tests.property.effort import Draw, tried
from tests.support.memlog import SizedLog
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.fetching.poll_order import ORDERS, greedy, proportional
from zk_group.consumer.fetching.polling import Polling, fetcher_of
from zk_group.consumer.logs.base import Position
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(5)]


Rows = dict[TopicPartition, int]
Steps = list[tuple[str, int, Any]]


def rows_there(draw: Draw) -> Rows:
    return {partition: draw.randint(1, 400) for partition in draw.some(PARTITIONS)}


def few_there(draw: Draw) -> Rows:
    return {partition: draw.randint(1, 50) for partition in draw.some(PARTITIONS, least=1)}


def some_arrivals(draw: Draw) -> list[list[tuple[TopicPartition, int]]]:
    return draw.many(lambda draw: draw.many(lambda draw: (draw.choice(PARTITIONS), draw.randint(1, 60)), 5), 30)


def upto(most: int) -> Callable[[Draw], int]:
    return lambda draw: draw.number(most, 1)


@tried(300, rows_there, upto(600))
def test_both_orders_return_all_that_may_be_and_no_more_than_is_there(there: Rows, most: int) -> None:
    for pick in (greedy, proportional):
        picked = pick(there.items(), most)

        assert sum(rows for _, rows in picked) == min(most, sum(there.values()))
        assert all(0 < rows <= there[partition] for partition, rows in picked)
        assert len(dict(picked)) == len(picked)


@tried(300, rows_there, upto(600))
def test_proportional_poll_gives_equal_shares_but_for_one_record_or_too_few(there: Rows, most: int) -> None:
    picked = dict(proportional(there.items(), most))

    largest = max(picked.values(), default=0)
    assert all(picked.get(partition, 0) >= min(rows, largest - 1) for partition, rows in there.items())


@pytest.mark.parametrize("order", ORDERS)
@tried(300, few_there, some_arrivals, upto(20))
def test_partition_with_records_waits_no_longer_than_its_bound(
    order: str, there: Rows, arrivals: list[list[tuple[TopicPartition, int]]], most: int
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


def operation(draw: Draw) -> tuple[str, int, Any]:
    what = draw.choice(["append", "poll", "pause", "resume", "seek", "hand on"])
    if what == "append":
        return what, draw.randrange(4), draw.many(lambda draw: draw.randint(0, 3000), 20)
    return what, draw.randint(1, 30) if what == "poll" else draw.randrange(4), draw.randint(0, 50)


def options(draw: Draw) -> dict[str, Any]:
    return {
        "prefetch": draw.choice(["total", "share"]),
        "max_poll_records": draw.randint(1, 40),
        "fetch_max_bytes": draw.number(20_000, 1),
        "max_partition_fetch_bytes": draw.number(20_000, 1),
        "buffer_memory": draw.number(40_000, 1),
    }


class Model:
    """Polling, and the offset of the next record that each partition must return."""

    def __init__(self, **options: Any) -> None:
        self.log = SizedLog()
        self.options = options
        self.runtime = ManualRuntime()
        config = ConsumerConfig("zk:2181", "g", "c1", **options)
        fetcher = fetcher_of(config, self.log, None, self.runtime.monotonic)
        self.polling = Polling(config, fetcher, self.runtime, lambda fetched, checked: None, lambda jumps: None)
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
        else:  # to a member that returns it: unreturned records are fetched again, and a pause is forgotten
            self.polling.end([partition])
            self.polling.begin({partition: Position("id", self.next[partition])})
            self.paused.discard(partition)
        assert self.polling.paused == self.paused

    def poll(self, most: int) -> int:
        self.runtime.now += 2
        self.polling.looks.at_once()
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


@pytest.mark.long
@pytest.mark.parametrize("order", ["greedy", "proportional"])
@tried(200, lambda draw: draw.many(operation, 24), options)
def test_record_is_returned_once_over_pause_seek_and_move(order: str, steps: Steps, options: dict[str, Any]) -> None:
    model = Model(poll_order=order, **options)
    for each in steps:
        model.do(*each)
    for number in range(4):
        model.do("resume", number, None)

    left = sum(len(model.log.records[part.partition]) - at for part, at in model.next.items())
    polls = 0
    while model.poll(1000):
        polls += 1
        assert polls <= left, "each poll returns something"

    assert model.next == {part: len(model.log.records[part.partition]) for part in model.next}

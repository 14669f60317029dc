"""The fetch intervals of partitions, decided from a history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..checker.replay.replay import fetch_intervals
from ..checker.replay.verdict import Event

PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(frozen=True, slots=True)
class FetchInterval:
    """One consumer's fetching of one partition, under a valid lease.

    :ivar until: its end, infinite while it lasts.
    """

    partition: PartitionName
    who: str
    consumer: str
    begun: float
    until: float


def holds(events: Iterable[Event]) -> list[FetchInterval]:
    """All fetch intervals, by the checker's rules."""
    return [
        FetchInterval((hold.key[1], hold.key[3]), hold.who, hold.consumer, first, last)
        for hold in fetch_intervals(events)
        for first, last in hold.spans()
    ]


def _by_partition(intervals: Iterable[FetchInterval]) -> dict[PartitionName, list[FetchInterval]]:
    """Each partition's intervals, ordered by their begin."""
    result: dict[PartitionName, list[FetchInterval]] = {}
    for hold in sorted(intervals, key=lambda each: (each.partition, each.begun)):
        result.setdefault(hold.partition, []).append(hold)
    return result


def gaps(
    intervals: Sequence[FetchInterval], begin: float, end: float
) -> Mapping[PartitionName, list[tuple[float, float]]]:
    """Partition -> the times between `begin` and `end` without a fetcher."""
    result = {}
    for partition, its in _by_partition(intervals).items():
        at, empty = begin, []
        for hold in its:
            if hold.begun > at and hold.begun <= end:
                empty.append((at, hold.begun))
            at = max(at, hold.until)
        if at < end:
            empty.append((at, end))
        result[partition] = [(first, last) for first, last in empty if last > first]
    return result


def doubly_held_s(intervals: Sequence[FetchInterval]) -> float:
    """Seconds with two fetchers of one partition, summed over all partitions."""
    total = 0.0
    for its in _by_partition(intervals).values():
        latest = float("-inf")
        for hold in its:
            if hold.begun < latest:
                total += min(hold.until, latest) - hold.begun
            latest = max(latest, hold.until)
    return total


def holders(intervals: Sequence[FetchInterval], at: float) -> dict[PartitionName, str]:
    """Partition -> its fetcher at that time."""
    return {hold.partition: hold.consumer for hold in intervals if hold.begun <= at < hold.until}


def last_holders(intervals: Sequence[FetchInterval], at: float) -> dict[PartitionName, str]:
    """Partition -> its last fetcher until that time, with or without a valid lease."""
    begun = sorted((hold for hold in intervals if hold.begun <= at), key=lambda hold: hold.begun)
    return {hold.partition: hold.consumer for hold in begun}


def read_elsewhere(events: Sequence[Event], consumers: Iterable[str]) -> dict[PartitionName, int]:
    """Partition -> records that these consumers have read and committed; the next fetcher continues after them.

    They are not in a DataFrame. Records that no fetcher continued after are not counted.
    """
    intervals: dict[PartitionName, int] = {}
    latest: dict[PartitionName, tuple[str, int]] = {}
    names = set(consumers)
    for event in events:
        if event["event"] != "begin":
            continue
        for topic, numbers in event["partitions"].items():
            for number, first in numbers.items():
                partition = (topic, int(number))
                before, start = latest.get(partition, ("", 0))
                if before in names:
                    intervals[partition] = intervals.get(partition, 0) + first - start
                latest[partition] = (event["consumer"], first)
    return intervals

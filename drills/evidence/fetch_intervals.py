"""The fetch intervals of partitions, decided from a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..checker.replay.verdict import Event

FOREVER = float("inf")
PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(slots=True)
class FetchInterval:
    """One consumer's fetching of one partition.

    :ivar until: its end: by `halt`, with its process, by a newer process of the same name, by the end of the
       incarnation in ZooKeeper, or by the lease's expiry; infinite while it lasts.
    :ivar why: the reason of its end.
    """

    partition: PartitionName
    who: str
    consumer: str
    incarnation: str
    begun: float
    until: float = FOREVER
    why: str = ""


def holds(events: Sequence[Event]) -> list[FetchInterval]:
    """All fetch intervals, ordered by their begin."""
    intervals: list[FetchInterval] = []
    taken: set[str] = set()
    for event in events:
        open_holds = [hold for hold in intervals if hold.until == FOREVER]
        if event["event"] == "begin" and event["incarnation"] not in taken:
            intervals += _begun(event, open_holds)
        elif event["event"] in ("halt", "exit"):
            _end(event, open_holds)
        elif event["event"] == "registered":
            taken |= _take_over(event, open_holds)
        elif event["event"] == "commit":
            _leave(event, open_holds)
    leases = _leases(events)
    return [piece for hold in intervals for piece in _within_leases(hold, leases.get(hold.who, ()))]


def _begun(event: Event, open_holds: list[FetchInterval]) -> Iterator[FetchInterval]:
    mine = {hold.partition for hold in open_holds if hold.incarnation == event["incarnation"]}
    for topic, numbers in event["partitions"].items():
        for number in numbers:
            if (topic, int(number)) not in mine:
                yield FetchInterval(
                    (topic, int(number)), event["who"], event["consumer"], event["incarnation"], float(event["at"])
                )


def _end(event: Event, open_holds: list[FetchInterval]) -> None:
    parts = event.get("partitions")
    halted = None if parts is None else {(topic, int(n)) for topic, numbers in parts.items() for n in numbers}
    for hold in open_holds:
        if hold.who != event["who"] or (halted is not None and hold.partition not in halted):
            continue
        if halted is None or hold.incarnation == event["incarnation"]:
            hold.until, hold.why = float(event["at"]), str(event.get("why", event["event"]))


def _leave(event: Event, open_holds: list[FetchInterval]) -> None:
    """An incarnation that its own process ends in ZooKeeper can commit nothing, even if its application hangs."""
    for op in event["ops"]:
        text = str(op.get("data", ""))
        if op["op"] != "set" or "/channel/" not in op["path"] or '"ended":"' not in text:
            continue
        for hold in open_holds:
            if hold.who == event["who"] and hold.incarnation in text:
                hold.until, hold.why = float(event["at"]), "left by itself"


def _take_over(event: Event, open_holds: list[FetchInterval]) -> set[str]:
    """The incarnations that end because a newer process has their name."""
    lost = set()
    for hold in open_holds:
        is_same = hold.consumer == event["consumer"] and hold.incarnation != event["incarnation"]
        if is_same and hold.who != event["who"]:
            hold.until, hold.why = float(event["at"]), "taken over"
            lost.add(hold.incarnation)
    return lost


def _leases(events: Sequence[Event]) -> dict[str, list[tuple[float, float]]]:
    """Process -> the time of each lease renewal, and its expiry."""
    intervals: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["event"] == "lease" and event.get("role") == "consumer":
            intervals.setdefault(event["who"], []).append((float(event["at"]), float(event["until"])))
    return intervals


def _within_leases(hold: FetchInterval, renewals: Iterable[tuple[float, float]]) -> list[FetchInterval]:
    """The parts of an interval with a valid lease: without one nothing is fetched."""
    ran: list[tuple[float, float]] = []
    for at, until in renewals:
        if ran and at <= ran[-1][1]:
            ran[-1] = (ran[-1][0], max(ran[-1][1], until))
        else:
            ran.append((at if ran else float("-inf"), until))
    if not ran:
        return [hold]
    pieces = []
    for first, last in ((max(hold.begun, begun), min(hold.until, until)) for begun, until in ran):
        if first < last:
            why = hold.why if last == hold.until else "its lease lapsed"
            pieces.append(replace(hold, begun=first, until=last, why=why))
    return pieces


def gaps(
    intervals: Sequence[FetchInterval], begin: float, end: float
) -> Mapping[PartitionName, list[tuple[float, float]]]:
    """Partition -> the times between `begin` and `end` without a fetcher."""
    by_partition: dict[PartitionName, list[FetchInterval]] = {}
    for hold in intervals:
        by_partition.setdefault(hold.partition, []).append(hold)
    result = {}
    for partition, its in sorted(by_partition.items()):
        at, empty = begin, []
        for hold in sorted(its, key=lambda each: each.begun):
            if hold.begun > at and hold.begun <= end:
                empty.append((at, hold.begun))
            at = max(at, hold.until)
        if at < end:
            empty.append((at, end))
        result[partition] = [(first, last) for first, last in empty if last > first]
    return result


def doubly_held_s(intervals: Sequence[FetchInterval]) -> float:
    """Seconds with two fetchers of one partition, summed over all partitions."""
    by_partition: dict[PartitionName, list[FetchInterval]] = {}
    for hold in intervals:
        by_partition.setdefault(hold.partition, []).append(hold)
    total = 0.0
    for its in by_partition.values():
        its.sort(key=lambda each: each.begun)
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

"""Who fetched which partition from when to when, decided from a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..checker.verdict import Event

FOREVER = float("inf")
PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(slots=True)
class Hold:
    """One consumer's fetching of one partition.

    :ivar until: when it ended: by `halt`, with its process, when its name was taken over, or when its lease lapsed;
        endless while it goes on.
    :ivar why: how it ended.
    """

    partition: PartitionName
    who: str
    consumer: str
    incarnation: str
    begun: float
    until: float = FOREVER
    why: str = ""


def holds(events: Sequence[Event]) -> list[Hold]:
    """Every hold, in the order in which they began."""
    found: list[Hold] = []
    taken: set[str] = set()
    for event in events:
        open_holds = [hold for hold in found if hold.until == FOREVER]
        if event["event"] == "begin" and event["incarnation"] not in taken:
            found += _begun(event, open_holds)
        elif event["event"] in ("halt", "exit"):
            _end(event, open_holds)
        elif event["event"] == "registered":
            taken |= _take_over(event, open_holds)
    leases = _leases(events)
    for hold in found:
        _cut_at_lapse(hold, leases.get(hold.who, ()))
    return found


def _begun(event: Event, open_holds: list[Hold]) -> Iterator[Hold]:
    mine = {hold.partition for hold in open_holds if hold.incarnation == event["incarnation"]}
    for topic, numbers in event["partitions"].items():
        for number in numbers:
            if (topic, int(number)) not in mine:
                yield Hold(
                    (topic, int(number)), event["who"], event["consumer"], event["incarnation"], float(event["at"])
                )


def _end(event: Event, open_holds: list[Hold]) -> None:
    parts = event.get("partitions")
    halted = None if parts is None else {(topic, int(n)) for topic, numbers in parts.items() for n in numbers}
    for hold in open_holds:
        if hold.who != event["who"] or (halted is not None and hold.partition not in halted):
            continue
        if halted is None or hold.incarnation == event["incarnation"]:
            hold.until, hold.why = float(event["at"]), str(event.get("why", event["event"]))


def _take_over(event: Event, open_holds: list[Hold]) -> set[str]:
    """The incarnations that end because another process has their name."""
    lost = set()
    for hold in open_holds:
        is_same = hold.consumer == event["consumer"] and hold.incarnation != event["incarnation"]
        if is_same and hold.who != event["who"]:
            hold.until, hold.why = float(event["at"]), "taken over"
            lost.add(hold.incarnation)
    return lost


def _leases(events: Sequence[Event]) -> dict[str, list[tuple[float, float]]]:
    """Process -> when its lease was renewed, and until when."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["event"] == "lease" and event.get("role") == "consumer":
            found.setdefault(event["who"], []).append((float(event["at"]), float(event["until"])))
    return found


def _cut_at_lapse(hold: Hold, renewals: Iterable[tuple[float, float]]) -> None:
    """End a hold where its lease has lapsed and was not renewed before the hold ended anyway."""
    good_until = None
    for at, until in renewals:
        if good_until is not None and good_until < at and hold.begun < good_until < hold.until:
            break  # it lapsed before this renewal
        good_until = until if good_until is None else max(good_until, until)
    if good_until is not None and hold.begun < good_until < hold.until != FOREVER:
        hold.until, hold.why = good_until, "its lease lapsed"


def gaps(found: Sequence[Hold], begin: float, end: float) -> Mapping[PartitionName, list[tuple[float, float]]]:
    """Partition -> the times between `begin` and `end` in which nobody fetched it."""
    by_partition: dict[PartitionName, list[Hold]] = {}
    for hold in found:
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


def doubly_held_s(found: Sequence[Hold]) -> float:
    """Seconds in which two held one partition, over all of them."""
    by_partition: dict[PartitionName, list[Hold]] = {}
    for hold in found:
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


def holders(found: Sequence[Hold], at: float) -> dict[PartitionName, str]:
    """Partition -> the consumer that fetched it at that moment."""
    return {hold.partition: hold.consumer for hold in found if hold.begun <= at < hold.until}


def read_elsewhere(events: Sequence[Event], consumers: Iterable[str]) -> dict[PartitionName, int]:
    """Partition -> records that these consumers have read and kept: whoever comes next goes on behind them.

    Their own applications have them, no DataFrame. What nobody went on behind is not counted.
    """
    found: dict[PartitionName, int] = {}
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
                    found[partition] = found.get(partition, 0) + first - start
                latest[partition] = (event["consumer"], first)
    return found

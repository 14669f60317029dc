"""Who fetched which partition from when to when, decided from a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..checker.verdict import Event

FOREVER = float("inf")
PartitionName = tuple[str, int]
"""Topic and number."""


@dataclass(slots=True)
class Hold:
    """One consumer's fetching of one partition.

    :ivar until: when it ended: by `halt`, with its process, when its name was taken over, when its own
        process ended its incarnation in ZooKeeper, or when its lease lapsed; endless while it goes on.
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
        elif event["event"] == "commit":
            _leave(event, open_holds)
    leases = _leases(events)
    return [piece for hold in found for piece in _within_leases(hold, leases.get(hold.who, ()))]


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


def _leave(event: Event, open_holds: list[Hold]) -> None:
    """Who ends its own incarnation in ZooKeeper makes nothing its own any more, though its application may hang."""
    for op in event["ops"]:
        text = str(op.get("data", ""))
        if op["op"] != "set" or "/channel/" not in op["path"] or '"ended":"' not in text:
            continue
        for hold in open_holds:
            if hold.who == event["who"] and hold.incarnation in text:
                hold.until, hold.why = float(event["at"]), "left by itself"


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


def _within_leases(hold: Hold, renewals: Iterable[tuple[float, float]]) -> list[Hold]:
    """The pieces of a hold in which its lease ran: who lets it lapse fetches nothing until it is renewed."""
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


def last_holders(found: Sequence[Hold], at: float) -> dict[PartitionName, str]:
    """Partition -> the consumer that was the last to fetch it until that moment, though its lease may have lapsed."""
    begun = sorted((hold for hold in found if hold.begun <= at), key=lambda hold: hold.begun)
    return {hold.partition: hold.consumer for hold in begun}


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

"""The lanes of the partitions: their fetchers, by the checker's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drills.checker.replay.commits import LIFE
from drills.checker.replay.fetch_intervals import FOREVER, Hold, LeaseView, PartitionKey
from drills.checker.replay.replay import Replay
from drills.checker.replay.verdict import Event

from .facts import amount, plural, text
from .lanes import FETCH, PARTITION, Bar, Lane, clipped, extend, gaps, overlaps

Place = tuple[str, str, int]
"""Group, topic, partition."""


class Leases:
    """The validity of each lease; valid until its first event."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, object], list[list[float]]] = {}

    def on_lease(self, event: Event) -> None:
        until = min(event["until"], FOREVER)
        spans = self._held.setdefault((event["who"], event.get("session")), [])
        if not spans:
            spans.append([-FOREVER, until])
        else:
            extend(spans, float(event["at"]), until)

    def held(self, who: str, lease: LeaseView) -> list[tuple[float, float]]:
        """The intervals in which a lease was valid."""
        if lease.event is None:
            return [(-FOREVER, FOREVER)]
        return [(a, b) for a, b in self._held.get((who, lease.event.get("session")), [])]


@dataclass(slots=True)
class Interval:
    """A fetch interval of the checker, with start, end and records."""

    hold: Hold
    start: float
    end: float | None = None
    fetches: int = 0
    records: int = 0


class Watcher:
    """Replays the history and records the start and end of each interval of the checker."""

    def __init__(self) -> None:
        self.world = Replay()
        self.leases = Leases()
        self.intervals: dict[PartitionKey, list[Interval]] = {}
        self.fetched: set[Place] = set()
        self.alive: dict[str, str] = {}
        self._open: dict[int, Interval] = {}
        self._of: dict[tuple[str, str, PartitionKey], Interval] = {}
        fetching = self.world.fetching
        self._changes: dict[str, Sequence[Callable[[Event], object]]] = {
            "begin": [fetching.on_begin],
            "halt": [fetching.on_halt],
            "exit": [fetching.on_exit, lambda event: self.alive.pop(event["who"], None)],
            "closed": [self.world.close, fetching.on_closed],
        }

    def feed(self, event: Event) -> None:
        """Process the next event."""
        kind, fetching = event["event"], self.world.fetching
        if kind == "fetch":
            self._on_fetch(event)
        elif kind == "lease" and event["role"] != "coordinator":
            fetching.on_lease(event)
            self.leases.on_lease(event)
        elif kind == "registered":
            fetching.on_registered(event)
        elif kind == "start":
            self.world.on_start(event)
            self.alive[event["who"]] = event.get("group") or ""
        elif kind == "commit":
            if self.world.commit(event).mask & LIFE:
                self._note(event["at"])
        elif kind in self._changes:
            for change in self._changes[kind]:
                change(event)
            self._note(event["at"])

    def _note(self, at: float) -> None:
        """Compare the open intervals with those before."""
        now = {hold.number: hold for holds in self.world.fetching.holds.values() for hold in holds}
        for number in [number for number in self._open if number not in now]:
            self._open.pop(number).end = at
        for number in sorted(now.keys() - self._open.keys()):
            hold = now[number]
            interval = self._open[number] = Interval(hold, at)
            self.intervals.setdefault(hold.key, []).append(interval)
            self._of[hold.who, hold.incarnation, hold.key] = interval

    def _on_fetch(self, event: Event) -> None:
        group = event["group"]
        for item in event["ranges"]:
            topic, partition = item["topic"], item["partition"]
            interval = self._of.get((event["who"], event["incarnation"], (group, topic, item["topic_id"], partition)))
            if interval is not None:
                interval.fetches += 1
                interval.records += max(0, item["next"] - item["first"])
            self.fetched.add((group, topic, partition))


def partition_lanes(events: Sequence[Event], end: float) -> list[Lane]:
    """A lane for each fetched partition of each group, ordered by group, topic and number."""
    watcher = Watcher()
    for event in events:
        watcher.feed(event)
    places: dict[Place, list[PartitionKey]] = {place: [] for place in watcher.fetched}
    for key in watcher.intervals:
        places.setdefault((key[0], key[1], key[3]), []).append(key)
    return [_lane(watcher, place, places[place], end) for place in sorted(places)]


def _lane(watcher: Watcher, place: Place, keys: Sequence[PartitionKey], end: float) -> Lane:
    group, topic, number = place
    bars: list[Bar] = []
    twice: list[Bar] = []
    for key in keys:
        interval_bars = [bar for interval in watcher.intervals[key] for bar in _bars(watcher, interval, end)]
        twice += overlaps(interval_bars)  # a topic created again under its name is another one
        bars += interval_bars
    is_awaited = group in watcher.alive.values()
    idle = gaps(bars, end if is_awaited else None)
    bars.sort(key=lambda bar: bar.end)
    everything = sorted((*bars, *idle, *twice), key=lambda bar: bar.start)
    return Lane(PARTITION, f"{text(topic)}-{number}", text(group), bars=tuple(everything))


def _bars(watcher: Watcher, interval: Interval, end: float) -> list[Bar]:
    """An interval, without the times after the lease's expiry."""
    hold, is_open = interval.hold, interval.end is None
    until = end if interval.end is None else min(interval.end, end)
    note = (
        f"by {text(hold.who)}, incarnation {text(hold.incarnation)[:8]}, "
        f"{amount(interval.records)} records in {plural(interval.fetches, 'fetch').replace('fetchs', 'fetches')}"
    )
    if hold.is_suspended:
        note += "; not judged: its znodes were edited manually"
    of = f"{text(hold.key[0])}/{text(hold.consumer)}"
    return [
        Bar(a, b, FETCH, text(hold.consumer), note, of, is_open=is_open and b == end)
        for a, b in clipped(watcher.leases.held(hold.who, hold.lease), interval.start, until)
    ]

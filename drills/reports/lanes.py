"""The lanes of the picture, each with its bars and marks, in the history's time.

Independent of pixels. Fetchers are determined by the checker's rule (`partitions.py`), so that the picture and the
verdict agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drills.checker.replay.verdict import Event

ENSEMBLE, NODE, CONSUMER, OTHER, PARTITION = "ensemble", "node", "consumer", "other", "partition"
LIFE, ELECTED, LEASE, PAUSE, FETCH, GAP, OVERLAP, FAULT = (
    "life", "elected", "lease", "pause", "fetch", "gap", "overlap", "fault",
)  # fmt: skip

MOST_PROCESSES = 120
MOST_PARTITIONS = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval.

    :ivar label: its text, if there is room.  :ivar note: further details, in the tooltip.
    :ivar of: the consumer (`group/consumer`) that determines its colour.
    :ivar is_open: whether it was open at the end of the history.
    """

    start: float
    end: float
    kind: str
    label: str = ""
    note: str = ""
    of: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LaneMark:
    """An event; `note` is its tooltip."""

    at: float
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the picture; `of` is the consumer that determines its colour."""

    kind: str
    name: str
    group: str = ""
    of: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[LaneMark, ...] = ()

    @property
    def unrest(self) -> int:
        """The amount of change: lanes with the least are omitted first."""
        return sum((bar.kind in (GAP, FETCH)) + 1000 * (bar.kind == OVERLAP) for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes.

    :ivar zero: the time of the fault, the origin of the times.
    :ivar left_out: the number of omitted lanes, by kind.
    """

    start: float
    end: float
    zero: float
    lanes: tuple[Lane, ...]
    left_out: Mapping[str, int]
    set_aside: int = 0

    @property
    def faults(self) -> Sequence[Bar]:
        """Each fault: a moment, or its duration."""
        return [bar for lane in self.lanes for bar in lane.bars if bar.kind == FAULT]

    @property
    def consumers(self) -> list[str]:
        """The consumers in the order of the lanes; the position determines the colour."""
        lanes = [lane.of for lane in self.lanes if lane.of]
        bars = [bar.of for lane in self.lanes for bar in lane.bars if bar.of]
        return list(dict.fromkeys([*lanes, *bars]))


def span(events: Sequence[Event]) -> tuple[float, float]:
    """From the first event to `end`, or to the last event of an incomplete history."""
    if not events:
        return 0.0, 0.0
    times = [float(event["at"]) for event in events]
    ends = [float(event["at"]) for event in events if event["event"] == "end"]
    return min(times), ends[-1] if ends else max(times)


def limited(lanes: Sequence[Lane]) -> tuple[list[Lane], dict[str, int]]:
    """The lanes up to the maximum number, those with changes first."""
    dropped: dict[str, int] = {}
    out: set[int] = set()
    for kinds, most in (((PARTITION,), MOST_PARTITIONS), ((NODE, CONSUMER, OTHER), MOST_PROCESSES)):
        candidates = [place for place, lane in enumerate(lanes) if lane.kind in kinds]
        for place in sorted(candidates, key=lambda place: -lanes[place].unrest)[most:]:
            out.add(place)
            dropped[lanes[place].kind] = dropped.get(lanes[place].kind, 0) + 1
    return [lane for place, lane in enumerate(lanes) if place not in out], dropped


def overlaps(bars: Sequence[Bar]) -> list[Bar]:
    """The intervals with more than one bar."""
    result: list[Bar] = []
    reach, holder = float("-inf"), ""
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        if bar.start < reach and bar.end > bar.start:
            both = f"{holder} and {bar.label}"
            result.append(Bar(bar.start, min(bar.end, reach), OVERLAP, "two fetchers", both))
        if bar.end > reach:
            reach, holder = bar.end, bar.label
    return result


def gaps(bars: Sequence[Bar], until: float | None) -> list[Bar]:
    """The intervals between the bars without any; after the last one, too, up to `until`, if given."""
    result: list[Bar] = []
    reach: float | None = None
    for bar in sorted(bars, key=lambda bar: bar.start):
        if reach is not None and bar.start > reach:
            result.append(Bar(reach, bar.start, GAP, "no fetcher"))
        reach = bar.end if reach is None else max(reach, bar.end)
    if reach is not None and until is not None and until > reach:
        result.append(Bar(reach, until, GAP, "no fetcher", "until the history ends", is_open=True))
    return result


def extend(spans: list[list[float]], at: float, until: float) -> None:
    """Add the interval of a renewed lease; adjoining ones are one."""
    if spans and at <= spans[-1][1]:
        spans[-1][1] = max(spans[-1][1], until)
    elif until > at:
        spans.append([at, until])


def clipped(intervals: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The parts of the intervals between `start` and `end`."""
    cut = ((max(start, a), min(end, b)) for a, b in intervals)
    return [(a, b) for a, b in cut if b > a]

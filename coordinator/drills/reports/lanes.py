"""What is drawn where: the lanes of the picture, each with its bars and marks, in the history's time.

Nothing here knows of pixels. Who fetches what is told by the checker's own rule (`partitions.py`), so that the picture
and the verdict cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.checker.verdict import Event

ENSEMBLE, NODE, CONSUMER, OTHER, PARTITION = "ensemble", "node", "consumer", "other", "partition"
LIFE, ELECTED, LEASE, PAUSE, FETCH, GAP, OVERLAP = (
    "life", "elected", "lease", "pause", "fetch", "gap", "overlap",
)  # fmt: skip

MOST_PROCESSES = 120
MOST_PARTITIONS = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasted.

    :ivar label: what stands in it where there is room.  :ivar note: what else is known, for who looks closer.
    :ivar of: the consumer (`group/consumer`) by which it is coloured.
    :ivar track: which of the rows of its lane it is on, where two bars would cover each other.
    :ivar is_open: whether it went on when the history ended.
    """

    start: float
    end: float
    kind: str
    label: str = ""
    note: str = ""
    of: str = ""
    track: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment, or `count` such things close together."""

    at: float
    kind: str
    label: str = ""
    note: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Flow:
    """How records came: `fetches` and `records` between `start` and `end`."""

    start: float
    end: float
    fetches: int
    records: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the picture.

    :ivar of: the consumer by which it is coloured.  :ivar tracks: rows that its bars need.
    """

    kind: str
    name: str
    group: str = ""
    of: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    flow: tuple[Flow, ...] = ()
    tracks: int = 1

    @property
    def standstill(self) -> float:
        """Seconds in which nobody fetched it."""
        return sum(bar.end - bar.start for bar in self.bars if bar.kind == GAP)

    @property
    def unrest(self) -> int:
        """How much there is to see: what is left out first is what only went on."""
        return sum((bar.kind in (GAP, FETCH)) + 1000 * (bar.kind == OVERLAP) for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Shade:
    """A fault: a moment, or the time for which it lasted."""

    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Story:
    """All lanes, and what goes through them.

    :ivar zero: the moment of the fault, from which times are counted.
    :ivar left_out: lanes that are not drawn, by kind.
    """

    start: float
    end: float
    zero: float
    lanes: tuple[Lane, ...]
    shades: tuple[Shade, ...]
    left_out: Mapping[str, int]
    set_aside: int = 0

    @property
    def consumers(self) -> list[str]:
        """Each consumer, in the order of the lanes; its place gives its colour."""
        lanes = [lane.of for lane in self.lanes if lane.of]
        bars = [bar.of for lane in self.lanes for bar in lane.bars if bar.of]
        return list(dict.fromkeys([*lanes, *bars]))


def span(events: Sequence[Event]) -> tuple[float, float]:
    """From the first event to `end`, or to the last event where the history broke off."""
    if not events:
        return 0.0, 0.0
    times = [float(event["at"]) for event in events]
    ends = [float(event["at"]) for event in events if event["event"] == "end"]
    return min(times), ends[-1] if ends else max(times)


def limited(lanes: Sequence[Lane]) -> tuple[list[Lane], dict[str, int]]:
    """As many lanes as can be looked at, those first in which something changed."""
    dropped: dict[str, int] = {}
    out: set[int] = set()
    for kinds, most in (((PARTITION,), MOST_PARTITIONS), ((NODE, CONSUMER, OTHER), MOST_PROCESSES)):
        some = [place for place, lane in enumerate(lanes) if lane.kind in kinds]
        for place in sorted(some, key=lambda place: -lanes[place].unrest)[most:]:
            out.add(place)
            dropped[lanes[place].kind] = dropped.get(lanes[place].kind, 0) + 1
    return [lane for place, lane in enumerate(lanes) if place not in out], dropped


def tracked(bars: Sequence[Bar]) -> tuple[tuple[Bar, ...], int]:
    """The bars, each on the first track that is free when it begins, and how many tracks that takes."""
    free: list[float] = []
    placed: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        track = next((number for number, until in enumerate(free) if until <= bar.start), len(free))
        free[track:] = [bar.end, *free[track + 1 :]]
        placed.append(replace(bar, track=track))
    return tuple(placed), max(1, len(free))


def overlaps(bars: Sequence[Bar]) -> list[Bar]:
    """Each time in which more than one of the bars went on."""
    found: list[Bar] = []
    reach, holder = float("-inf"), ""
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        if bar.start < reach and bar.end > bar.start:
            both = f"{holder} and {bar.label}"
            found.append(Bar(bar.start, min(bar.end, reach), OVERLAP, "two at once", both))
        if bar.end > reach:
            reach, holder = bar.end, bar.label
    return found


def gaps(bars: Sequence[Bar], until: float | None) -> list[Bar]:
    """Each time between the bars in which there was none; after the last one too, up to `until`, if that is given."""
    found: list[Bar] = []
    reach: float | None = None
    for bar in sorted(bars, key=lambda bar: bar.start):
        if reach is not None and bar.start > reach:
            found.append(Bar(reach, bar.start, GAP, "nobody"))
        reach = bar.end if reach is None else max(reach, bar.end)
    if reach is not None and until is not None and until > reach:
        found.append(Bar(reach, until, GAP, "nobody", "until the history ends", is_open=True))
    return found


def clipped(intervals: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """What of the intervals lies between `start` and `end`."""
    cut = ((max(start, a), min(end, b)) for a, b in intervals)
    return [(a, b) for a, b in cut if b > a]

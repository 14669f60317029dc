"""Maps the history's time to pixels: the visible window, its ticks, and label placement without overlaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .facts import MARKS, mark
from .lanes import Bar, Flow, LaneMark, Timeline

MOST_NAMES = 8

AFTERWARDS_S = 15.0
"""Seconds shown after a fault without a mark for the recovery."""

CHAR_W = 6.2
"""Pixels of a character at label size: a conservative estimate."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From `start` to `end`, over `width` pixels."""

    start: float
    end: float
    width: float

    @property
    def per_second(self) -> float:
        return self.width / max(self.end - self.start, 1e-9)

    def x(self, at: float) -> float:
        """The x coordinate of a time."""
        return round(min(max((at - self.start) * self.per_second, 0.0), self.width), 1)

    def shows(self, start: float, end: float) -> bool:
        """Whether the interval intersects the picture."""
        return end >= self.start and start <= self.end


def window(run: Mapping[str, Any], timeline: Timeline) -> tuple[float, float]:
    """The initial window: from before the fault until the recovery; a whole run that is not much longer."""
    marks = [at for at in (mark(run, name) for name in MARKS) if at is not None]
    if not marks and not timeline.shades:
        return timeline.start, max(timeline.end, timeline.start + 1)
    last = max(
        [timeline.zero, *marks, *(shade.end for shade in timeline.shades if abs(shade.start - timeline.zero) < 0.5)]
    )
    last = last if last > timeline.zero else timeline.zero + AFTERWARDS_S
    around = max(last - timeline.zero, 4.0)
    start, end = timeline.zero - 0.3 * around, last + 0.5 * around
    is_elsewhere = start >= timeline.end or end <= timeline.start
    if is_elsewhere or timeline.end - timeline.start <= 1.5 * (end - start):
        return timeline.start, max(timeline.end, timeline.start + 1)
    return max(start, timeline.start), max(min(end, timeline.end), timeline.start + 1)


def ticks(axis: Axis, zero: float, apart: float = 70) -> list[float]:
    """Round seconds from the fault, at least `apart` pixels apart."""
    least = apart / axis.per_second
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first = math.ceil((axis.start - zero) / step)
    count = math.floor((axis.end - zero) / step) - first + 1
    return [round((first + number) * step, 6) for number in range(min(count, 1000))]


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the line at `x`; left of it when `is_left`."""

    x: float
    text: str
    row: int = 0
    is_left: bool = False

    @property
    def reach(self) -> tuple[float, float]:
        """Its horizontal extent."""
        wide = CHAR_W * len(self.text) + 8
        return (self.x - wide, self.x) if self.is_left else (self.x, self.x + wide)


def placed(labels: Sequence[Label], width: float, most_rows: int = 8) -> tuple[list[Label], int]:
    """Labels in the minimum number of rows without overlaps, at most `most_rows`; and the number of rows.

    Labels without a place are omitted.
    """
    rows: list[list[tuple[float, float]]] = []
    result: list[Label] = []
    for label in labels:
        turned = replace(label, is_left=label.reach[1] > width and label.x > width / 2)
        low, high = turned.reach
        row = next((n for n, taken in enumerate(rows) if all(high <= a or low >= b for a, b in taken)), len(rows))
        if row >= most_rows:
            continue
        if row == len(rows):
            rows.append([])
        rows[row].append((low, high))
        result.append(replace(turned, row=row))
    return result, len(rows)


def thinned(bars: Sequence[Bar], axis: Axis, least: float = 1.5) -> list[Bar]:
    """Distinguishable bars: consecutive ones narrower than `least` pixels are merged."""
    result: list[Bar] = []
    run: list[Bar] = []
    for bar in bars:
        if not axis.shows(bar.start, bar.end):
            continue
        is_narrow = (bar.end - bar.start) * axis.per_second < least
        if run and (not is_narrow or (bar.end - run[0].start) * axis.per_second > 2 * least):
            result.append(_together(run))
            run = []
        if is_narrow:
            run.append(bar)
        else:
            result.append(bar)
    return result + ([_together(run)] if run else [])


def _together(run: Sequence[Bar]) -> Bar:
    if len(run) == 1:
        return run[0]
    names = list(dict.fromkeys(bar.label for bar in run if bar.label))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    note = f"{len(run)} close together: {', '.join(names[:MOST_NAMES])}"
    return replace(run[0], end=max(bar.end for bar in run), label=names[0] + more if names else "", note=note)


def gathered(marks: Sequence[LaneMark], axis: Axis, apart: float) -> list[LaneMark]:
    """Distinguishable marks: those of one kind within `apart` pixels of the first are merged, with a count."""
    result: dict[tuple[str, int], list[LaneMark]] = {}
    for each in marks:
        if axis.shows(each.at, each.at):
            key = (each.kind, int((each.at - axis.start) * axis.per_second // apart))
            result.setdefault(key, []).append(each)
    return [replace(some[0], count=sum(each.count for each in some)) for some in result.values()]


def stream(flow: Sequence[Flow], axis: Axis, apart: float) -> list[tuple[float, float]]:
    """The arrival of records: (x, width) of each run of `apart` pixels with a fetch; neighbours are merged."""
    inside = (each.start - axis.start for each in flow if axis.start <= each.start < axis.end)
    steps = sorted({int(since * axis.per_second // apart) for since in inside})
    result: list[tuple[float, float]] = []
    for step in steps:
        x = step * apart
        if result and result[-1][0] + result[-1][1] == x:
            result[-1] = (result[-1][0], result[-1][1] + apart)
        else:
            result.append((x, apart))
    return result

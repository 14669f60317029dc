"""From the history's time to pixels: the window that is shown, its ticks, and where labels go without colliding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .facts import MARKS, mark
from .lanes import Bar, Flow, Mark, Story

MOST_NAMES = 8

AFTERWARDS_S = 15.0
"""What is shown after a fault of which no mark says when all was well again."""

CHAR_W = 6.2
"""Pixels of a character at the size of labels: rather too many than too few."""


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
        """Where a moment is, inside the picture."""
        return round(min(max((at - self.start) * self.per_second, 0.0), self.width), 1)

    def shows(self, start: float, end: float) -> bool:
        """Whether any of it is in the picture."""
        return end >= self.start and start <= self.end


def window(run: Mapping[str, Any], story: Story) -> tuple[float, float]:
    """What to look at first: from before the fault until all was well again; all of a run that is not much longer."""
    marks = [at for at in (mark(run, name) for name in MARKS) if at is not None]
    if not marks and not story.shades:
        return story.start, max(story.end, story.start + 1)
    last = max([story.zero, *marks, *(shade.end for shade in story.shades if abs(shade.start - story.zero) < 0.5)])
    last = last if last > story.zero else story.zero + AFTERWARDS_S
    around = max(last - story.zero, 4.0)
    start, end = story.zero - 0.3 * around, last + 0.5 * around
    is_elsewhere = start >= story.end or end <= story.start
    if is_elsewhere or story.end - story.start <= 1.5 * (end - start):
        return story.start, max(story.end, story.start + 1)
    return max(start, story.start), max(min(end, story.end), story.start + 1)


def ticks(axis: Axis, zero: float, apart: float = 70) -> list[float]:
    """Round seconds from the fault, at least `apart` pixels from each other."""
    least = apart / axis.per_second
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first = math.ceil((axis.start - zero) / step)
    count = math.floor((axis.end - zero) / step) - first + 1
    return [round((first + number) * step, 6) for number in range(min(count, 1000))]


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside the line at `x`: on the line's left when `is_left`."""

    x: float
    text: str
    row: int = 0
    is_left: bool = False

    @property
    def reach(self) -> tuple[float, float]:
        """From where to where it goes."""
        wide = CHAR_W * len(self.text) + 8
        return (self.x - wide, self.x) if self.is_left else (self.x, self.x + wide)


def placed(labels: Sequence[Label], width: float, most_rows: int = 8) -> tuple[list[Label], int]:
    """Labels in as few rows as it takes for none to touch another, at most `most_rows`; and how many rows that took.

    What then still has no place is left out.
    """
    rows: list[list[tuple[float, float]]] = []
    found: list[Label] = []
    for label in labels:
        turned = replace(label, is_left=label.reach[1] > width and label.x > width / 2)
        low, high = turned.reach
        row = next((n for n, taken in enumerate(rows) if all(high <= a or low >= b for a, b in taken)), len(rows))
        if row >= most_rows:
            continue
        if row == len(rows):
            rows.append([])
        rows[row].append((low, high))
        found.append(replace(turned, row=row))
    return found, len(rows)


def thinned(bars: Sequence[Bar], axis: Axis, least: float = 1.5) -> list[Bar]:
    """Bars that can be told apart: those narrower than `least` pixels that follow on each other become one."""
    found: list[Bar] = []
    run: list[Bar] = []
    for bar in bars:
        if not axis.shows(bar.start, bar.end):
            continue
        is_narrow = (bar.end - bar.start) * axis.per_second < least
        if run and (not is_narrow or (bar.end - run[0].start) * axis.per_second > 2 * least):
            found.append(_together(run))
            run = []
        if is_narrow:
            run.append(bar)
        else:
            found.append(bar)
    return found + ([_together(run)] if run else [])


def _together(run: Sequence[Bar]) -> Bar:
    if len(run) == 1:
        return run[0]
    names = list(dict.fromkeys(bar.label for bar in run if bar.label))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    note = f"{len(run)} close together: {', '.join(names[:MOST_NAMES])}"
    return replace(run[0], end=max(bar.end for bar in run), label=names[0] + more if names else "", note=note)


def gathered(marks: Sequence[Mark], axis: Axis, apart: float) -> list[Mark]:
    """Marks that can be told apart: those of a kind within `apart` pixels of the first become one with a count."""
    found: dict[tuple[str, int], list[Mark]] = {}
    for each in marks:
        if axis.shows(each.at, each.at):
            key = (each.kind, int((each.at - axis.start) * axis.per_second // apart))
            found.setdefault(key, []).append(each)
    return [replace(some[0], count=sum(each.count for each in some)) for some in found.values()]


def stream(flow: Sequence[Flow], axis: Axis, apart: float) -> list[tuple[float, float]]:
    """Where records came: (x, width) of each run of `apart` pixels in which any did, neighbours joined."""
    inside = (each.start - axis.start for each in flow if axis.start <= each.start < axis.end)
    steps = sorted({int(since * axis.per_second // apart) for since in inside})
    found: list[tuple[float, float]] = []
    for step in steps:
        x = step * apart
        if found and found[-1][0] + found[-1][1] == x:
            found[-1] = (found[-1][0], found[-1][1] + apart)
        else:
            found.append((x, apart))
    return found

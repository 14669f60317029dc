"""The lanes as a picture, of rectangles and texts on one time axis, with faults as shades and T0 to T5 as lines.

They are also a Chrome trace, for a close look in Perfetto or in `chrome://tracing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import timeline as kinds
from .facts import amount, known_marks, mapping, moment, seconds, text
from .timeline import CONSUMER, PARTITION, Bar, Lane, LaneMark, Timeline, timeline_of

NAMES_W, LANES_W, ROW_H, LABEL_H = 172.0, 980.0, 18.0, 14.0
"""Pixels: width of the names and of the lanes, height of a lane and of a label above the lanes."""

CHAR_W = 6.2
"""Pixels of a character: a conservative estimate."""

AFTERWARDS_S = 15.0
"""Seconds shown after a fault without a mark for the recovery."""

COLOURS = 5
LONGEST_NAME = 24
MARKS_APART = 6
BARS = {kinds.LIFE: (3, 11), kinds.FAULT: (3, 11), kinds.ELECTED: (3, 11), kinds.PAUSE: (5, 7), kinds.LEASE: (15, 2),
        kinds.FETCH: (2, 14), kinds.GAP: (2, 14), kinds.OVERLAP: (1, 16)}  # fmt: skip
"""Top and height of each kind's bars in their lane, in the order in which they are drawn."""

SIGNS = {"elected": "◆", "session": "✕", "exit": "✕", "over": "✕", "failed": "✕", "start": "▲", "stop": "■",
         "registered": "△", "batch": "|"}  # fmt: skip
"""Marks differ by shape, not by colour only."""

_HEADINGS = {
    kinds.NODE: "Coordinators", CONSUMER: "Consumers", kinds.OTHER: "Queries and others", PARTITION: "Partitions",
}  # fmt: skip


class Shape(NamedTuple):
    """A rectangle, or the text at a point; `title` is its tooltip."""

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    kind: str = ""
    title: str = ""
    text: str = ""


class Picture(NamedTuple):
    """All shapes, in the order in which they are drawn; `name` is the description for screen readers."""

    name: str
    height: float
    shapes: list[Shape]


@dataclass(frozen=True, slots=True)
class Axis:
    """From `start` to `end`, in the history's time, beside the names; `zero` is the time of the fault."""

    start: float
    end: float
    zero: float = 0.0

    @property
    def per_second(self) -> float:
        return LANES_W / max(self.end - self.start, 1e-9)

    def x(self, at: float) -> float:
        """The x coordinate of a time; of the nearer edge for one outside."""
        return NAMES_W + min(max((at - self.start) * self.per_second, 0.0), LANES_W)

    def shows(self, start: float, end: float) -> bool:
        """Whether the interval intersects the picture."""
        return end >= self.start and start <= self.end


def window(run: Mapping[str, Any], timeline: Timeline) -> tuple[float, float]:
    """From before the fault until the recovery; the whole run if that is short, or has two fetchers elsewhere."""
    whole = timeline.start, max(timeline.end, timeline.start + 1)
    marks = known_marks(run).values()
    if not marks and not timeline.faults:
        return whole
    zero = timeline.zero
    last = max([zero, *marks, *(bar.end for bar in timeline.faults if abs(bar.start - zero) < 0.5)])
    last = last if last > zero else zero + AFTERWARDS_S
    around = max(last - zero, 4.0)
    start, end = zero - 0.3 * around, last + 0.5 * around
    bars = [bar for lane in timeline.lanes for bar in lane.bars if bar.kind == kinds.OVERLAP]
    is_elsewhere = start >= timeline.end or any(bar.end < start or bar.start > end for bar in bars)
    if is_elsewhere or end <= timeline.start or timeline.end - timeline.start <= 1.5 * (end - start):
        return whole
    return max(start, whole[0]), min(end, whole[1])


def ticks(axis: Axis, apart: float = 70) -> list[float]:
    """Round seconds from the fault, at least `apart` pixels apart."""
    least = apart / axis.per_second
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil((axis.start - axis.zero) / step), math.floor((axis.end - axis.zero) / step)
    return [round(number * step, 6) for number in range(first, last + 1)]


def picture(run: Mapping[str, Any], timeline: Timeline) -> Picture:
    axis = Axis(*window(run, timeline), timeline.zero)
    marks = [(name, at) for name, at in known_marks(run).items() if axis.shows(at, at)]
    top = y = LABEL_H * len(marks) + ROW_H
    colours = {of: f" k{place % COLOURS}" for place, of in enumerate(timeline.consumers)}
    lanes: list[Shape] = []
    for heading, some in _headed(timeline).items():
        if heading:
            y += ROW_H + 6
            lanes.append(Shape(0, y - 5, kind="heading", title=heading, text=_cut(heading)))
        for lane in some:
            lanes.append(Shape(0, y + 13, kind="name", title=lane.name, text=_cut(lane.name)))
            lanes += [*_bars(axis, lane, y, colours), *_labels(axis, lane, y), *_signs(axis, lane, y)]
            y += ROW_H
    shapes = []
    for at in ticks(axis):
        x, shown = axis.x(axis.zero + at), seconds(at)
        shapes.append(Shape(x, top, 1, y - top, "grid"))
        shapes += [Shape(x, under, kind="tick mid", text=shown) for under in (top - 4, y + 14)]
    for bar in timeline.faults:
        if axis.shows(bar.start, bar.end):
            x = axis.x(bar.start)
            shapes.append(Shape(x, top, max(axis.x(bar.end) - x, 1.5), y - top, "shade", f"fault: {bar.label}"))
    shapes += lanes
    for row, (name, at) in enumerate(marks):
        x, under = axis.x(at), LABEL_H * row
        is_left = x > NAMES_W + LANES_W / 2
        what = text(mapping(mapping(run.get("marks")).get(name)).get("what"))
        shown = f"{name}  {moment(at, axis.zero)}" + (f"  {what[:60]}" if what else "")
        shapes.append(Shape(x, under + 2, 1, y - under, "moment zero" if name == "T0" else "moment", shown))
        shapes.append(Shape(x - 5 if is_left else x + 5, under + 11, kind="end" if is_left else "called", text=shown))
    name = f"Lanes, {moment(axis.start, axis.zero)} to {moment(axis.end, axis.zero)}"
    return Picture(name, y + ROW_H, shapes)


def _headed(timeline: Timeline) -> dict[str, list[Lane]]:
    """The lanes under their headings."""
    many = len({lane.group for lane in timeline.lanes if lane.kind in (CONSUMER, PARTITION)}) > 1
    found: dict[str, list[Lane]] = {}
    for lane in timeline.lanes:
        of = f" of {lane.group}" if many and lane.kind in (CONSUMER, PARTITION) and lane.group else ""
        found.setdefault(_HEADINGS.get(lane.kind, "") + of, []).append(lane)
    return found


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def described(lane: Lane, bar: Bar, zero: float) -> str:
    """A bar in words: what, from when to when, and its note."""
    what = {
        kinds.FETCH: f"{lane.name} is fetched by {bar.label}",
        kinds.GAP: f"{lane.name} has no fetcher",
        kinds.OVERLAP: f"{lane.name} has two fetchers: {bar.note}",
        kinds.LEASE: f"{lane.name} held its lease",
        kinds.FAULT: f"fault: {bar.label}",
    }.get(bar.kind, bar.label)
    until = "the end of the history" if bar.is_open else moment(bar.end, zero)
    during = f"{moment(bar.start, zero)} to {until} ({seconds(bar.end - bar.start)})"
    return f"{what}, {during}" + (f"; {bar.note}" if bar.note and bar.kind not in (kinds.GAP, kinds.OVERLAP) else "")


def _bars(axis: Axis, lane: Lane, y: float, colours: Mapping[str, str]) -> Iterator[Shape]:
    """The bars; of those narrower than a pixel the first of each kind in each pixel, and no downtimes."""
    seen: set[tuple[str, int]] = set()
    order = list(BARS)
    for bar in sorted(lane.bars, key=lambda bar: order.index(bar.kind)):
        x = axis.x(bar.start)
        width = axis.x(bar.end) - x
        if not axis.shows(bar.start, bar.end) or (width < 1 and (bar.kind == kinds.GAP or (bar.kind, int(x)) in seen)):
            continue
        seen.add((bar.kind, int(x)))
        top, height = BARS[bar.kind]
        of = bar.of or (lane.of if bar.kind == kinds.LIFE else "")
        kind, title = bar.kind + colours.get(of, ""), described(lane, bar, axis.zero)
        yield Shape(x, y + top, max(width, 1.0), height, kind, title)


def _labels(axis: Axis, lane: Lane, y: float) -> Iterator[Shape]:
    """The bars' labels, where there is room before the next bar."""
    bars = [bar for bar in lane.bars if bar.label and axis.shows(bar.start, bar.end)]
    bars.sort(key=lambda bar: (bar.start, list(BARS).index(bar.kind)))
    ends = [axis.x(bar.start) for bar in bars[1:]] + [NAMES_W + LANES_W]
    for bar, end in zip(bars, ends, strict=False):  # without bars, too, there is one end
        lasted = seconds(bar.end - bar.start) + (", to the end" if bar.is_open else "")
        shown = {kinds.GAP: lasted, kinds.OVERLAP: f"{bar.label} {lasted}"}.get(bar.kind, bar.label)
        x = axis.x(bar.start) + 4
        if x + CHAR_W * len(shown) <= end:
            yield Shape(x, y + 12.5, kind=f"in on-{bar.kind}", text=shown)


def _signs(axis: Axis, lane: Lane, y: float) -> Iterator[Shape]:
    """The marks, and the ends of processes; those of one kind close together are one."""
    lives = [bar for bar in lane.bars if bar.kind == kinds.LIFE and not bar.is_open]
    ended = [LaneMark(bar.end, "exit", f"{bar.label} {bar.note}") for bar in lives]
    found: dict[tuple[str, int], list[LaneMark]] = {}
    for each in (*lane.marks, *ended):
        if axis.shows(each.at, each.at):
            found.setdefault((each.kind, int(axis.x(each.at) // MARKS_APART)), []).append(each)
    for (kind, _), some in found.items():
        more = f" and {amount(len(some) - 1)} more like it" if len(some) > 1 else ""
        title = f"{moment(some[0].at, axis.zero)} {some[0].note or kind}{more}"
        yield Shape(axis.x(some[0].at), y + 13, kind=f"m {kind}", title=title, text=SIGNS[kind])


def trace(run: Mapping[str, Any], events: Sequence[Any]) -> dict[str, Any]:
    """The trace: a process for each lane, and a thread for each kind of its bars, and for each fetcher.

    Times are microseconds from the start of the history; `args` has them from the fault, in words.

    :param run: the content of run.json; all fields are optional.  :param events: the history's events, in their order.
    """
    timeline, _ = timeline_of(mapping(run), events)
    found: list[dict[str, Any]] = []

    def micros(at: float) -> int:
        return round((at - timeline.start) * 1e6)

    def named(what: str, pid: int, tid: int, name: str) -> None:
        found.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})

    for pid, lane in enumerate(timeline.lanes, 1):
        named("process_name", pid, 0, f"{lane.group} {lane.name}".strip())
        found.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        threads: dict[str, int] = {}
        for bar in lane.bars:
            thread = f"{bar.kind} {bar.label}" if bar.kind == kinds.FETCH else bar.kind
            if thread not in threads:
                threads[thread] = len(threads) + 1
                named("thread_name", pid, threads[thread], thread)
            place = {"pid": pid, "tid": threads[thread], "ts": micros(bar.start)}
            args = {"what": described(lane, bar, timeline.zero)}
            what = {"name": bar.label or bar.kind, "cat": bar.kind, "args": args}
            found.append({"ph": "X", "dur": micros(bar.end) - micros(bar.start), **place, **what})
        for each in lane.marks:
            what = {"name": each.note or each.kind, "cat": each.kind, "args": {"at": moment(each.at, timeline.zero)}}
            found.append({"ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": micros(each.at), **what})
    return {"displayTimeUnit": "ms", "traceEvents": found}

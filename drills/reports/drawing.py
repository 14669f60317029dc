"""The picture: lanes on one time axis, with faults as shades and T0 to T5 as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .axis import Axis, Label, placed, thinned, ticks
from .facts import MARKS, mapping, mark, moment, seconds, text
from .lanes import CONSUMER, NODE, OTHER, PARTITION, Bar, Lane, Timeline
from .rows import Canvas, drawn, height_of
from .shapes import Shape, path, rect, words

NAMES_W = 172
"""Width of the name column in pixels."""
LABEL_H, TICK_H, HEADING_H = 16.0, 18.0, 24.0
LONGEST_NAME = 24
MOST_SHADES = 60
_HEADINGS = {NODE: "Coordinators", CONSUMER: "Consumers", OTHER: "Queries and others", PARTITION: "Partitions"}


Frame = tuple[float, float]
"""Start and end."""


class Picture(NamedTuple):
    """The lanes' names, and the lanes, which scroll when they are wider than the page.

    :ivar name: its description for screen readers.  :ivar start: its left edge, in seconds from the fault.
    :ivar rate: pixels per second.
    """

    name: str
    names: list[Shape]
    lanes: list[Shape]
    width: float
    height: float
    start: float
    rate: float
    is_small: bool


def picture(run: Mapping[str, Any], timeline: Timeline, axis: Axis, name: str, frame: Frame | None = None) -> Picture:
    """The picture of a timeline.

    :param frame: selects the small picture, with a frame around the large picture's window.
    """
    is_small = frame is not None
    canvas = Canvas(axis, timeline.zero, {of: place for place, of in enumerate(timeline.consumers)}, is_small)
    over = _above(run, timeline, canvas)
    rows, height = _rows(timeline, canvas, over.top)
    tall = height + (4.0 if is_small else TICK_H + 4)
    body = [*_grid(canvas, rows, over.top, height), *over.shades(height)]
    for lane, y, high, _ in rows:
        body += drawn(canvas, lane, y, high)
    body += [*over.lines(height), *_ticks(canvas, over.top - 6), *_ticks(canvas, height + TICK_H - 4)]
    if frame is not None:
        x, end = axis.x(frame[0]), axis.x(frame[1])
        body.append(rect(x + 1, 1, end - x - 2, tall - 2, "box", "window of the picture above"))
    names = _names(canvas, rows, over.top)
    return Picture(name, names, body, axis.width, tall, axis.start - timeline.zero, axis.per_second, is_small)


Row = tuple[Lane, float, float, str]
"""A lane, its upper edge, its height, and the heading above it, if any."""


def _rows(timeline: Timeline, canvas: Canvas, top: float) -> tuple[list[Row], float]:
    partitions = sum(lane.kind == PARTITION for lane in timeline.lanes)
    consumers = sum(lane.kind == CONSUMER for lane in timeline.lanes)
    many = len({lane.group for lane in timeline.lanes if lane.kind in (CONSUMER, PARTITION)}) > 1
    rows: list[Row] = []
    y, before = top, ""
    for lane in timeline.lanes:
        heading = _HEADINGS.get(lane.kind, "")
        if many and lane.kind in (CONSUMER, PARTITION) and lane.group:
            heading += f" of {lane.group}"
        is_new, before = heading != before, heading
        if is_new and heading:
            y += 3 if canvas.is_small else HEADING_H
        tall = height_of(canvas, lane, partitions, consumers)
        rows.append((lane, y, tall, heading if is_new else ""))
        y += tall
    return rows, y + (1 if canvas.is_small else 4)


def _names(canvas: Canvas, rows: Sequence[Row], top: float) -> list[Shape]:
    if canvas.is_small:
        return [words(0, top + 10, "The whole run", "name")]
    out = []
    for lane, y, tall, heading in rows:
        if heading:
            out.append(words(0, y - 7, _cut(heading), "heading", heading))
        if lane.of:
            class_, fill = f"fetch {canvas.stroke(lane.of)}", canvas.fill(lane.of)
            out.append(rect(NAMES_W - 18, y + tall / 2 - 5, 10, 10, class_, fill=fill))
        size = " low" if tall < 12 else " lower" if tall < 16 else ""
        out.append(words(0, y + tall / 2 + 3.5, _cut(lane.name), f"name{size}", lane.name))
    return out


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _grid(canvas: Canvas, rows: Sequence[Row], top: float, height: float) -> list[Shape]:
    xs = (canvas.axis.x(canvas.zero + at) for at in ticks(canvas.axis, canvas.zero))
    lines = "".join(f"M{x:.1f} {top:.1f}V{height:.1f}" for x in xs)
    ruled = "".join(f"M0 {y:.1f}h{canvas.axis.width:.0f}" for _, y, _, heading in rows if heading)
    return [path(lines or "M0 0", "grid"), path(ruled or "M0 0", "rule")]


def _ticks(canvas: Canvas, y: float) -> list[Shape]:
    if canvas.is_small:
        return []
    out = []
    for at in ticks(canvas.axis, canvas.zero):
        x = canvas.axis.x(canvas.zero + at)
        if 12 <= x <= canvas.axis.width - 14:
            out.append(words(x, y, seconds(at), "tick mid halo"))
    return out


@dataclass(frozen=True, slots=True)
class Over:
    """The overlay of all lanes: lines at `marks`, shades of faults, and their labels above, from `top` up."""

    canvas: Canvas
    marks: Sequence[tuple[str, float]]
    faults: Sequence[Bar]
    labels: Sequence[Label]
    top: float

    @property
    def lasting(self) -> Sequence[Bar]:
        """The faults with lines at their ends; none in the small picture."""
        return () if self.canvas.is_small else [bar for bar in self.faults if bar.end > bar.start]

    def lines(self, height: float) -> list[Shape]:
        """T0 to T5, the starts and ends of faults, and all labels."""
        axis = self.canvas.axis
        edges = [axis.x(at) for bar in self.lasting for at in (bar.start, bar.end)]
        edge = "".join(f"M{x:.1f} {self.top:.1f}V{height:.1f}" for x in edges if 0 < x < axis.width)
        rows = {(label.x, label.text): label.row for label in self.labels}
        out = [path(edge, "edge")] if edge else []
        for shown, at in self.marks:
            x = self.canvas.axis.x(at)
            y = rows.get((x, shown), 0) * LABEL_H
            class_ = "moment zero" if shown.startswith("T0") else "moment"
            out.append(path(f"M{x:.1f} {y + 2:.1f}V{height:.1f}", class_))
        for label in self.labels:
            x = label.x - 5 if label.is_left else label.x + 5
            class_ = "called halo" if label.text.startswith(MARKS) else "alarm halo"
            out.append(words(x, label.row * LABEL_H + 11, label.text, class_ + (" end" if label.is_left else "")))
        return out

    def shades(self, height: float) -> list[Shape]:
        """The faults, each with its duration."""
        out, zero = [], self.canvas.zero
        for bar in self.faults:
            x, width = self.canvas.extent(bar)
            lasted = f" for {seconds(bar.end - bar.start)}" if bar.end > bar.start else ""
            title = f"fault: {bar.label}, {moment(bar.start, zero)}{lasted}" + (f", {bar.note}" if bar.note else "")
            top = next((label.row * LABEL_H + 2 for label in self.labels if (label.x, label.text) == (x, bar.label)), 0)
            out.append(rect(x, top, max(width, 1.5), height - top, "shade", title))
        return out


def _above(run: Mapping[str, Any], timeline: Timeline, canvas: Canvas) -> Over:
    axis = canvas.axis
    marks = [(name, at) for name in MARKS if (at := mark(run, name)) is not None and axis.shows(at, at)]
    called = [(_called(run, name, at, timeline.zero), at) for name, at in marks]
    shades = [Bar(each.start, each.end, "shade", each.label) for each in timeline.shades]
    faults = thinned(shades, axis, 4)[:MOST_SHADES]
    if canvas.is_small:
        return Over(canvas, called[:1], faults, (), 3.0)
    requested = [Label(axis.x(at), shown) for shown, at in called]
    requested += [Label(axis.x(bar.start), bar.label) for bar in faults]
    labels, rows = placed(requested, axis.width)
    return Over(canvas, called, faults, labels, rows * LABEL_H + TICK_H + 8)


def _called(run: Mapping[str, Any], name: str, at: float, zero: float) -> str:
    what = text(mapping(mapping(run.get("marks")).get(name)).get("what"))
    return f"{name}  {moment(at, zero)}" + (f"  {what[:60]}" if what else "")


def whole(timeline: Timeline, widest: float) -> Axis:
    """The whole run, wide enough to distinguish seconds, at most `widest` pixels."""
    long = max(timeline.end - timeline.start, 1.0)
    return Axis(timeline.start, timeline.start + long, float(min(max(980.0, long * 24), widest)))

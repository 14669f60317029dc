"""The picture: one time axis over all lanes, the faults shaded over them, T0 to T5 as lines through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .axis import Axis, Label, placed, thinned, ticks
from .facts import MARKS, mapping, mark, moment, seconds, text
from .lanes import CONSUMER, NODE, OTHER, PARTITION, Bar, Lane, Story
from .rows import COLOURS, TEXTURES, Canvas, drawn, height_of
from .svg import element, rect, said, tag, words

NAMES_W = 172
LABEL_H, TICK_H, HEADING_H = 16.0, 18.0, 24.0
LONGEST_NAME = 24
MOST_SHADES = 60
_HEADINGS = {NODE: "Coordinators", CONSUMER: "Consumers", OTHER: "Queries and others", PARTITION: "Partitions"}


Frame = tuple[float, float]
"""From when to when."""


def picture(run: Mapping[str, Any], story: Story, axis: Axis, name: str, frame: Frame | None = None) -> str:
    """The lanes' names, and beside them the lanes, which scroll when they are wider than the page.

    :param name: what it shows, for who cannot see it.
    :param frame: makes it the small picture, with a frame around what the large one shows.
    """
    is_small = frame is not None
    canvas = Canvas(axis, story.zero, {of: place for place, of in enumerate(story.consumers)}, is_small)
    over = _above(run, story, canvas)
    rows, height = _rows(story, canvas, over.top)
    foot = 4.0 if is_small else TICK_H + 4
    body = [_grid(canvas, rows, over.top, height), over.shades(height)]
    body += [drawn(canvas, lane, y, tall) for lane, y, tall, _ in rows]
    body += [over.lines(height), _ticks(canvas, over.top - 6), _ticks(canvas, height + TICK_H - 4)]
    if frame is not None:
        x, end = axis.x(frame[0]), axis.x(frame[1])
        body.append(rect(x + 1, 1, end - x - 2, height + foot - 2, "box", "what the picture above shows"))
    data: dict[str, Any] = {"data_start": axis.start - story.zero, "data_rate": f"{axis.per_second:.6g}"}
    box = f"0 0 {axis.width:.0f} {height + foot:.0f}"
    high, names = height + foot, _names(canvas, rows, over.top)
    left = tag("svg", names, class_="names", width=NAMES_W, height=high, aria_hidden="true")
    data |= {"role": "img", "aria_label": name, "preserveAspectRatio": "none" if is_small else None}
    right = tag("svg", "".join(body), class_="lanes", width=axis.width, height=high, viewBox=box, **data)
    return element("div", left + right, class_="chart small" if is_small else "chart", tabindex="0")


Row = tuple[Lane, float, float, str]
"""A lane, its upper edge, its height, and the heading above it, if there is one."""


def _rows(story: Story, canvas: Canvas, top: float) -> tuple[list[Row], float]:
    partitions = sum(lane.kind == PARTITION for lane in story.lanes)
    consumers = sum(lane.kind == CONSUMER for lane in story.lanes)
    many = len({lane.group for lane in story.lanes if lane.kind in (CONSUMER, PARTITION)}) > 1
    rows: list[Row] = []
    y, before = top, ""
    for lane in story.lanes:
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


def _names(canvas: Canvas, rows: Sequence[Row], top: float) -> str:
    if canvas.is_small:
        return words(0, top + 10, "The whole run", "name")
    out = []
    for lane, y, tall, heading in rows:
        if heading:
            out.append(tag("text", said(_cut(heading)), heading, x=0, y=y - 7, class_="heading"))
        if lane.of:
            class_, fill = f"fetch {canvas.stroke(lane.of)}", canvas.fill(lane.of)
            out.append(rect(NAMES_W - 18, y + tall / 2 - 5, 10, 10, class_, fill=fill))
        size = " low" if tall < 12 else " lower" if tall < 16 else ""
        out.append(tag("text", said(_cut(lane.name)), lane.name, x=0, y=y + tall / 2 + 3.5, class_=f"name{size}"))
    return "".join(out)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _grid(canvas: Canvas, rows: Sequence[Row], top: float, height: float) -> str:
    xs = (canvas.axis.x(canvas.zero + at) for at in ticks(canvas.axis, canvas.zero))
    lines = "".join(f"M{x:.1f} {top:.1f}V{height:.1f}" for x in xs)
    ruled = "".join(f"M0 {y:.1f}h{canvas.axis.width:.0f}" for _, y, _, heading in rows if heading)
    return tag("path", d=lines or "M0 0", class_="grid") + tag("path", d=ruled or "M0 0", class_="rule")


def _ticks(canvas: Canvas, y: float) -> str:
    if canvas.is_small:
        return ""
    out = []
    for at in ticks(canvas.axis, canvas.zero):
        x = canvas.axis.x(canvas.zero + at)
        if 12 <= x <= canvas.axis.width - 14:
            out.append(words(x, y, seconds(at), "tick mid halo"))
    return "".join(out)


@dataclass(frozen=True, slots=True)
class Over:
    """What goes through all lanes: lines at `marks`, shades of faults, and above them their labels, from `top` up."""

    canvas: Canvas
    marks: Sequence[tuple[str, float]]
    faults: Sequence[Bar]
    labels: Sequence[Label]
    top: float

    @property
    def lasting(self) -> Sequence[Bar]:
        """The faults whose ends are drawn as lines: none in the small picture."""
        return () if self.canvas.is_small else [bar for bar in self.faults if bar.end > bar.start]

    def lines(self, height: float) -> str:
        """T0 to T5, where faults begin and end, and all labels."""
        axis = self.canvas.axis
        edges = [axis.x(at) for bar in self.lasting for at in (bar.start, bar.end)]
        edge = "".join(f"M{x:.1f} {self.top:.1f}V{height:.1f}" for x in edges if 0 < x < axis.width)
        rows = {(label.x, label.text): label.row for label in self.labels}
        out = [tag("path", d=edge, class_="edge")] if edge else []
        for shown, at in self.marks:
            x = self.canvas.axis.x(at)
            y = rows.get((x, shown), 0) * LABEL_H
            class_ = "moment zero" if shown.startswith("T0") else "moment"
            out.append(tag("path", d=f"M{x:.1f} {y + 2:.1f}V{height:.1f}", class_=class_))
        for label in self.labels:
            x = label.x - 5 if label.is_left else label.x + 5
            class_ = "called halo" if label.text.startswith(MARKS) else "alarm halo"
            out.append(words(x, label.row * LABEL_H + 11, label.text, class_ + (" end" if label.is_left else "")))
        return "".join(out)

    def shades(self, height: float) -> str:
        """The faults, each over the time for which it lasted."""
        out, zero = [], self.canvas.zero
        for bar in self.faults:
            x, width = self.canvas.extent(bar)
            lasted = f" for {seconds(bar.end - bar.start)}" if bar.end > bar.start else ""
            title = f"fault: {bar.label}, {moment(bar.start, zero)}{lasted}" + (f", {bar.note}" if bar.note else "")
            top = next((label.row * LABEL_H + 2 for label in self.labels if (label.x, label.text) == (x, bar.label)), 0)
            out.append(rect(x, top, max(width, 1.5), height - top, "shade", title))
        return "".join(out)


def _above(run: Mapping[str, Any], story: Story, canvas: Canvas) -> Over:
    axis = canvas.axis
    marks = [(name, at) for name in MARKS if (at := mark(run, name)) is not None and axis.shows(at, at)]
    called = [(_called(run, name, at, story.zero), at) for name, at in marks]
    shades = [Bar(each.start, each.end, "shade", each.label) for each in story.shades]
    faults = thinned(shades, axis, 4)[:MOST_SHADES]
    if canvas.is_small:
        return Over(canvas, called[:1], faults, (), 3.0)
    wanted = [Label(axis.x(at), shown) for shown, at in called]
    wanted += [Label(axis.x(bar.start), bar.label) for bar in faults]
    labels, rows = placed(wanted, axis.width)
    return Over(canvas, called, faults, labels, rows * LABEL_H + TICK_H + 8)


def _called(run: Mapping[str, Any], name: str, at: float, zero: float) -> str:
    what = text(mapping(mapping(run.get("marks")).get(name)).get("what"))
    return f"{name}  {moment(at, zero)}" + (f"  {what[:60]}" if what else "")


def definitions() -> str:
    """The textures that all pictures of the page use."""
    textures = ("", "M-1 7L7 -1M5 13L13 5M-1 13L13 -1", "M3 3h1.5M9 9h1.5", "M3 0v12M9 0v12")
    out = []
    for number in range(COLOURS * TEXTURES):
        key = f"k{number % COLOURS}"
        base = tag("rect", width=12, height=12, class_="under") + tag("rect", width=12, height=12, class_=f"base {key}")
        drawn_ = tag("path", d=textures[number % TEXTURES] or "M0 0", class_=f"texture {key}")
        out.append(tag("pattern", base + drawn_, id=f"t{number}", width=12, height=12, patternUnits="userSpaceOnUse"))
    still = tag("rect", width=6, height=6, class_="under") + tag("path", d="M0 0l6 6M6 0l-6 6", class_="still")
    out.append(tag("pattern", still, id="paused", width=6, height=6, patternUnits="userSpaceOnUse"))
    return tag("svg", tag("defs", "".join(out)), width=0, height=0, class_="defs", aria_hidden="true")


def whole(story: Story, widest: float) -> Axis:
    """All of the run, as wide as it takes to see a second, at most `widest` pixels."""
    long = max(story.end - story.start, 1.0)
    return Axis(story.start, story.start + long, float(min(max(980.0, long * 24), widest)))

"""Draws single lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .axis import CHAR_W, Axis, gathered, stream, thinned
from .facts import amount, moment, seconds
from .lanes import (
    CONSUMER,
    ELECTED,
    ENSEMBLE,
    FETCH,
    GAP,
    LEASE,
    LIFE,
    NODE,
    OTHER,
    OVERLAP,
    PARTITION,
    PAUSE,
    Bar,
    Lane,
    LaneMark,
)
from .shapes import Shape, path, rect, words

COLOURS, TEXTURES = 5, 4
MOST_TRACKS = 4


@dataclass(frozen=True, slots=True)
class Canvas:
    """The context of all lanes.

    :ivar zero: the time of the fault.  :ivar places: the position of each consumer, which determines its colour.
    :ivar is_small: whether it is the small picture, without labels.
    """

    axis: Axis
    zero: float
    places: Mapping[str, int]
    is_small: bool = False

    def fill(self, of: str) -> str:
        """A consumer's colour and texture."""
        return f"url(#t{self.places.get(of, 0) % (COLOURS * TEXTURES)})"

    def stroke(self, of: str) -> str:
        """The class of a consumer's outline."""
        return f"k{self.places.get(of, 0) % COLOURS}"

    def extent(self, bar: Bar) -> tuple[float, float]:
        """A bar's x coordinate and width."""
        x = self.axis.x(bar.start)
        return x, round(self.axis.x(bar.end) - x, 1)

    def during(self, bar: Bar) -> str:
        """A bar's start, end and duration, for its tooltip."""
        until = "the end of the history" if bar.is_open else moment(bar.end, self.zero)
        return f"{moment(bar.start, self.zero)} to {until} ({seconds(bar.end - bar.start)})"

    def inside(
        self, x: float, width: float, middle: float, shown: str, class_: str = "in", indent: float = 5
    ) -> list[Shape]:
        """A text in a bar, if there is room."""
        fits = not self.is_small and CHAR_W * len(shown) + indent + 3 <= width
        return [words(x + indent, middle + 3.5, shown, class_)] if fits else []


def height_of(canvas: Canvas, lane: Lane, partitions: int, consumers: int) -> float:
    """A lane's height; it decreases with the number of lanes."""
    if canvas.is_small:
        one = 2.0 if partitions > 40 else 3.0 if partitions > 24 else 5.0
        return {ENSEMBLE: 5.0, NODE: 6.0, CONSUMER: 4.0, OTHER: 3.0, PARTITION: one}[lane.kind]
    if lane.kind == PARTITION:
        one = 22.0 if partitions <= 16 else 17.0 if partitions <= 40 else 13.0 if partitions <= 80 else 9.0
        return one * _tracks(canvas, lane)
    return {ENSEMBLE: 26.0, NODE: 34.0, CONSUMER: 22.0 if consumers <= 10 else 17.0, OTHER: 18.0}[lane.kind]


def drawn(canvas: Canvas, lane: Lane, y: float, height: float) -> list[Shape]:
    """A lane whose upper edge is at `y`."""
    how: Mapping[str, Callable[[Canvas, Lane, float, float], list[Shape]]] = {
        ENSEMBLE: _ensemble, NODE: _process, CONSUMER: _process, OTHER: _process, PARTITION: _partition,
    }  # fmt: skip
    return how[lane.kind](canvas, lane, y, height)


# ---- the ensemble


def _ensemble(canvas: Canvas, lane: Lane, y: float, height: float) -> list[Shape]:
    middle, free = y + height / 2, float("-inf")
    out: list[Shape] = []
    marks = sorted(gathered(lane.marks, canvas.axis, 5), key=lambda mark: mark.at)
    for place, mark in enumerate(marks):
        x = canvas.axis.x(mark.at)
        out.append(_sign(mark, x, middle, canvas))
        room = canvas.axis.x(marks[place + 1].at) if place + 1 < len(marks) else canvas.axis.width
        shown = f"{mark.label} elected" if mark.kind == "elected" else f"{mark.label}: session ended"
        wide = CHAR_W * len(shown) + 10
        if not canvas.is_small and mark.count == 1 and x >= free and x + wide <= room:
            out.append(words(x + 8, middle + 3.5, shown, "soft halo"))
            free = x + wide
    return out


def _sign(mark: LaneMark, x: float, y: float, canvas: Canvas) -> Shape:
    """A mark's shape: marks differ by shape, not by colour only."""
    size = 2.5 if canvas.is_small else 4.5
    more = f" and {amount(mark.count - 1)} more like it" if mark.count > 1 else ""
    title = f"{moment(mark.at, canvas.zero)} {mark.note or mark.label or mark.kind}{more}"
    if mark.kind == "elected":
        line = f"M{x:.1f} {y - size:.1f}l{size} {size}l{-size} {size}l{-size} {-size}z"
    elif mark.kind in ("start", "registered"):
        line = f"M{x:.1f} {y - 3:.1f}l3 6h-6z"
    elif mark.kind == "stop":
        line = f"M{x - 2.5:.1f} {y - 2.5:.1f}h5v5h-5z"
    elif mark.kind == "batch":
        line = f"M{x:.1f} {y - 4:.1f}v8"
    else:
        line = f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
    return path(line, f"m {mark.kind}", title)


# ---- processes


def _process(canvas: Canvas, lane: Lane, y: float, height: float) -> list[Shape]:
    top = y + (10 if lane.kind == NODE and not canvas.is_small else 3 if not canvas.is_small else 1)
    tall = height - (top - y) - (8 if lane.kind in (NODE, CONSUMER) and not canvas.is_small else 2)
    out = [shape for bar in _of(lane, LIFE, canvas.axis) for shape in _life(canvas, lane, bar, top, tall)]
    for kind in (ELECTED, PAUSE):
        for bar in _of(lane, kind, canvas.axis):
            x, width = canvas.extent(bar)
            note = f"{bar.label}, {canvas.during(bar)}" + (f"; {bar.note}" if bar.note else "")
            inset = min(3.0, tall / 8) if kind == PAUSE else 0.0  # the covered bar stays visible at the edges
            fill = "url(#paused)" if kind == PAUSE else None
            out.append(rect(x, top + inset, width, tall - 2 * inset, kind, note, fill=fill))
            out += canvas.inside(x, width, top + tall / 2, bar.label, "on" if kind == ELECTED else "in")
    if not canvas.is_small:
        for bar in _of(lane, LEASE, canvas.axis):
            x, width = canvas.extent(bar)
            out.append(rect(x, top + tall + 2, width, 2.5, LEASE, f"{lane.name} held its lease, {canvas.during(bar)}"))
        out += _marks(canvas, lane, y, top, tall)
    return out


def _life(canvas: Canvas, lane: Lane, bar: Bar, top: float, tall: float) -> list[Shape]:
    x, width = canvas.extent(bar)
    title = f"{bar.label}, {canvas.during(bar)}" + (f"; {bar.note}" if bar.note else "")
    fill = canvas.fill(lane.of) if lane.of else None
    out = [rect(x, top, width, tall, f"life {canvas.stroke(lane.of) if lane.of else ''}".strip(), title, fill)]
    if canvas.is_small:
        return out
    reach = x + CHAR_W * len(bar.label) + 12
    inner = [canvas.extent(each) for each in lane.bars if each.kind in (ELECTED, PAUSE)]
    if lane.kind != OTHER and not any(start < reach and start + wide > x for start, wide in inner if wide > 0):
        out += canvas.inside(x, width, top + tall / 2, bar.label, "in low" if tall < 10 else "in", indent=9)
    if not bar.is_open and canvas.axis.start <= bar.end <= canvas.axis.end:
        ended = LaneMark(bar.end, "exit", note=f"{bar.label} {bar.note}")
        out.append(_sign(ended, x + width, top + tall / 2, canvas))
        if x + width + 12 + CHAR_W * len(bar.note) < canvas.axis.width:
            out.append(words(x + width + 9, top + tall / 2 + 3.5, bar.note.removeprefix("ended: "), "soft halo"))
    return out


def _marks(canvas: Canvas, lane: Lane, y: float, top: float, tall: float) -> list[Shape]:
    out = []
    for mark in gathered(lane.marks, canvas.axis, 6):
        beside = {"stop": -3.5, "start": 3.5}.get(mark.kind)  # they often coincide
        x = canvas.axis.x(mark.at) + (beside or 0)
        out.append(_sign(mark, x, y + 5 if beside is not None else top + tall / 2, canvas))
    return out


# ---- partitions


def _partition(canvas: Canvas, lane: Lane, y: float, height: float) -> list[Shape]:
    tracks = _tracks(canvas, lane)
    one = height / tracks
    edge = 0.5 if canvas.is_small else 2.0 if one > 12 else 1.0
    tall = one - 2 * edge
    placed = [(bar, y + min(bar.track, tracks - 1) * one + edge) for bar in _of(lane, FETCH, canvas.axis)]
    out = [shape for bar, top in placed for shape in _fetched(canvas, lane, bar, top, tall)]
    gaps = [bar for bar in _of(lane, GAP, canvas.axis) if (bar.end - bar.start) * canvas.axis.per_second >= 1]
    out += [shape for bar in gaps for shape in _gap(canvas, lane, bar, y, height)]
    if not canvas.is_small:
        out += _flow(canvas, lane, y + height - edge, 4.0 if one > 16 else 3.0 if one > 12 else 2.0)
        out += [shape for bar, top in placed for shape in _named(canvas, bar, top, tall)]
    for bar in _of(lane, OVERLAP, canvas.axis):
        out += _twice(canvas, lane, bar, y, height, one)
    return out


def _fetched(canvas: Canvas, lane: Lane, bar: Bar, top: float, tall: float) -> list[Shape]:
    x, width = canvas.extent(bar)
    title = f"{lane.name} is fetched by {bar.label}, {canvas.during(bar)}; {bar.note}"
    out = [rect(x, top, width, tall, f"fetch {canvas.stroke(bar.of)}", title, canvas.fill(bar.of))]
    if canvas.axis.start <= bar.start and width > 4 and not canvas.is_small:
        out.append(rect(x, top, 2.5, tall, f"begins {canvas.stroke(bar.of)}"))
    return out


def _named(canvas: Canvas, bar: Bar, top: float, tall: float) -> list[Shape]:
    x, width = canvas.extent(bar)
    if tall < 8.5:
        return []
    is_low = tall <= 11
    return canvas.inside(x, width, top + tall / 2 - (0.5 if is_low else 1), bar.label, "in low" if is_low else "in")


def _flow(canvas: Canvas, lane: Lane, down: float, high: float) -> list[Shape]:
    """The arrival of records, at the lower edge."""
    came = stream(lane.flow, canvas.axis, 3)
    line = "".join(f"M{x:.0f} {down:.1f}v{-high:.0f}h{wide - 0.8:.1f}v{high:.0f}z" for x, wide in came)
    return [path(line, "flow")] if line else []


def _twice(canvas: Canvas, lane: Lane, bar: Bar, y: float, height: float, one: float) -> list[Shape]:
    """A frame around a violation."""
    x, width = canvas.extent(bar)
    wide = max(width, 3.0)
    title = f"{lane.name} has two fetchers: {bar.note}, {canvas.during(bar)}"
    frame = rect(x - 0.5, y, wide, height, OVERLAP, title)
    if canvas.is_small:
        return [frame]
    shown = f"two fetchers {seconds(bar.end - bar.start)}"
    is_left = x + wide + CHAR_W * len(shown) + 6 > canvas.axis.width
    beside = x - 5 if is_left else x + wide + 4
    return [frame, words(beside, y + height - one / 2 + 3.5, shown, "alarm halo" + (" end" if is_left else ""))]


def _gap(canvas: Canvas, lane: Lane, bar: Bar, y: float, height: float) -> list[Shape]:
    x, width = canvas.extent(bar)
    title = f"{lane.name} has no fetcher, {canvas.during(bar)}"
    middle = y + height / 2
    out = [rect(x, y + (1 if height > 6 else 0), width, height - (2 if height > 6 else 0), "gap", title)]
    if canvas.is_small:
        return out
    out.append(path(f"M{x:.1f} {middle:.1f}h{width:.1f}", "idle"))
    shown = seconds(bar.end - bar.start) + (", to the end" if bar.is_open else "")
    if CHAR_W * len(shown) + 8 <= width and height >= 12:
        out.append(words(x + width / 2, middle + 3.5, shown, "alarm halo mid"))
    return out


def _tracks(canvas: Canvas, lane: Lane) -> int:
    """The number of rows that the visible bars of a lane need."""
    seen = [bar.track for bar in lane.bars if bar.kind == FETCH and canvas.axis.shows(bar.start, bar.end)]
    return min(1 + max(seen, default=0), MOST_TRACKS)


def _of(lane: Lane, kind: str, axis: Axis) -> list[Bar]:
    return thinned([bar for bar in lane.bars if bar.kind == kind], axis)

"""Draws one lane at a time."""

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
    Mark,
)
from .svg import rect, tag, words

COLOURS, TEXTURES = 5, 4
MOST_TRACKS = 4


@dataclass(frozen=True, slots=True)
class Canvas:
    """What every lane is drawn with.

    :ivar zero: the moment of the fault.  :ivar places: the place of each consumer, which gives its colour.
    :ivar is_small: whether it is the small picture, without labels.
    """

    axis: Axis
    zero: float
    places: Mapping[str, int]
    is_small: bool = False

    def fill(self, of: str) -> str:
        """Colour and texture of a consumer."""
        return f"url(#t{self.places.get(of, 0) % (COLOURS * TEXTURES)})"

    def stroke(self, of: str) -> str:
        """The class of a consumer's outline."""
        return f"k{self.places.get(of, 0) % COLOURS}"

    def extent(self, bar: Bar) -> tuple[float, float]:
        """Where a bar begins, and how wide it is."""
        x = self.axis.x(bar.start)
        return x, round(self.axis.x(bar.end) - x, 1)

    def during(self, bar: Bar) -> str:
        """When it was, for who points at it."""
        until = "the end of the history" if bar.is_open else moment(bar.end, self.zero)
        return f"{moment(bar.start, self.zero)} to {until} ({seconds(bar.end - bar.start)})"

    def inside(self, x: float, width: float, middle: float, shown: str, class_: str = "in", indent: float = 5) -> str:
        """A text in a bar, where there is room for it."""
        fits = not self.is_small and CHAR_W * len(shown) + indent + 3 <= width
        return words(x + indent, middle + 3.5, shown, class_) if fits else ""


def height_of(canvas: Canvas, lane: Lane, partitions: int, consumers: int) -> float:
    """How high a lane is; the more there are, the lower."""
    if canvas.is_small:
        one = 2.0 if partitions > 40 else 3.0 if partitions > 24 else 5.0
        return {ENSEMBLE: 5.0, NODE: 6.0, CONSUMER: 4.0, OTHER: 3.0, PARTITION: one}[lane.kind]
    if lane.kind == PARTITION:
        one = 22.0 if partitions <= 16 else 17.0 if partitions <= 40 else 13.0 if partitions <= 80 else 9.0
        return one * _tracks(canvas, lane)
    return {ENSEMBLE: 26.0, NODE: 34.0, CONSUMER: 22.0 if consumers <= 10 else 17.0, OTHER: 18.0}[lane.kind]


def drawn(canvas: Canvas, lane: Lane, y: float, height: float) -> str:
    """A lane whose upper edge is at `y`."""
    how: Mapping[str, Callable[[Canvas, Lane, float, float], str]] = {
        ENSEMBLE: _ensemble, NODE: _process, CONSUMER: _process, OTHER: _process, PARTITION: _partition,
    }  # fmt: skip
    return how[lane.kind](canvas, lane, y, height)


# ---- the ensemble


def _ensemble(canvas: Canvas, lane: Lane, y: float, height: float) -> str:
    middle, out, free = y + height / 2, [], float("-inf")
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
    return "".join(out)


def _sign(mark: Mark, x: float, y: float, canvas: Canvas) -> str:
    """The shape of a mark: not its colour tells what it is."""
    size = 2.5 if canvas.is_small else 4.5
    more = f" and {amount(mark.count - 1)} more like it" if mark.count > 1 else ""
    title = f"{moment(mark.at, canvas.zero)} {mark.note or mark.label or mark.kind}{more}"
    if mark.kind == "elected":
        path = f"M{x:.1f} {y - size:.1f}l{size} {size}l{-size} {size}l{-size} {-size}z"
    elif mark.kind in ("start", "registered"):
        path = f"M{x:.1f} {y - 3:.1f}l3 6h-6z"
    elif mark.kind == "stop":
        path = f"M{x - 2.5:.1f} {y - 2.5:.1f}h5v5h-5z"
    elif mark.kind == "batch":
        path = f"M{x:.1f} {y - 4:.1f}v8"
    else:
        path = f"M{x - size:.1f} {y - size:.1f}l{2 * size} {2 * size}m0 {-2 * size}l{-2 * size} {2 * size}"
    return tag("path", "", title, d=path, class_=f"m {mark.kind}")


# ---- processes


def _process(canvas: Canvas, lane: Lane, y: float, height: float) -> str:
    top = y + (10 if lane.kind == NODE and not canvas.is_small else 3 if not canvas.is_small else 1)
    tall = height - (top - y) - (8 if lane.kind in (NODE, CONSUMER) and not canvas.is_small else 2)
    out = [_life(canvas, lane, bar, top, tall) for bar in _of(lane, LIFE, canvas.axis)]
    for kind in (ELECTED, PAUSE):
        for bar in _of(lane, kind, canvas.axis):
            x, width = canvas.extent(bar)
            note = f"{bar.label}, {canvas.during(bar)}" + (f"; {bar.note}" if bar.note else "")
            inset = min(3.0, tall / 8) if kind == PAUSE else 0.0  # so that what it hides can be seen at its edges
            fill = "url(#paused)" if kind == PAUSE else None
            out.append(rect(x, top + inset, width, tall - 2 * inset, kind, note, fill=fill))
            out.append(canvas.inside(x, width, top + tall / 2, bar.label, "on" if kind == ELECTED else "in"))
    if not canvas.is_small:
        for bar in _of(lane, LEASE, canvas.axis):
            x, width = canvas.extent(bar)
            out.append(rect(x, top + tall + 2, width, 2.5, LEASE, f"{lane.name} held its lease, {canvas.during(bar)}"))
        out += _marks(canvas, lane, y, top, tall)
    return "".join(out)


def _life(canvas: Canvas, lane: Lane, bar: Bar, top: float, tall: float) -> str:
    x, width = canvas.extent(bar)
    title = f"{bar.label}, {canvas.during(bar)}" + (f"; {bar.note}" if bar.note else "")
    fill = canvas.fill(lane.of) if lane.of else None
    out = rect(x, top, width, tall, f"life {canvas.stroke(lane.of) if lane.of else ''}".strip(), title, fill=fill)
    if canvas.is_small:
        return out
    reach = x + CHAR_W * len(bar.label) + 12
    inner = [canvas.extent(each) for each in lane.bars if each.kind in (ELECTED, PAUSE)]
    if lane.kind != OTHER and not any(start < reach and start + wide > x for start, wide in inner if wide > 0):
        out += canvas.inside(x, width, top + tall / 2, bar.label, "in low" if tall < 10 else "in", indent=9)
    if not bar.is_open and canvas.axis.start <= bar.end <= canvas.axis.end:
        ended = Mark(bar.end, "exit", note=f"{bar.label} {bar.note}")
        out += _sign(ended, x + width, top + tall / 2, canvas)
        if x + width + 12 + CHAR_W * len(bar.note) < canvas.axis.width:
            out += words(x + width + 9, top + tall / 2 + 3.5, bar.note.removeprefix("ended: "), "soft halo")
    return out


def _marks(canvas: Canvas, lane: Lane, y: float, top: float, tall: float) -> list[str]:
    out = []
    for mark in gathered(lane.marks, canvas.axis, 6):
        beside = {"stop": -3.5, "start": 3.5}.get(mark.kind)  # they are often sent in one moment
        x = canvas.axis.x(mark.at) + (beside or 0)
        out.append(_sign(mark, x, y + 5 if beside is not None else top + tall / 2, canvas))
    return out


# ---- partitions


def _partition(canvas: Canvas, lane: Lane, y: float, height: float) -> str:
    tracks = _tracks(canvas, lane)
    one = height / tracks
    edge = 0.5 if canvas.is_small else 2.0 if one > 12 else 1.0
    tall = one - 2 * edge
    placed = [(bar, y + min(bar.track, tracks - 1) * one + edge) for bar in _of(lane, FETCH, canvas.axis)]
    out = [_fetched(canvas, lane, bar, top, tall) for bar, top in placed]
    gaps = [bar for bar in _of(lane, GAP, canvas.axis) if (bar.end - bar.start) * canvas.axis.per_second >= 1]
    out += [_gap(canvas, lane, bar, y, height) for bar in gaps]
    if not canvas.is_small:
        out.append(_flow(canvas, lane, y + height - edge, 4.0 if one > 16 else 3.0 if one > 12 else 2.0))
        out += [_named(canvas, bar, top, tall) for bar, top in placed]
    out += [_twice(canvas, lane, bar, y, height, one) for bar in _of(lane, OVERLAP, canvas.axis)]
    return "".join(out)


def _fetched(canvas: Canvas, lane: Lane, bar: Bar, top: float, tall: float) -> str:
    x, width = canvas.extent(bar)
    title = f"{lane.name} is fetched by {bar.label}, {canvas.during(bar)}; {bar.note}"
    out = rect(x, top, width, tall, f"fetch {canvas.stroke(bar.of)}", title, fill=canvas.fill(bar.of))
    if canvas.axis.start <= bar.start and width > 4 and not canvas.is_small:
        out += rect(x, top, 2.5, tall, f"begins {canvas.stroke(bar.of)}")
    return out


def _named(canvas: Canvas, bar: Bar, top: float, tall: float) -> str:
    x, width = canvas.extent(bar)
    if tall < 8.5:
        return ""
    is_low = tall <= 11
    return canvas.inside(x, width, top + tall / 2 - (0.5 if is_low else 1), bar.label, "in low" if is_low else "in")


def _flow(canvas: Canvas, lane: Lane, down: float, high: float) -> str:
    """Where records came, at the lower edge."""
    came = stream(lane.flow, canvas.axis, 3)
    path = "".join(f"M{x:.0f} {down:.1f}v{-high:.0f}h{wide - 0.8:.1f}v{high:.0f}z" for x, wide in came)
    return tag("path", d=path, class_="flow") if path else ""


def _twice(canvas: Canvas, lane: Lane, bar: Bar, y: float, height: float, one: float) -> str:
    """A frame around what should not be."""
    x, width = canvas.extent(bar)
    wide = max(width, 3.0)
    out = rect(x - 0.5, y, wide, height, OVERLAP, f"{lane.name} is fetched twice, by {bar.note}, {canvas.during(bar)}")
    if canvas.is_small:
        return out
    shown = f"two at once {seconds(bar.end - bar.start)}"
    is_left = x + wide + CHAR_W * len(shown) + 6 > canvas.axis.width
    beside = x - 5 if is_left else x + wide + 4
    return out + words(beside, y + height - one / 2 + 3.5, shown, "alarm halo" + (" end" if is_left else ""))


def _gap(canvas: Canvas, lane: Lane, bar: Bar, y: float, height: float) -> str:
    x, width = canvas.extent(bar)
    title = f"nobody fetches {lane.name}, {canvas.during(bar)}"
    middle = y + height / 2
    out = rect(x, y + (1 if height > 6 else 0), width, height - (2 if height > 6 else 0), "gap", title)
    if canvas.is_small:
        return out
    out += tag("path", d=f"M{x:.1f} {middle:.1f}h{width:.1f}", class_="idle")
    shown = seconds(bar.end - bar.start) + (", to the end" if bar.is_open else "")
    if CHAR_W * len(shown) + 8 <= width and height >= 12:
        out += words(x + width / 2, middle + 3.5, shown, "alarm halo mid")
    return out


def _tracks(canvas: Canvas, lane: Lane) -> int:
    """Rows that the bars of a lane need as far as they can be seen."""
    seen = [bar.track for bar in lane.bars if bar.kind == FETCH and canvas.axis.shows(bar.start, bar.end)]
    return min(1 + max(seen, default=0), MOST_TRACKS)


def _of(lane: Lane, kind: str, axis: Axis) -> list[Bar]:
    return thinned([bar for bar in lane.bars if bar.kind == kind], axis)

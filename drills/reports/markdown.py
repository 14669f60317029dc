"""One run of a drill as Markdown: the page without its picture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from .facts import items, mapping, moment, repeat_command, setting, text, verdict
from .lanes import FETCH, OVERLAP, PARTITION, Bar
from .page import environment
from .summary import sentences
from .timeline import timeline_of

MOST_TURNS = 40
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def plain(value: object) -> Markup:
    """Arbitrary text, escaped for Markdown."""
    return Markup(_SPECIAL.sub(r"\\\1", text(value)))


def code(value: object) -> Markup:
    """Arbitrary text as code, also in a table."""
    shown = text(value).replace("|", "¦")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return Markup(f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}")


_MARKDOWN = environment(plain)
_MARKDOWN.filters["code"] = code


def markdown(run: Mapping[str, Any], events: Sequence[Any]) -> str:
    """The report of a run.

    :param run: the content of run.json; all fields are optional.  :param events: the history's events, in their order.
    """
    run = mapping(run)
    timeline, known = timeline_of(run, events)
    lanes = [lane for lane in timeline.lanes if lane.kind == PARTITION]
    shown = _MARKDOWN.get_template("report.md.jinja").render(
        run=run,
        title=text(run.get("title")) or text(run.get("drill")) or "Unnamed drill",
        verdict=verdict(run),
        setting=setting(run),
        sentences=sentences(run, known),
        why=items(run.get("why")),
        timeline=timeline,
        lanes=[(lane, [_turn(bar, timeline.zero) for bar in lane.bars[:MOST_TURNS]]) for lane in lanes],
        command=Markup(repeat_command(run)),
        left_out=timeline.left_out.get(PARTITION, 0),
    )
    return re.sub("\n{3,}", "\n\n", shown).strip() + "\n"


def _turn(bar: Bar, zero: float) -> Markup:
    """The fetcher of a partition, with start and end."""
    fetcher = plain(bar.label) if bar.kind == FETCH else f"**{bar.label}**" if bar.kind == OVERLAP else bar.label
    return Markup(f"{fetcher} {moment(bar.start, zero)} to {'end' if bar.is_open else moment(bar.end, zero)}")

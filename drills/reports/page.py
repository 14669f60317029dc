"""One run of a drill as one HTML file, self-contained, without scripts; and as Markdown, without its picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from zk_group.drills.checker.replay.verdict import Event

from . import facts
from .drawing import BARS, SIGNS, picture
from .facts import amount, items, mapping, moment, number, plural, seconds, text
from .timeline import FETCH, OVERLAP, PARTITION, Bar, Timeline, timeline_of

TEMPLATES = Path(__file__).parent / "templates"


def environment(finalize: Callable[[object], str]) -> Environment:
    """The templates; every value is passed through `finalize`, and escaped for HTML unless it is markup."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else finalize(value),
    )
    templates.globals |= {"tables": facts, "amount": amount, "seconds": seconds, "bars": BARS, "signs": SIGNS}
    return templates


_HTML = environment(text)


def page(run: Mapping[str, Any], events: Sequence[Any]) -> str:
    """The page of a run.

    :param run: the content of run.json; all fields are optional.  :param events: the history's events, in their order.
    """
    run = mapping(run)
    timeline, known = timeline_of(run, events)
    seed, repeated = number(run.get("seed")), number(run.get("repeat"))
    how = f"seed {amount(seed)}" if seed is not None else "seed not recorded"
    return _HTML.get_template("page.html.jinja").render(
        _common(run, timeline, known),
        figures=_figures(run),
        picture=picture(run, timeline) if any(lane.bars or lane.marks for lane in timeline.lanes) else None,
        remarks=_remarks(run, timeline),
        command=facts.repeat_command(run),
        how=how + (f", repeat {amount(repeated)}" if repeated is not None else ""),
    )


def _common(run: Mapping[str, Any], timeline: Timeline, known: Sequence[Event]) -> dict[str, Any]:
    """The begin of both reports."""
    return {
        "run": run,
        "title": text(run.get("title")) or text(run.get("drill")) or "Unnamed drill",
        "verdict": facts.verdict(run),
        "setting": facts.setting(run),
        "sentences": facts.sentences(run, known),
        "why": [each for each in items(run.get("why")) if text(each)],
        "timeline": timeline,
    }


def _figures(run: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The four key figures."""
    numbers, records = mapping(run.get("numbers")), mapping(run.get("records"))
    standstill = mapping(numbers.get("standstill"))
    if not numbers and not records:
        return []
    moved, least = number(numbers.get("moved")), number(numbers.get("least_possible"))
    invariants = [text(mapping(each).get("outcome")) for each in mapping(run.get("invariants")).values()]
    produced, median = number(records.get("produced")), seconds(number(standstill.get("median_s")))
    return [
        ("Longest standstill", seconds(number(standstill.get("max_s"))), f"without a fetcher; median {median}"),
        ("Partitions moved", amount(moved), f"{amount(least)} had to" if least is not None else ""),
        ("Records lost", amount(records.get("lost")),
         f"{amount(records.get('duplicated'))} twice" + (f", of {amount(produced)}" if produced is not None else "")),
        ("Invariants held", f"{invariants.count('held')} of {len(invariants)}" if invariants else "not checked",
         ", ".join(f"{invariants.count(each)} {each}" for each in ("broken", "not decided") if each in invariants)),
    ]  # fmt: skip


def _remarks(run: Mapping[str, Any], timeline: Timeline) -> list[str]:
    left_out = timeline.left_out.items()
    remarks = [f"{plural(count, kind)} more with fewer changes, not drawn." for kind, count in left_out]
    if timeline.set_aside:
        remarks.append(f"{plural(timeline.set_aside, 'event')} could not be read and are not drawn.")
    if not mapping(run.get("marks")):
        remarks.append("T0 to T5 are missing: the run was aborted before.")
    else:
        absent = [name for name in facts.MARKS if name not in facts.known_marks(run)]
        remarks += [f"Did not happen, or was not measured: {', '.join(absent)}."] if absent else []
    if not timeline.faults:
        since = " Times are relative to its start." if facts.mark(run, "T0") is None else ""
        remarks.append(f"The history has no fault.{since}")
    return remarks


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
        _common(run, timeline, known),
        lanes=[(lane, [_turn(bar, timeline.zero) for bar in lane.bars[:MOST_TURNS]]) for lane in lanes],
        command=Markup(facts.repeat_command(run)),
        left_out=timeline.left_out.get(PARTITION, 0),
    )
    return re.sub("\n{3,}", "\n\n", shown).strip() + "\n"


def _turn(bar: Bar, zero: float) -> Markup:
    """The fetcher of a partition, with start and end."""
    fetcher = plain(bar.label) if bar.kind == FETCH else f"**{bar.label}**" if bar.kind == OVERLAP else bar.label
    return Markup(f"{fetcher} {moment(bar.start, zero)} to {'end' if bar.is_open else moment(bar.end, zero)}")

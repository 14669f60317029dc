"""One run of a drill as one HTML file: it needs nothing else, and can be read without a script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from . import sections
from .axis import Axis, window
from .drawing import definitions, picture, whole
from .facts import (
    FAIL,
    MARKS,
    PASS,
    amount,
    items,
    mapping,
    mark,
    moment,
    number,
    plural,
    seconds,
    setting,
    text,
    verdict,
)
from .lanes import Story
from .sections import missing
from .story import story
from .style import CSS, SCRIPT
from .summary import sentences
from .svg import element, rect, said, tag

LANES_W = 980.0
WIDEST = 6_000.0


def page(run: Mapping[str, Any], events: Sequence[Any]) -> str:
    """The page of a run.

    :param run: what run.json says; anything may be missing.  :param events: the history's events, in their order.
    """
    run = mapping(run)
    told, known = story(run, events)
    title = text(run.get("title")) or text(run.get("drill")) or "A drill without a name"
    body = [
        definitions(), _head(run, title), _told(run, sentences(run, known)), _figures(run),
        element("h2", "What happened"), _pictures(run, told),
        element("h2", "What was promised"), sections.promises(run),
        element("h2", "What was measured"), _measured(run),
        element("h2", "What must always hold"), sections.invariants(run, told.zero),
        element("h2", "What was said before"), sections.intent(run),
        element("h2", "With what it was done"), _with(run),
    ]  # fmt: skip
    main = element("main", "\n".join(body))
    script = f"<script>{SCRIPT}</script>"
    return f'{_top(f"{verdict(run)}: {title}")}<body>{main}<div id="time"></div>{script}</body></html>\n'


def _top(title: str) -> str:
    """The head of the file. The policy lets nothing in from outside, whatever the texts below might say."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{said(title)}</title><style>{CSS}</style></head>"
    )


_SHAPES = {
    PASS: ("M26 2a24 24 0 1 0 .01 0z", "M15 27l8 8l15 -17"),
    FAIL: ("M16 2h20l14 14v20l-14 14h-20l-14 -14v-20z", "M17 17l18 18M35 17l-18 18"),
}
_UNSURE = ("M26 4l22 22l-22 22l-22 -22z", "M20 21c0 -9 13 -8 12 0c0 5 -6 5 -6 10M26 37v.5")


def _head(run: Mapping[str, Any], title: str) -> str:
    result = verdict(run)
    shape, sign = _SHAPES.get(result, _UNSURE)
    drawn = tag("path", d=shape, class_="shape") + tag("path", d=sign, class_="sign")
    shown = tag("svg", drawn, viewBox="0 0 52 52", aria_hidden="true")
    said_ = element("div", shown + element("span", result), class_=f"verdict {result}")
    name = element("div", element("h1", said(title)) + element("p", said(setting(run)), class_="when"))
    return element("header", said_ + name, class_="head")


def _told(run: Mapping[str, Any], told: Sequence[str]) -> str:
    why = [element("li", said(each)) for each in items(run.get("why")) if text(each)]
    if verdict(run) != run.get("verdict"):
        why.append(element("li", "The run broke off before it had a verdict."))
    listed = element("ul", "".join(why), class_=f"why {verdict(run)}") if why else ""
    return element("p", said(" ".join(told)), class_="told") + listed


def _figures(run: Mapping[str, Any]) -> str:
    """The four numbers that are asked for first."""
    numbers, records = mapping(run.get("numbers")), mapping(run.get("records"))
    standstill = mapping(numbers.get("standstill"))
    if not numbers and not records:
        return ""
    moved, least = number(numbers.get("moved")), number(numbers.get("least_possible"))
    invariants = [text(mapping(each).get("outcome")) for each in mapping(run.get("invariants")).values()]
    produced, median = number(records.get("produced")), seconds(number(standstill.get("median_s")))
    figures = (
        ("Longest standstill", seconds(number(standstill.get("max_s"))), f"median {median}"),
        ("Partitions moved", amount(moved), f"{amount(least)} had to" if least is not None else ""),
        ("Records lost", amount(records.get("lost")),
         f"{amount(records.get('duplicated'))} twice" + (f", of {amount(produced)}" if produced is not None else "")),
        ("Invariants held", f"{invariants.count('held')} of {len(invariants)}" if invariants else "not checked",
         ", ".join(f"{invariants.count(each)} {each}" for each in ("broken", "not decided") if each in invariants)),
    )  # fmt: skip
    cells = (
        element("div", element("dt", said(a)) + element("dd", said(b) + (element("small", said(c)) if c else "")))
        for a, b, c in figures
    )
    return element("dl", "".join(cells), class_="figures")


# ---- the picture


def _pictures(run: Mapping[str, Any], told: Story) -> str:
    if told.end <= told.start and not told.shades and len(told.lanes) < 2:
        return missing("the history, so there is no picture")
    start, end = window(run, told)
    main = Axis(start, end, LANES_W)
    out = [picture(run, told, main, f"Who did what, {moment(start, told.zero)} to {moment(end, told.zero)}"), _legend()]
    if (start, end) != (told.start, max(told.end, told.start + 1)):
        long = max(told.end - told.start, 1.0)
        small = picture(run, told, Axis(told.start, told.start + long, LANES_W), "The whole run", (start, end))
        wide = element("summary", f"The whole run at full size ({said(seconds(long))}), to scroll")
        out.append(small)
        out.append(element("details", wide + picture(run, told, whole(told, WIDEST), "The whole run"), class_="whole"))
    out += [element("p", said(each), class_="missing") for each in _remarks(run, told)]
    return "".join(out)


def _remarks(run: Mapping[str, Any], told: Story) -> list[str]:
    found = [f"{plural(count, kind)} more, in which less happened, not drawn." for kind, count in told.left_out.items()]
    if told.set_aside:
        found.append(f"{plural(told.set_aside, 'event')} could not be read and stand in no picture.")
    if not mapping(run.get("marks")):
        found.append("Not there: T0 to T5, the run broke off before they were known.")
    else:
        absent = [name for name in MARKS if mark(run, name) is None]
        found += [f"Did not happen, or was not measured: {', '.join(absent)}."] if absent else []
    if not told.shades:
        since = " Times count from its beginning." if mark(run, "T0") is None else ""
        found.append(f"The history knows of no fault.{since}")
    return found


def _legend() -> str:
    def sign(body: str, what: str) -> str:
        return element("li", tag("svg", body, viewBox="0 0 26 14", aria_hidden="true") + said(what))

    texture = {"fill": "url(#t0)"}
    signs = (
        (rect(1, 1, 24, 12, "elected"), "elected coordinator"),
        (rect(1, 6, 24, 2.5, "lease"), "lease held"),
        (rect(1, 1, 24, 12, "pause", fill="url(#paused)"), "paused"),
        (rect(1, 1, 24, 12, "fetch k0", **texture) + rect(1, 1, 2.5, 12, "begins k0"), "fetched by"),
        (tag("path", d="M1 6h5v4h-5zM8 6h2v4h-2zM12 6h9v4h-9z", class_="flow"), "records came"),
        (rect(0, 0, 26, 14, "gap") + tag("path", d="M0 7h26", class_="idle"), "nobody fetches"),
        (rect(2, 2, 22, 10, "overlap"), "two at once"),
        (tag("path", d="M13 1l6 6l-6 6l-6 -6z", class_="m elected"), "election"),
        (tag("path", d="M8 2l10 10m0 -10l-10 10", class_="m session"), "session or process ended"),
        (tag("path", d="M13 4l3 6h-6z", class_="m start"), "start-fetcher"),
        (tag("path", d="M10.500 4.500h5v5h-5z", class_="m stop"), "stop-fetcher"),
        (tag("path", d="M13 4l3 6h-6z", class_="m registered"), "registered"),
        (tag("path", d="M13 2v10", class_="m batch"), "batch"),
        (rect(0, 0, 26, 14, "shade"), "fault"),
    )
    return element("ul", "".join(sign(body, what) for body, what in signs), class_="legend")


# ---- the rest


def _measured(run: Mapping[str, Any]) -> str:
    left = element("h3", "Times and partitions") + sections.numbers(run)
    left += element("h3", "Records") + sections.records(run)
    right = element("h3", "Standstill of each partition") + element("div", sections.standstill(run), class_="wide")
    return element("div", element("div", left) + element("div", right), class_="two")


def _with(run: Mapping[str, Any]) -> str:
    left = element("h3", "Versions") + sections.surroundings(run, "versions", "the versions")
    left += element("h3", "Ensemble") + sections.surroundings(run, "ensemble", "the ensemble")
    right = element("h3", "Configuration") + sections.surroundings(run, "configuration", "the configuration")
    right += element("h3", "Bounds, in seconds") + sections.surroundings(run, "bounds", "the bounds")
    seed = number(run.get("seed"))
    repeated = number(run.get("repeat"))
    how = f"seed {amount(seed)}" if seed is not None else "seed not recorded"
    how += f", repeat {amount(repeated)}" if repeated is not None else ""
    again = element("h3", "To do it again") + sections.again(run) + element("p", said(how), class_="when")
    return element("div", element("div", left) + element("div", right), class_="two") + again

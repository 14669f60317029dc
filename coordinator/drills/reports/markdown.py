"""One run of a drill as Markdown: what the page says, without its picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .facts import (
    INVARIANTS,
    MARKS,
    amount,
    items,
    mapping,
    mark,
    moment,
    number,
    quantity,
    repeat_command,
    seconds,
    setting,
    text,
    verdict,
)
from .lanes import FETCH, OVERLAP, PARTITION, Lane, Story
from .sections import ASKS, INTENT, MOST_WITNESSES, NUMBERS, RECORDS, rest_of
from .story import story
from .summary import sentences

MOST_TURNS = 40
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def markdown(run: Mapping[str, Any], events: Sequence[Any]) -> str:
    """The report of a run.

    :param run: what run.json says; anything may be missing.  :param events: the history's events, in their order.
    """
    run = mapping(run)
    told, known = story(run, events)
    title = text(run.get("title")) or text(run.get("drill")) or "A drill without a name"
    parts = [
        f"# {verdict(run)}: {plain(title)}", *_head(run), plain(" ".join(sentences(run, known))),
        "## What happened", _marks(run, told), _owners(told),
        "## What was promised", _promises(run),
        "## What was measured", _numbers(run), _records(run), _standstill(run),
        "## What must always hold", *_invariants(run, told.zero),
        "## What was said before", _intent(run),
        "## With what it was done", *_surroundings(run),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(value: object) -> str:
    """Text from anywhere, so that Markdown makes nothing of it."""
    return _SPECIAL.sub(r"\\\1", text(value))


def code(value: object) -> str:
    """Text from anywhere as code, also in a table."""
    shown = text(value).replace("|", "¦")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown."""
    lines = [f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def missing(what: str) -> str:
    """What stands in place of something that the run does not have."""
    return f"Not there: {what}. The run broke off before that was written."


def _head(run: Mapping[str, Any]) -> list[str]:
    why = [f"- {plain(each)}" for each in items(run.get("why"))]
    if run.get("verdict") != verdict(run):
        why.append("- The run broke off before it had a verdict.")
    return [plain(setting(run)), "\n".join(why)]


def _marks(run: Mapping[str, Any], told: Story) -> str:
    known = mapping(run.get("marks"))
    if not known:
        return missing("T0 to T5")
    rows = []
    for name in MARKS:
        at = mark(run, name)
        shown = moment(at, told.zero) if at is not None else "did not happen"
        rows.append((name, shown, plain(mapping(known.get(name)).get("what"))))
    return table(("mark", "when", "what"), rows)


def _owners(told: Story) -> str:
    """Who fetched each partition when."""
    lanes = [lane for lane in told.lanes if lane.kind == PARTITION]
    if not lanes:
        return missing("who fetched which partition")
    rows = [(plain(lane.group), plain(lane.name), _turns(lane, told.zero)) for lane in lanes]
    more = told.left_out.get(PARTITION, 0)
    left_out = f"\n\nand {more} more partitions, in which less happened" if more else ""
    aside = f"\n\n{amount(told.set_aside)} events could not be read." if told.set_aside else ""
    return table(("group", "partition", "fetched by, in seconds from the fault"), rows) + left_out + aside


def _turns(lane: Lane, zero: float) -> str:
    turns = []
    for bar in lane.bars[:MOST_TURNS]:
        who = plain(bar.label) if bar.kind == FETCH else f"**{bar.label}**" if bar.kind == OVERLAP else bar.label
        until = "end" if bar.is_open else moment(bar.end, zero)
        turns.append(f"{who} {moment(bar.start, zero)} to {until}")
    more = len(lane.bars) - MOST_TURNS
    return "; ".join(turns) + (f"; and {more} more" if more > 0 else "")


def _promises(run: Mapping[str, Any]) -> str:
    found = [mapping(each) for each in items(run.get("promises"))]
    if not found:
        return missing("the promises and what was measured of them")
    said = {True: "held", False: "**not held**"}
    rows = [
        (
            plain(each.get("name")),
            plain(each.get("rule")),
            plain(quantity(bound, each.get("unit")))
            if (bound := number(each.get("bound"))) is not None
            else "no bound",
            plain(quantity(number(each.get("measured")), each.get("unit"))),
            said[held] if isinstance(held := each.get("held"), bool) else "not measured",
        )
        for each in found
    ]
    return table(("promise", "rule", "at most", "measured", ""), rows)


def _amount(promise: Mapping[str, Any], name: str) -> str:
    return plain(quantity(number(promise.get(name)), promise.get("unit")))


def _numbers(run: Mapping[str, Any]) -> str:
    found = mapping(run.get("numbers"))
    if not found:
        return missing("the numbers")
    rows = [(label, found.get(key), how) for key, label, how in NUMBERS]
    standstill = mapping(found.get("standstill"))
    rows += [("longest standstill of a partition", standstill.get("max_s"), seconds)]
    rows += [("median standstill", standstill.get("median_s"), seconds)]
    asks = mapping(found.get("asks"))
    rows += [(label, asks.get(key), how) for key, label, how in ASKS if asks]
    known = [(label, number(value), how) for label, value, how in rows]
    told = [(label, how(value) if value is not None else "not measured") for label, value, how in known]
    return table(("number", ""), told)


def _records(run: Mapping[str, Any]) -> str:
    found = mapping(run.get("records"))
    if not found:
        return missing("the count of the records")
    rows = [(key, amount(found.get(key))) for key in RECORDS]
    return table(("records", ""), rows)


def _standstill(run: Mapping[str, Any]) -> str:
    found = mapping(mapping(mapping(run.get("numbers")).get("standstill")).get("by_partition"))
    if not found:
        return missing("how long each partition stood still")
    longest = sorted(found.items(), key=lambda each: (-(number(each[1]) or 0), each[0]))[:200]
    return table(("partition", "stood still"), [(plain(name), seconds(number(stood))) for name, stood in longest])


def _invariants(run: Mapping[str, Any], zero: float) -> list[str]:
    found = mapping(run.get("invariants"))
    if not found:
        return [missing("what the checker found")]
    names = [*INVARIANTS, *(name for name in found if name not in INVARIANTS)]
    rows, below = [], []
    for name in names:
        each = mapping(found.get(name))
        result = text(each.get("outcome")) or "not there"
        shown = f"**{plain(result)}**" if result == "broken" else plain(result)
        rows.append((plain(name), plain(each.get("sentence")), shown, plain(each.get("why"))))
        if result == "broken":
            below += [f"### Witness of {plain(name)}", _witness(items(each.get("witness")), zero)]
    return [table(("", "what must hold", "", "why"), rows), *below]


def _witness(events: Sequence[Any], zero: float) -> str:
    if not events:
        return missing("the witness")
    rows = []
    for event in map(mapping, events[:MOST_WITNESSES]):
        at = number(event.get("at"))
        shown = moment(at, zero) if at is not None else "no time"
        rows.append((shown, plain(event.get("who")), plain(event.get("event")), code(rest_of(event))))
    return table(("when", "who", "event", ""), rows)


def _intent(run: Mapping[str, Any]) -> str:
    if not any(run.get(key) for key, _ in INTENT):
        return missing("what the drill set out to show")
    lines = [f"- {label}: {plain(run.get(key)) or 'not said'}" for key, label in INTENT]
    touched = ", ".join(map(plain, items(run.get("touches"))))
    return "\n".join([*lines, f"- It touched: {touched or 'not said'}"])


def _surroundings(run: Mapping[str, Any]) -> list[str]:
    parts = []
    for key in ("versions", "ensemble", "configuration", "bounds"):
        found = mapping(run.get(key))
        rows = [(plain(name), plain(value)) for name, value in list(found.items())[:200]]
        parts.append(table((key, ""), rows) if rows else missing(f"the {key}"))
    command = repeat_command(run)
    return [*parts, f"To do it again:\n\n    {command}" if command else missing("which drill it was")]

"""The parts of the page below its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .facts import INVARIANTS, amount, compact, items, mapping, moment, number, quantity, repeat_command, seconds, text
from .svg import element, rect, said, tag, words

MOST_WITNESSES = 20
LONGEST_WITNESS = 1_200
MOST_BARS = 200
SIGNS = {"held": "✓", "broken": "✕", "not decided": "?"}
_CLASSES = {"held": "held", "broken": "broken"}


def missing(what: str) -> str:
    """What stands in place of something that the run does not have."""
    return element("p", f"Not there: {said(what)}. The run broke off before that was written.", class_="missing")


def table(head: Sequence[str], rows: Iterable[str], class_: str = "") -> str:
    """A table; a column whose title begins with `#` is of numbers."""
    titles = [element("th", said(each.lstrip("#")), class_="n" if each[:1] == "#" else None) for each in head]
    body = element("thead", element("tr", "".join(titles))) if head else ""
    body += element("tbody", "".join(rows))
    return element("div", element("table", body, class_=class_ or None), class_="wide")


def row(*cells: str) -> str:
    """A row of cells, which are markup; the class stands before a `|` that ends it."""
    return element("tr", "".join(cells))


def cell(markup: str, class_: str = "") -> str:
    """A cell around markup."""
    return element("td", markup, class_=class_ or None)


def outcome(is_held: object) -> str:
    """Whether a promise was held, in a word and a sign."""
    name = "held" if is_held is True else "broken" if is_held is False else "not measured"
    sign = SIGNS.get(name, "?")
    return cell(f"{sign} {'not held' if name == 'broken' else name}", f"o {_CLASSES.get(name, 'open')}")


# ---- promises and numbers


def promises(run: Mapping[str, Any]) -> str:
    """What was promised, against what was measured."""
    found = [mapping(each) for each in items(run.get("promises"))]
    if not found:
        return missing("the promises and what was measured of them")
    timed = [each for each in found if each.get("unit") in (None, "s")]
    longest = max((number(each.get(name)) or 0.0 for each in timed for name in ("bound", "measured")), default=0.0)
    rows = [_promise(each, longest) for each in found]
    return table(("promise", "rule", "#at most", "#measured", "", ""), rows, "held-by")


def _promise(each: Mapping[str, Any], longest: float) -> str:
    bound, measured, unit = number(each.get("bound")), number(each.get("measured")), each.get("unit")
    return row(
        cell(said(each.get("name"))),
        cell(said(each.get("rule"))),
        cell(said(quantity(bound, unit)) if bound is not None else "no bound", "n"),
        cell(said(quantity(measured, unit)), "n"),
        outcome(each.get("held")),
        cell(_bullet(measured, bound, longest) if unit in (None, "s") else ""),
    )


def _bullet(measured: float | None, bound: float | None, longest: float) -> str:
    """What was measured as a bar, what was promised as a line across it."""
    if longest <= 0:
        return ""
    wide = 180 / longest
    body = rect(0, 3, 184, 12, "rail")
    if measured is not None:
        late = bound is not None and measured > bound
        body += rect(0, 5, max(measured, 0) * wide, 8, "bar late" if late else "bar", seconds(measured))
    if bound is not None:
        body += tag("path", "", f"at most {seconds(bound)}", d=f"M{bound * wide:.1f} 1v16", class_="bound")
    return tag("svg", body, width=186, height=18, role="img", aria_label=f"{seconds(measured)} of {seconds(bound)}")


RECORDS = ("produced", "elsewhere", "delivered", "lost", "duplicated", "misplaced")

NUMBERS: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("detection_s", "until ZooKeeper noticed (T0 to T1)", seconds),
    ("election_s", "until the next coordinator acted (T1 to T2)", seconds),
    ("rebalance_s", "until every partition was fetched again (to T5)", seconds),
    ("moved", "partitions that moved", amount),
    ("least_possible", "partitions that had to move", amount),
    ("passed_on", "partitions that another consumer has had since", amount),
    ("doubly_owned_s", "time in which a partition had two owners", seconds),
    ("stale_refused", "commands that were removed unapplied", amount),
    ("generations", "generations that have begun since", amount),
)
ASKS: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("asks", "asks to leaders since", amount),
    ("adopted", "answers adopted", amount),
    ("failed", "asks failed", amount),
    ("longest_s", "longest from an ask to an adoption", seconds),
    ("unheard", "members that did not acknowledge assignment-failed", amount),
    ("revoked", "partitions revoked while an ask was out", amount),
    ("silent_s", "longest without a record at a member that did not lead", seconds),
)
"""Of client-side assignment: `numbers.asks` in run.json."""


def numbers(run: Mapping[str, Any]) -> str:
    """The plain numbers, and below them those that this page does not know by name."""
    found = mapping(run.get("numbers"))
    if not found:
        return missing("the numbers")
    rows = [(label, _number(found.get(key), how)) for key, label, how in NUMBERS]
    standstill = mapping(found.get("standstill"))
    for key, label in (("max_s", "longest standstill of a partition"), ("median_s", "median standstill")):
        rows.append((label, _number(standstill.get(key), seconds)))
    asks = mapping(found.get("asks"))
    rows += [(label, _number(asks.get(key), how)) for key, label, how in ASKS if asks]
    known = {key for key, _, _ in NUMBERS} | {"standstill", "asks"}
    rows += [(text(key), text(value)) for key, value in found.items() if key not in known]
    return pairs(rows, "n")


def _number(value: object, how: Callable[[float], str]) -> str:
    plain = number(value)
    return how(plain) if plain is not None else "not measured"


def records(run: Mapping[str, Any]) -> str:
    """How many records there were, and how many went astray."""
    found = mapping(run.get("records"))
    if not found:
        return missing("the count of the records")
    return pairs([(key, amount(found.get(key))) for key in RECORDS], "n")


def pairs(rows: Iterable[tuple[str, str]], class_: str = "") -> str:
    """Two columns: what, and its value, both text."""
    return table((), [row(cell(said(key)), cell(said(value), class_)) for key, value in rows], "pairs")


def standstill(run: Mapping[str, Any]) -> str:
    """How long each partition stood still, the longest first."""
    found = mapping(mapping(mapping(run.get("numbers")).get("standstill")).get("by_partition"))
    known = [(text(name), stood) for name, value in found.items() if (stood := number(value)) is not None]
    if not known:
        return missing("how long each partition stood still")
    known.sort(key=lambda each: (-each[1], each[0]))
    longest, shown = known[0][1] or 1.0, known[:MOST_BARS]
    high = 20 if len(shown) <= 24 else 14
    body = [
        words(0, place * high + high - 5, name if len(name) <= 24 else name[:23] + "…", "name")
        + rect(150, place * high + 3, stood / longest * 240, high - 6, "bar", f"{name}: {seconds(stood)}")
        + words(150 + max(stood, 0) / longest * 240 + 6, place * high + high - 5, seconds(stood))
        for place, (name, stood) in enumerate(shown)
    ]
    more = f"<p>and {len(known) - len(shown)} more, none longer</p>" if len(known) > len(shown) else ""
    picture = tag("svg", "".join(body), width=460, height=len(shown) * high + 4, role="img", aria_label="standstill")
    return picture + more


# ---- invariants


def invariants(run: Mapping[str, Any], zero: float) -> str:
    """S1 to L6, with the witness of each that was broken."""
    found = mapping(run.get("invariants"))
    if not found:
        return missing("what the checker found")
    names = [*INVARIANTS, *(name for name in found if name not in INVARIANTS)]
    rows = [_invariant(name, mapping(found.get(name)), zero) for name in names]
    return table(("", "what must hold", ""), rows, "held-by")


def _invariant(name: str, each: Mapping[str, Any], zero: float) -> str:
    result = text(each.get("outcome")) or "not there"
    body = said(each.get("sentence")) or "The run broke off before it was checked."
    if each.get("why"):
        body += element("div", element("b" if result == "broken" else "span", said(each["why"])), class_="note")
    if result == "broken":
        body += witness(each.get("witness"), zero)
    sign = SIGNS.get(result, "?")
    return row(cell(said(name), "o"), cell(body), cell(f"{sign} {said(result)}", f"o {_CLASSES.get(result, 'open')}"))


def witness(events: object, zero: float) -> str:
    """The few events that prove that it was broken: when, who, what, and the rest as JSON."""
    some = [mapping(each) for each in items(events)]
    if not some:
        return missing("its witness")
    rows = []
    for event in some[:MOST_WITNESSES]:
        at = number(event.get("at"))
        when = moment(at, zero) if at is not None else "no time"
        rows.append(row(cell(when, "n"), cell(said(event.get("who"))), cell(said(event.get("event"))),
                        cell(element("pre", said(rest_of(event))))))  # fmt: skip
    more = f"<p>and {len(some) - MOST_WITNESSES} more in run.json</p>" if len(some) > MOST_WITNESSES else ""
    return element("div", table((), rows) + more, class_="witness")


def rest_of(event: Mapping[str, Any]) -> str:
    """What else an event says, as JSON in one line that is not too long."""
    line = compact({key: value for key, value in event.items() if key not in ("at", "who", "event")})
    return line if len(line) <= LONGEST_WITNESS else line[: LONGEST_WITNESS - 1] + "…"


# ---- what was said before, and with what it was done


INTENT = (
    ("proves", "It proves"), ("steady_state", "Steady state"), ("hypothesis", "Hypothesis"), ("fault", "Fault"),
    ("abort", "Given up when"),
)  # fmt: skip


def intent(run: Mapping[str, Any]) -> str:
    """What was written down before anything was done."""
    if not any(run.get(key) for key, _ in INTENT):
        return missing("what the drill set out to show")
    rows = [(label, text(run.get(key)) or "not said") for key, label in INTENT]
    touches = ", ".join(text(each) for each in items(run.get("touches")))
    return pairs([*rows, ("It touched", touches or "not said")])


def surroundings(run: Mapping[str, Any], key: str, what: str) -> str:
    """An object of the run (its versions, its configuration) as a table."""
    found = mapping(run.get(key))
    return pairs((name, text(value)) for name, value in list(found.items())[:MOST_BARS]) if found else missing(what)


def again(run: Mapping[str, Any]) -> str:
    """The command that does the same again."""
    command = repeat_command(run)
    return element("pre", said(command)) if command else missing("which drill it was")

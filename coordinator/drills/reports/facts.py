"""Reads run.json, which may be of a run that broke off: what is missing or strange is None or empty. Never raises."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.checker.shapes import problem
from coordinator.checker.verdict import Event, ascii_line

LONGEST_TEXT = 2_000
MOST_ITEMS = 500
MINUS = "\u2212"
FAR = 1e9
"""Seconds: no history lasts so long; what is farther away is no time."""

INVARIANTS = tuple(f"S{number}" for number in range(1, 10)) + tuple(f"L{number}" for number in range(1, 6))
MARKS = ("T0", "T1", "T2", "T3", "T4", "T5")
PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"


def mapping(value: object) -> Mapping[str, Any]:
    """`value` where it is an object, else an empty one."""
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """`value` where it is a list (its first `MOST_ITEMS`), else an empty one."""
    return value[:MOST_ITEMS] if isinstance(value, list | tuple) else ()


def number(value: object) -> float | None:
    """`value` where it is a number that can be shown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -FAR * FAR < value < FAR * FAR and not math.isnan(value) else None


def text(value: object) -> str:
    """`value` in one printable line, at most `LONGEST_TEXT` characters; empty for None."""
    if value is None:
        return ""
    shown = " ".join(ascii_line(value if isinstance(value, str) else compact(value)).split())
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def compact(value: object) -> str:
    """`value` as JSON in one line."""
    try:
        return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, ValueError, TypeError):
        return "(cannot be written as JSON)"


def verdict(run: Mapping[str, Any]) -> str:
    """The verdict; a run that broke off before it had one is inconclusive."""
    found = run.get("verdict")
    return found if found in (PASS, FAIL, INCONCLUSIVE) else INCONCLUSIVE


_UNUSED = frozenset({"assignment", "earliest", "jump", "run"})


def readable(events: Sequence[Any]) -> tuple[list[Event], int]:
    """The events whose shape is right, which all that is made of them can rely on, and how many are not so."""
    used = [event for event in events if not (isinstance(event, dict) and event.get("event") in _UNUSED)]
    known = [event for event in used if problem(event) is None and -FAR < event["at"] < FAR]
    return known, len(used) - len(known)


def mark(run: Mapping[str, Any], name: str) -> float | None:
    """When T0 to T5 was, in the history's clock."""
    at = number(mapping(mapping(run.get("marks")).get(name)).get("at"))
    return at if at is not None and -FAR < at < FAR else None


def origin(run: Mapping[str, Any], events: Sequence[Event]) -> float | None:
    """When the fault was done, from which times are counted; None when there was none."""
    at = mark(run, "T0")
    if at is not None:
        return at
    return next((float(event["at"]) for event in events if event["event"] == "fault"), None)


def clock(run: Mapping[str, Any], events: Sequence[Event]) -> float:
    """The moment that is shown as 0: that of the fault, else the first of the history."""
    zero = origin(run, events)
    return zero if zero is not None else float(events[0]["at"]) if events else 0.0


def quantity(value: float | None, unit: object) -> str:
    """`4.1 s`, or `3 partitions` where something else than seconds is counted."""
    if value is None or unit in (None, "s"):
        return seconds(value)
    return f"{amount(value)} {text(unit)}"


def seconds(value: float | None) -> str:
    """`4.1 s`, with as many digits as matter."""
    if value is None:
        return "not measured"
    size = abs(value)
    digits = 3 if size < 1 else 2 if size < 100 else 1
    plain = f"{value:,.{digits}f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return f"{'0' if plain == '-0' else plain.replace('-', MINUS)} s"


def moment(at: float, zero: float) -> str:
    """A time as it is counted from the fault: `+4.1 s`."""
    return ("+" if at > zero else "") + seconds(at - zero)


def setting(run: Mapping[str, Any]) -> str:
    """When the run was, how long it took, and with which ensemble."""
    ensemble, took = mapping(run.get("ensemble")), number(run.get("seconds"))
    servers = number(ensemble.get("servers"))
    of = f" of {plural(servers, 'server')}" if servers is not None else ""
    lasted = f"took {seconds(took)}" if took is not None else "broke off, so its length is not known"
    where = f"{text(ensemble.get('kind'))} ensemble{of}" if ensemble else "ensemble not recorded"
    return f"{_when(run)}, {lasted}, {where}"


def _when(run: Mapping[str, Any]) -> str:
    shown = text(run.get("started"))
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z", shown, re.ASCII)
    return f"{found[1]} {found[2]} UTC" if found else shown or "start not recorded"


def amount(value: object) -> str:
    """`12,000`; `not counted` for what is no number."""
    found = number(value)
    if found is None:
        return "not counted"
    return f"{int(found):,}" if found == int(found) else f"{found:,.3g}"


def plural(count: float, noun: str) -> str:
    """`1 partition`, `4 partitions`."""
    return f"{amount(count)} {noun}" + ("" if count == 1 else "s")


def repeat_command(run: Mapping[str, Any]) -> str:
    """The command that does the same drill again; empty when the run does not say which it was."""
    drill, seed = run.get("drill"), number(run.get("seed"))
    if not isinstance(drill, str) or not drill:
        return ""
    return f"zk-coordinator drill run {text(drill)}" + (f" --seed {int(seed)}" if seed is not None else "")

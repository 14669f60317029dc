"""Reads run.json, possibly of an aborted run: missing or malformed values are None or empty. Never raises."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from drills.checker.replay.history_files import problem
from drills.checker.replay.verdict import Event, ascii_line

LONGEST_TEXT = 2_000
MOST_ITEMS = 500
MINUS = "\u2212"
FAR = 1e9
"""Maximum seconds of a history; larger values are not times."""

INVARIANTS = tuple(f"S{number}" for number in range(1, 10)) + tuple(f"L{number}" for number in range(1, 6))
MARKS = ("T0", "T1", "T2", "T3", "T4", "T5")
PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one."""
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """`value` if it is a list (its first `MOST_ITEMS`), else an empty one."""
    return value[:MOST_ITEMS] if isinstance(value, list | tuple) else ()


def number(value: object) -> float | None:
    """`value` if it is a displayable number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -FAR * FAR < value < FAR * FAR and not math.isnan(value) else None


def text(value: object) -> str:
    """`value` as one printable line, at most `LONGEST_TEXT` characters; empty for None."""
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
    """The verdict; INCONCLUSIVE for a run that was aborted before it had one."""
    outcome = run.get("verdict")
    return outcome if outcome in (PASS, FAIL, INCONCLUSIVE) else INCONCLUSIVE


_UNUSED = frozenset({"assignment", "earliest", "jump", "run"})


def readable(events: Sequence[Any]) -> tuple[list[Event], int]:
    """The well-formed events, and the number of the others."""
    used = [event for event in events if not (isinstance(event, dict) and event.get("event") in _UNUSED)]
    known = [event for event in used if problem(event) is None and -FAR < event["at"] < FAR]
    return known, len(used) - len(known)


def mark(run: Mapping[str, Any], name: str) -> float | None:
    """The time of T0 to T5, on the history's clock."""
    at = number(mapping(mapping(run.get("marks")).get(name)).get("at"))
    return at if at is not None and -FAR < at < FAR else None


def origin(run: Mapping[str, Any], events: Sequence[Event]) -> float | None:
    """The time of the fault, the origin of the times; None without a fault."""
    at = mark(run, "T0")
    if at is not None:
        return at
    return next((float(event["at"]) for event in events if event["event"] == "fault"), None)


def clock(run: Mapping[str, Any], events: Sequence[Event]) -> float:
    """The time shown as 0: of the fault, else of the first event."""
    zero = origin(run, events)
    return zero if zero is not None else float(events[0]["at"]) if events else 0.0


def quantity(value: float | None, unit: object) -> str:
    """`4.1 s`, or `3 partitions` for other units."""
    if value is None or unit in (None, "s"):
        return seconds(value)
    return f"{amount(value)} {text(unit)}"


def seconds(value: float | None) -> str:
    """`4.1 s`, with the significant digits."""
    if value is None:
        return "not measured"
    size = abs(value)
    digits = 3 if size < 1 else 2 if size < 100 else 1
    plain = f"{value:,.{digits}f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return f"{'0' if plain == '-0' else plain.replace('-', MINUS)} s"


def moment(at: float, zero: float) -> str:
    """A time relative to the fault: `+4.1 s`."""
    return ("+" if at > zero else "") + seconds(at - zero)


def setting(run: Mapping[str, Any]) -> str:
    """The run's start, duration and ensemble."""
    ensemble, took = mapping(run.get("ensemble")), number(run.get("seconds"))
    servers = number(ensemble.get("servers"))
    of = f" of {plural(servers, 'server')}" if servers is not None else ""
    lasted = f"took {seconds(took)}" if took is not None else "aborted, duration unknown"
    where = f"{text(ensemble.get('kind'))} ensemble{of}" if ensemble else "ensemble not recorded"
    return f"{_when(run)}, {lasted}, {where}"


def _when(run: Mapping[str, Any]) -> str:
    shown = text(run.get("started"))
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z", shown, re.ASCII)
    return f"{match[1]} {match[2]} UTC" if match else shown or "start not recorded"


def amount(value: object) -> str:
    """`12,000`; `not counted` for other values."""
    parsed = number(value)
    if parsed is None:
        return "not counted"
    return f"{int(parsed):,}" if parsed == int(parsed) else f"{parsed:,.3g}"


def plural(count: float, noun: str) -> str:
    """`1 partition`, `4 partitions`."""
    return f"{amount(count)} {noun}" + ("" if count == 1 else "s")


def repeat_command(run: Mapping[str, Any]) -> str:
    """The command that repeats the drill; empty for an unknown drill."""
    drill, seed = run.get("drill"), number(run.get("seed"))
    if not isinstance(drill, str) or not drill:
        return ""
    return f"zk-coordinator drill run {text(drill)}" + (f" --seed {int(seed)}" if seed is not None else "")

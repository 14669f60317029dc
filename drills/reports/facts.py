"""Reads run.json, possibly of an aborted run: its summary in one to four sentences, and the tables of both reports.

Missing or malformed values are None or empty. Never raises.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zk_group.drills.checker import Checker
from zk_group.drills.checker.replay.history_files import problem
from zk_group.drills.checker.replay.verdict import Event, ascii_line

LONGEST_TEXT = 2_000
MOST_ITEMS = 500
MINUS = "\u2212"
FAR = 1e9
"""Maximum seconds of a history; larger values are not times."""

INVARIANTS = tuple(each.name for each in Checker().invariants)
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
    """The verdict; INCONCLUSIVE for a run aborted before it had one."""
    outcome = run.get("verdict")
    return outcome if outcome in (PASS, FAIL, INCONCLUSIVE) else INCONCLUSIVE


_UNUSED = frozenset({"earliest", "jump", "run"})


def readable(events: Sequence[Any]) -> tuple[list[Event], int]:
    """The well-formed events, and the number of the others."""
    used = [event for event in events if not (isinstance(event, dict) and event.get("event") in _UNUSED)]
    known = [event for event in used if problem(event) is None and -FAR < event["at"] < FAR]
    return known, len(used) - len(known)


def mark(run: Mapping[str, Any], name: str) -> float | None:
    """The time of T0 to T5, on the history's clock."""
    at = number(mapping(mapping(run.get("marks")).get(name)).get("at"))
    return at if at is not None and -FAR < at < FAR else None


def known_marks(run: Mapping[str, Any]) -> dict[str, float]:
    """The times of the reached marks of T0 to T5."""
    return {name: at for name in MARKS if (at := mark(run, name)) is not None}


def origin(run: Mapping[str, Any], events: Sequence[Event]) -> float | None:
    """The time of the fault, the origin of the times; None without a fault."""
    at = mark(run, "T0")
    return at if at is not None else next((float(each["at"]) for each in faults(events)), None)


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
    started = text(run.get("started"))
    utc = re.sub(r"(?a)^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z$", r"\1 \2 UTC", started) or "start not recorded"
    return f"{utc}, {lasted}, {where}"


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


_DONE = {
    "kill": "{} killed", "sigkill": "{} killed", "crash": "{} killed", "sigterm": "{} stopped", "stop": "{} stopped",
    "leave": "left", "pause": "{} paused", "sigstop": "{} paused", "stuck": "stood still", "hang": "stood still",
    "cut": "{} cut off", "expire-session": "lost the session",
    "stop-server": "{} ended", "pause-server": "{} paused", "cut-server": "{} cut off from its peers",
}  # fmt: skip
SAME_S = 1.0
"""Faults within this time of T0 belong to the drill's fault."""

_NAMED = ("process", "name", "node", "server", "host", "consumer", "group", "topic", "path")


def name_of(who: object) -> str:
    """The process's name, without its process id."""
    return text(who).partition("#")[0]


def faults(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "fault"]


def hit_of(fault: Event) -> str:
    """The target of a fault, as its lane is named."""
    target = next((fault[key] for key in _NAMED if fault.get(key) not in (None, "")), None)
    if isinstance(target, int):
        return f"server {target}"
    names = [name_of(each) for each in items(target)] if isinstance(target, list) else [name_of(target)]
    return " and ".join(each for each in names if each)


def sentences(run: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """At most four sentences."""
    clauses = [part for part in (_fault(run, events), _next(run, events)) if part]
    parts = [f"{'; '.join(clauses)}."] if clauses else []
    parts += [part for part in (_standstill(run), _records(run), _broken(run)) if part]
    return parts or ["The run was aborted before any measurement."]


def _fault(run: Mapping[str, Any], events: Sequence[Event]) -> str:
    zero = origin(run, events)
    if zero is None:
        return "No fault was injected" if events else ""
    initial = [each for each in faults(events) if zero - SAME_S < each["at"] < zero + SAME_S]
    if not initial:
        return ""
    first, kind = initial[0], text(initial[0]["kind"])
    names = list(dict.fromkeys(hit for each in initial if each["kind"] == kind and (hit := hit_of(each))))
    hit, done = " and ".join(names), _DONE.get(kind, "").format("were" if len(names) > 1 else "was")
    clause = f"{hit} {done}" if hit and done else f"The fault {kind} hit {hit}" if hit else f"The fault was {kind}"
    return clause + (f" for {seconds(first['until'] - first['at'])}" if _lasts(first) else "")


def _lasts(fault: Event) -> bool:
    until = number(fault.get("until"))
    return until is not None and until > fault["at"]


def _next(run: Mapping[str, Any], events: Sequence[Event]) -> str:
    zero, acted = origin(run, events), mark(run, "T2")
    elected = [each for each in events if each["event"] == "elected" and zero is not None and each["at"] > zero]
    if acted is None or zero is None:
        return ""
    nearest = min(elected, key=lambda each: abs(each["at"] - acted), default=None)
    node = name_of(nearest["who"]) if nearest is not None else "the next coordinator"
    promises = [mapping(each) for each in items(run.get("promises"))]
    bounds = [number(each.get("bound")) for each in promises if "next coordinator" in text(each.get("name"))]
    promised = next((bound for bound in bounds if bound is not None), None)
    since = "after it began" if any(_lasts(each) for each in faults(events) if each["at"] >= zero - SAME_S) else "later"
    return f"{node} acted {seconds(acted - zero)} {since}" + (f" ({seconds(promised)} promised)" if promised else "")


def _standstill(run: Mapping[str, Any]) -> str:
    standstill = mapping(mapping(run.get("numbers")).get("standstill"))
    longest = number(standstill.get("max_s"))
    if longest is None:
        return ""
    if longest == 0:
        return "No partition stood still."
    known = [each for each in map(number, mapping(standstill.get("by_partition")).values()) if each is not None]
    if not known:
        return f"Partitions stood still for {seconds(longest)} at most."
    return f"{_shares(known)}, from one fetcher to the next."


def _shares(stood: Sequence[float]) -> str:
    """The numbers of partitions by downtime: about the longest, shorter, and none."""
    long = [each for each in stood if each >= max(stood) / 2]
    less = [each for each in stood if 0 < each < max(stood) / 2]
    still = len(stood) - len(long) - len(less)
    part = f"{amount(len(long))} of " if len(long) < len(stood) else ""
    clauses = [f"{part}{plural(len(stood), 'partition')} stood still for {_span(long)}"]
    clauses += [f"{amount(len(less))} for {_span(less)}"] if less else []
    clauses += [f"{amount(still)} not at all"] if still else []
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _span(values: Sequence[float]) -> str:
    """`2.1 s to 2.16 s`, or one of the two where they are the same."""
    least, most = seconds(min(values)), seconds(max(values))
    return most if least == most else f"{least} to {most}"


def _records(run: Mapping[str, Any]) -> str:
    records = mapping(run.get("records"))
    produced, delivered, lost, twice = (number(records.get(k)) for k in ("produced", "delivered", "lost", "duplicated"))
    if lost is None or twice is None:
        return ""
    if not lost and not twice and (produced is None or delivered is None or produced == delivered):
        count = produced if produced is not None else delivered
        return f"{plural(count, 'record')} delivered once." if count is not None else "Every record was delivered once."
    of = f"Of {amount(produced)} records" if produced is not None else "Of the records"
    return f"{of} {amount(lost)} were lost and {amount(twice)} were duplicated."


def _broken(run: Mapping[str, Any]) -> str:
    broken = [name for name, each in mapping(run.get("invariants")).items() if mapping(each).get("outcome") == "broken"]
    names = " and ".join(map(text, broken))
    return f"{names} {'was' if len(broken) == 1 else 'were'} broken." if broken else ""


# ---- the tables


LONGEST_WITNESS = 1_200
MOST_ROWS = 200

Pair = tuple[str, str]
"""A label and its value."""

RECORDS = ("produced", "elsewhere", "delivered", "lost", "duplicated", "misplaced")

NUMBERS: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("detection_s", "detection: from the fault (T0) to the end of its victim's ephemeral (T1)", seconds),
    ("election_s", "election: from there (T1) to the next coordinator's lease (T2)", seconds),
    (
        "rebalance_s",
        "rebalance: from there (T2, or T1 without an election) to a fetcher for every partition (T5)",
        seconds,
    ),
    ("resumed_s", "from the broker's return to records of every partition", seconds),
    ("settled_s", "longest from a kill to Stable without the killed process", seconds),
    ("member_changes", "joins and leaves of members, from the fault to the end", amount),
    ("generations", "generations begun, from the fault to the end", amount),
    ("moved", "partitions with another consumer at the end than before the fault", amount),
    ("least_possible", "minimum of these, for equal shares", amount),
    ("passed_on", "partitions that another consumer began to fetch, from the fault to the end", amount),
    ("doubly_owned_s", "time in which a partition had two owners, in the whole run", seconds),
    ("stale_refused", "commands removed unapplied, in the whole run", amount),
)
OF_SOME_DRILLS = frozenset({"resumed_s", "settled_s"})
"""Measured only after a broker's outage, or a member's kill; left out elsewhere."""
ASKS: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("asks", "asks to leaders, from the fault to the end", amount),
    ("adopted", "answers adopted", amount),
    ("failed", "asks failed", amount),
    ("longest_s", "longest from an ask to an adoption", seconds),
    ("unheard", "members that did not acknowledge assignment-failed", amount),
    ("revoked", "partitions revoked during an ask", amount),
    ("silent_s", "longest time without a record, of members other than the leader", seconds),
)
"""Of client-side assignment: `numbers.asks` in run.json."""


Row = dict[str, Any]


def marks(run: Mapping[str, Any], zero: float) -> list[tuple[str, str, str]]:
    """T0 to T5: name, time and meaning; empty without marks."""
    known = mapping(run.get("marks"))
    times = [(name, mark(run, name), text(mapping(known.get(name)).get("what"))) for name in MARKS if known]
    return [(name, moment(at, zero) if at is not None else "did not happen", what) for name, at, what in times]


def promises(run: Mapping[str, Any]) -> list[Row]:
    """The promises: bound, measured value (seconds also as numbers), and whether it was kept."""
    return [_promise(mapping(each)) for each in items(run.get("promises"))]


def _promise(each: Mapping[str, Any]) -> Row:
    bound, measured = number(each.get("bound")), number(each.get("measured"))
    unit, held = each.get("unit"), each.get("held")
    return {
        "name": text(each.get("name")), "rule": text(each.get("rule")),
        "bound": quantity(bound, unit) if bound is not None else "no bound", "measured": quantity(measured, unit),
        "outcome": "held" if held is True else "not held" if held is False else "not measured",
        "bound_s": bound, "measured_s": measured, "is_timed": unit in (None, "s"),
    }  # fmt: skip


def numbers(run: Mapping[str, Any]) -> list[Pair]:
    """The scalar numbers; empty without numbers."""
    fields = mapping(run.get("numbers"))
    if not fields:
        return []
    standstill, asks = mapping(fields.get("standstill")), mapping(fields.get("asks"))
    shown = [row for row in NUMBERS if row[0] not in OF_SOME_DRILLS or number(fields.get(row[0])) is not None]
    rows = [(label, fields.get(key), how) for key, label, how in shown]
    rows += [("longest standstill of a partition, from one fetcher to the next", standstill.get("max_s"), seconds)]
    rows += [("median of the standstills of all partitions", standstill.get("median_s"), seconds)]
    rows += [(label, asks.get(key), how) for key, label, how in ASKS if asks]
    known = [(label, number(value), how) for label, value, how in rows]
    return [(label, how(value) if value is not None else "not measured") for label, value, how in known]


def further_numbers(run: Mapping[str, Any]) -> list[Pair]:
    """Numbers without a label here."""
    known = {"standstill", "asks", *(key for key, _, _ in NUMBERS)}
    return [(text(key), text(value)) for key, value in mapping(run.get("numbers")).items() if key not in known]


def records(run: Mapping[str, Any]) -> list[Pair]:
    """The number of records, and of lost and duplicated ones."""
    fields = mapping(run.get("records"))
    return [(key, amount(fields.get(key))) for key in RECORDS if fields]


def standstills(run: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The downtime of each partition, the longest first."""
    fields = mapping(mapping(mapping(run.get("numbers")).get("standstill")).get("by_partition"))
    known = [(text(name), stood) for name, value in fields.items() if (stood := number(value)) is not None]
    return sorted(known, key=lambda each: (-each[1], each[0]))


def invariants(run: Mapping[str, Any], zero: float) -> list[Row]:
    """S1 to L6: the checker's result, with the witness of each violated one."""
    fields = mapping(run.get("invariants"))
    names = [*INVARIANTS, *(name for name in fields if name not in INVARIANTS)] if fields else []
    return [_invariant(name, mapping(fields.get(name)), zero) for name in names]


def _invariant(name: str, each: Mapping[str, Any], zero: float) -> Row:
    outcome = text(each.get("outcome")) or "missing"
    events = [mapping(event) for event in items(each.get("witness"))] if outcome == "broken" else []
    shown = {"name": text(name), "sentence": text(each.get("sentence")), "outcome": outcome}
    return {**shown, "why": text(each.get("why")), "witnesses": [_witness(event, zero) for event in events]}


def _witness(event: Mapping[str, Any], zero: float) -> Row:
    """An event that proves a violated invariant; `rest` is JSON."""
    at = number(event.get("at"))
    line = compact({key: value for key, value in event.items() if key not in ("at", "who", "event")})
    rest = line if len(line) <= LONGEST_WITNESS else line[: LONGEST_WITNESS - 1] + "…"
    when = moment(at, zero) if at is not None else "no time"
    return {"when": when, "who": event.get("who"), "event": event.get("event"), "rest": rest}


INTENT = (
    ("proves", "It proves"), ("steady_state", "Steady state"), ("hypothesis", "Hypothesis"), ("fault", "Fault"),
    ("abort", "Aborted when"),
)  # fmt: skip


def intent(run: Mapping[str, Any]) -> list[Pair]:
    """The drill's description before the run; empty when it was not written."""
    if not any(run.get(key) for key, _ in INTENT):
        return []
    touches = ", ".join(text(each) for each in items(run.get("touches")))
    rows = [(label, text(run.get(key))) for key, label in INTENT]
    return [(label, value or "not recorded") for label, value in [*rows, ("Touched", touches)]]


def surroundings(run: Mapping[str, Any], key: str) -> list[Pair]:
    """An object of run.json: the versions, the configuration."""
    return [(text(name), text(value)) for name, value in list(mapping(run.get(key)).items())[:MOST_ROWS]]

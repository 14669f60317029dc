"""The common tables of both reports: promises, measurements and results, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .facts import INVARIANTS, MARKS, amount, compact, items, mapping, mark, moment, number, quantity, seconds, text

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
        "name": text(each.get("name")),
        "rule": text(each.get("rule")),
        "bound": quantity(bound, unit) if bound is not None else "no bound",
        "measured": quantity(measured, unit),
        "outcome": "held" if held is True else "not held" if held is False else "not measured",
        "bound_s": bound,
        "measured_s": measured,
        "is_timed": unit in (None, "s"),
    }


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
    return {
        "name": text(name),
        "sentence": text(each.get("sentence")),
        "outcome": outcome,
        "why": text(each.get("why")),
        "witnesses": [_witness(event, zero) for event in events],
    }


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

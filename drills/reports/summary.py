"""A summary of one or two sentences, from the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drills.checker.replay.verdict import Event

from .facts import amount, items, mapping, mark, number, origin, plural, seconds, text

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
    """The faults, in order."""
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
    at = acted
    node = name_of(min(elected, key=lambda each: abs(each["at"] - at))["who"]) if elected else "the next coordinator"
    promised = next((b for b in map(_coordinator_bound, items(run.get("promises"))) if b is not None), None)
    since = "after it began" if any(_lasts(each) for each in faults(events) if each["at"] >= zero - SAME_S) else "later"
    return f"{node} acted {seconds(acted - zero)} {since}" + (f" ({seconds(promised)} promised)" if promised else "")


def _coordinator_bound(promise: object) -> float | None:
    return number(mapping(promise).get("bound")) if "next coordinator" in text(mapping(promise).get("name")) else None


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
    """How many partitions stood still for how long: about as long as the longest, for less, and not at all."""
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

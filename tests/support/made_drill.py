"""A small drill by hand: two nodes, two consumers, four partitions; node-1 and c2 are killed at 10."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.drills.reports.facts import INVARIANTS

GROUP = GroupPaths("g")

RUN: dict[str, Any] = {
    "drill": "coordinator-sigkill",
    "title": "Kill the coordinator",
    "proves": "A group survives its coordinator.",
    "hypothesis": "The standby acts within the session timeout.",
    "steady_state": "Two consumers fetch four partitions.",
    "fault": "SIGKILL to the coordinator.",
    "abort": "The ensemble loses its quorum.",
    "touches": ["one node process"],
    "verdict": "PASS",
    "why": [],
    "seed": 7,
    "repeat": 1,
    "started": "2026-11-21T17:00:00Z",
    "seconds": 20.5,
    "versions": {"zookeeper": "3.9.5", "git": "abc123"},
    "configuration": {"session_timeout_ms": 4000},
    "ensemble": {"kind": "embedded", "servers": 3, "hosts": "127.0.0.1:1"},
    "bounds": {"session_timeout": 4.0},
    "promises": [
        {"name": "the next coordinator acts", "rule": "session timeout + 2 ticks", "bound": 5.5, "measured": 4.1,
         "held": True},
        {"name": "no late write", "rule": "lease", "bound": 2.7, "measured": None, "held": None},
    ],
    "marks": {
        "T0": {"at": 10.0, "what": "fault"},
        "T2": {"at": 14.1, "what": "next coordinator"},
        "T5": {"at": 15.0, "what": "all partitions are fetched"},
    },
    "numbers": {
        "detection_s": 4.0,
        "standstill": {"max_s": 5.0, "median_s": 2.5, "by_partition": {"t-0": 0.0, "t-1": 0.0, "t-2": 5.0, "t-3": 5.0}},
        "moved": 2,
        "least_possible": 2,
    },
    "records": {"produced": 12000, "delivered": 12000, "lost": 0, "duplicated": 0},
    "invariants": {
        name: {"sentence": f"What {name} says.", "outcome": "held", "why": None, "witness": []} for name in INVARIANTS
    },
}  # fmt: skip


def run(**changes: Any) -> dict[str, Any]:
    """The run, changed."""
    return {**copy.deepcopy(RUN), **changes}


def event(at: float, who: str, kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"at": at, "who": who, "event": kind, **fields}


def begin(at: float, who: str, /, *partitions: int, topic: str = "t", **fields: Any) -> dict[str, Any]:
    consumer = who.partition("#")[0]
    offsets = {topic: {str(number): 0 for number in partitions}}
    life = {"group": "g", "consumer": consumer, "incarnation": f"i-{who}"}
    return event(at, who, "begin", **life, generation=1, partitions=offsets, topics={topic: "id"}, **fields)


def halt(at: float, who: str, *partitions: int) -> dict[str, Any]:
    life = {"group": "g", "consumer": who.partition("#")[0], "incarnation": f"i-{who}"}
    return event(at, who, "halt", **life, partitions={"t": list(partitions)}, why="revoked")


def fetch(at: float, who: str, *partitions: int) -> dict[str, Any]:
    life = {"group": "g", "consumer": who.partition("#")[0], "incarnation": f"i-{who}"}
    ranges = [{"topic": "t", "topic_id": "id", "partition": number, "first": 0, "next": 5} for number in partitions]
    return event(at, who, "fetch", **life, ranges=ranges)


def consumer(at: float, who: str, session: int) -> list[dict[str, Any]]:
    """A consumer that has started and registered."""
    name = who.partition("#")[0]
    return [
        event(at, who, "start", kind="consumer", group="g", consumer=name),
        event(at, who, "session", session=session, timeout=4.0),
        event(at, who, "registered", group="g", consumer=name, incarnation=f"i-{who}", session=session),
    ]


def commit(at: float, who: str, *ops: dict[str, Any]) -> dict[str, Any]:
    return event(at, who, "commit", zxid=round(10_000 * at), ops=list(ops))


def created(path: str, data: bytes = b"") -> dict[str, Any]:
    return {"op": "create", "path": path, "data": data.decode(), "ephemeral": False}


def changed(path: str, data: bytes) -> dict[str, Any]:
    return {"op": "set", "path": path, "data": data.decode(), "version": 2}


def deleted(path: str) -> dict[str, Any]:
    return {"op": "delete", "path": path}


def happened(text: str) -> list[dict[str, Any]]:
    """Events in words: `2 c1#11 begin 0 1; 10 drill fault kind=pause until=12`; bare numbers are partitions.

    A lease is a consumer's where no role is given.
    """
    return [_event(*line.split()) for line in re.split(r"[;\n]", text) if line.strip()]


def _event(at: str, who: str, kind: str, *words: str) -> dict[str, Any]:
    numbers = [int(word) for word in words if word.isdigit()]
    fields = {name: _value(text) for name, equals, text in (word.partition("=") for word in words) if equals}
    numbered: dict[str, Callable[..., dict[str, Any]]] = {"begin": begin, "halt": halt, "fetch": fetch}
    if kind in numbered:
        made = numbered[kind](float(at), who, *numbers)
    else:
        made = event(float(at), who, kind, **({"role": "consumer"} if kind == "lease" else {}))
    return {**made, **fields}


def _value(text: str) -> int | float | str:
    number = re.fullmatch(r"\d+(\.\d+)?", text)
    return text if number is None else float(text) if number[1] else int(text)


def history(more: str = "", until: float = 20.0) -> list[dict[str, Any]]:
    """The events and `more` as in `happened`, in order."""
    events = [
        event(0.0, "drill", "run", version=1, bounds={}),
        event(0.1, "node-1#1", "start", kind="node"),
        event(0.1, "node-1#1", "session", session=1, timeout=4.0),
        event(0.2, "node-2#2", "start", kind="node"),
        event(0.2, "node-2#2", "session", session=2, timeout=4.0),
        event(0.5, "node-1#1", "elected", epoch=1, session=1),
        *consumer(1.0, "c1#11", 11),
        *consumer(1.0, "c2#12", 12),
        begin(2.0, "c1#11", 0, 1),
        begin(2.0, "c2#12", 2, 3),
        *(fetch(3.0 + number, "c1#11", 0, 1) for number in range(17)),
        event(10.0, "drill", "fault", kind="sigkill", process="node-1#1"),
        event(10.0, "node-1#1", "exit", why="killed"),
        event(10.0, "c2#12", "exit", why="killed"),
        event(14.0, "server", "closed", session=1, zxid=5, why="expired", paths=["/consumers/coordinator"]),
        event(14.1, "node-2#2", "elected", epoch=2, session=2),
        begin(15.0, "c1#11", 2, 3),
        *happened(more),
        event(until, "drill", "end"),
    ]
    return sorted(events, key=lambda each: each["at"])


TWO_FETCHERS = "15.5 c3#13 begin 0; 17 c3#13 halt 0"
"""More of the history: t-0 has two."""


def failed_run() -> dict[str, Any]:
    """S1 is broken, with a witness that has unreadable events, and S5 was not decided; L6 is missing."""
    failed = run(verdict="FAIL", why=["S1 was broken"])
    failed["invariants"]["S1"].update(
        outcome="broken", why="t-0 was fetched by two", witness=[begin(15.5, "c3#13", 0), {"event": "odd"}, 5]
    )
    failed["invariants"]["S5"].update(outcome="not decided", why="no query ran")
    del failed["invariants"]["L6"]
    return failed


DRILLS = {"passed": (run(), history()), "failed": (failed_run(), history(TWO_FETCHERS)), "aborted": ({}, [])}
"""Runs with their histories, whose report and page are in `tests/unit/drill_reports`."""

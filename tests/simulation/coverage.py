"""What a history has seen of states and transitions, of groups, consumers and coordinators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.zk.state import GROUP_STATES, LEGAL_AFTER


def coverage(history: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How often each was seen: `group Stable -> PreparingRebalance`, `consumer begin -> lost`, `epoch`."""
    found: Counter[str] = Counter()
    states: dict[str, str] = {}
    last: dict[str, str] = {}
    for event in history:
        kind = event["event"]
        if kind == "commit":
            for operation in event["ops"]:
                _note_state(operation, states, found)
        elif kind in ("registered", "begin", "halt", "over", "exit", "fetch") and "consumer" in event:
            said = f"{kind} ({event['why']})" if kind == "halt" else kind
            before = last.get(event["who"], "start")
            if before != said:
                found[f"consumer {before} -> {said}"] += 1
            last[event["who"]] = said
        elif kind in ("elected", "query-failed", "batch"):
            found[kind] += 1
    return found


def illegal(seen: Iterable[str]) -> list[str]:
    """The changes of a group's state, among what was seen, that no group may make."""
    legal = {f"group {before} -> {after}" for before, allowed in LEGAL_AFTER.items() for after in allowed}
    written = {f"group {before} -> {after}" for before in GROUP_STATES for after in GROUP_STATES}
    return sorted(set(seen) & written - legal)


def _note_state(operation: Mapping[str, Any], states: dict[str, str], found: Counter[str]) -> None:
    path = operation["path"]
    if not path.endswith("/state") or operation["op"] not in ("create", "set"):
        return
    try:
        state = json.loads(operation["data"])["state"]
    except (ValueError, KeyError, TypeError):
        state = "unreadable"
    before = states.get(path, "none")
    if before != state:
        found[f"group {before} -> {state}"] += 1
    states[path] = state

"""What a history has seen of states and transitions, of groups, consumers and coordinators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.zk.znodes.group_state import EMPTY

LOST = "lost"
"""A state that a hand has removed, until the one that is made in its place has become another one."""


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
                _note_ask(operation, found)
        elif kind in ("registered", "begin", "halt", "over", "exit", "fetch") and "consumer" in event:
            said = f"{kind} ({event['why']})" if kind == "halt" else kind
            before = last.get(event["who"], "start")
            if before != said:
                found[f"consumer {before} -> {said}"] += 1
            last[event["who"]] = said
        elif kind in ("elected", "query-failed", "batch"):
            found[kind] += 1
    return found


def _note_ask(operation: Mapping[str, Any], found: Counter[str]) -> None:
    folder, _, name = operation["path"].rpartition("/")
    if operation["op"] != "create":
        return
    if folder.endswith("/sync"):
        found["ask made"] += 1
    elif name == "answer":
        found["ask answered with an error" if '"error":null' not in operation["data"] else "ask answered"] += 1
    elif name == "sync_request":
        found["sync_request"] += 1


def _note_state(operation: Mapping[str, Any], states: dict[str, str], found: Counter[str]) -> None:
    path = operation["path"]
    if path.endswith("/state") and operation["op"] == "delete":
        states[path] = LOST  # whatever the group becomes next
    if not path.endswith("/state") or operation["op"] not in ("create", "set"):
        return
    try:
        state = json.loads(operation["data"])["state"]
    except (ValueError, KeyError, TypeError):
        state = "unreadable"
    client = (json.loads(operation["data"]).get("client") if state != "unreadable" else None) or {}
    for name in ("ask", "failed_ask"):
        key = f"{path} {name}"
        if client.get(name) and states.get(key) != client[name]:
            found["answer adopted" if name == "ask" else "ask failed"] += 1
            states[key] = client[name]
    before = states.get(path, "none")
    if before != state:
        found[f"group {before} -> {state}"] += 1
    states[path] = LOST if (before, state) == (LOST, EMPTY) else state

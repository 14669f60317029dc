"""What a history has seen: states and transitions of groups, consumers and coordinators, and what met what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


# ---- interleavings

_ENDED = '"ended":"'
_COMMANDS = {"start-fetcher": "start", "stop-fetcher": "stop", "assign": "assign", "drain": "drain"}


def interleavings(history: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Pairs of commits of different processes in a group, and of a fault and the commit after it."""
    found: set[str] = set()
    last: dict[str, tuple[str, str]] = {}
    fault = ""
    for event in history:
        if event["event"] == "fault":
            fault = event["kind"]
        elif event["event"] == "closed":
            for group in {path.split("/")[3] for path in event["paths"] if path.startswith("/consumers/groups/")}:
                last[group] = ("server", "session ended")
        elif event["event"] == "commit":
            for group, said in _said(event).items():
                who, before = last.get(group, ("", "nothing"))
                if who != event["who"]:
                    found.add(f"{before} > {said}")
                if fault:
                    found.add(f"{fault} > {said}")
                last[group] = event["who"], said
            fault = ""
    return frozenset(found)


def _said(event: Mapping[str, Any]) -> dict[str, str]:
    """Group -> what a commit did there, and who it was: `node evict start`."""
    by = "node" if event["who"].startswith("node") else "hand" if event["who"] == "hand" else "member"
    done: dict[str, set[str]] = {}
    for operation in event["ops"]:
        parts = operation["path"].split("/")
        if parts[1:3] == ["consumers", "groups"] and len(parts) > 4 and operation["op"] != "check":
            done.setdefault(parts[3], set()).add(_what(operation, parts[4:], by))
    return {group: " ".join([by, *sorted(what - {""})]) for group, what in done.items()}


def _what(operation: Mapping[str, Any], parts: Sequence[str], by: str) -> str:
    kind, data = operation["op"], operation.get("data") or ""
    if parts[0] == "channel" and len(parts) == 3:
        if kind == "delete":
            return "withdraw" if by == "node" else "acknowledge"
        return next((name for option, name in _COMMANDS.items() if f'"{option}"' in data), "")
    if parts[0] == "channel":
        return "evict" if f"{_ENDED}evicted" in data else "end" if _ENDED in data else "channel"
    if parts[0] in ("owners", "ids", "seats", "segments", "queries") and len(parts) > 1:
        return f"{kind} {parts[0]}"
    return parts[0] if parts[0] in ("state", "sync", "sync_request") else ""

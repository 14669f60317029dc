"""Events of a history as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST = 160


def line_of(event: Mapping[str, Any]) -> str:
    """One event in one line: when, who, what."""
    head = f"{event['at']:10.6f}  {event['who']:<14} {event['event']:<11}"
    if event["event"] == "commit":
        lines = [f"{head} zxid {event['zxid']}"]
        lines += [f"{'':41}{_operation(operation)}" for operation in event["ops"]]
        return "\n".join(lines)
    rest = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("at", "who", "event"))
    return _cut(f"{head} {rest}")


def _operation(operation: Mapping[str, Any]) -> str:
    text = f"{operation['op']:<6} {operation['path']}"
    if operation.get("ephemeral"):
        text += " (ephemeral)"
    if operation["op"] == "check":
        text += f" version {operation['version']}"
    if operation.get("data"):
        text += f" {operation['data']}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"

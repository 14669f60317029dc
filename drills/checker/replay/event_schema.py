"""Schema of events from files: invalid events are ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]

CREATE, SET, DELETE, CHECK = "create", "set", "delete", "check"
"""Kinds of operations of a `commit`."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _whole(value: Any) -> bool:
    return type(value) is int


def _optional(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def _key(value: Any) -> bool:
    """A session's id."""
    return value is None or isinstance(value, str | int)


def _list(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _map(shape: Shape) -> Shape:
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def _partition(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10)


def _offsets(value: Any) -> bool:
    return (
        isinstance(value, dict) and all(map(_partition, value)) and all(o is None or _whole(o) for o in value.values())
    )


def _op(value: Any) -> bool:
    if not isinstance(value, dict) or not _text(value.get("path")):
        return False
    verb = value.get("op")
    return verb in ("delete", "check") or (verb in ("create", "set") and _optional(_text)(value.get("data")))


def _range(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _text(value.get("topic"))
        and _text(value.get("topic_id"))
        and all(_whole(value.get(name)) for name in ("partition", "first", "next"))
    )


def _sketches(*names: str) -> Shape:
    wholes = ("partition", "count", "sum", "squares")
    return _list(
        lambda value: (
            isinstance(value, dict)
            and all(_text(value.get(name)) for name in names)
            and all(_whole(value.get(name)) for name in wholes)
        )
    )


def _rows(value: Any) -> bool:
    return _list(_range)(value.get("ranges") if isinstance(value, dict) else value)


_LIFE: dict[str, Shape] = {"group": _text, "consumer": _text, "incarnation": _text}
_APPLICATION: dict[str, Shape] = {
    **_LIFE, "reset": _whole, "checkpoint": _whole, "states": _sketches("topic"),
    "member": _sketches("topic", "topic_id"),
}  # fmt: skip
_NAMES = _optional(_text)
_ANYTHING: Shape = lambda value: True  # noqa: E731

SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "run": {"bounds": _map(_number)},
    "start": {"kind": _text, "group": _NAMES, "consumer": _NAMES, "region": _NAMES},
    "exit": {},
    "fault": {"kind": _text, "until": _optional(_number)},
    "calm": {},
    "end": {},
    "commit": {"zxid": _whole, "session": _key, "ops": _list(_op)},
    "closed": {"zxid": _whole, "session": _key, "paths": _list(_text)},
    "elected": {"epoch": _whole, "session": _key},
    "registered": {**_LIFE, "session": _key},
    "lease": {"role": _text, "session": _key, "until": _number},
    "begin": {**_LIFE, "partitions": _map(_offsets), "topics": _optional(_map(_text))},
    "halt": {**_LIFE, "partitions": _map(_list(_partition))},
    "sought": {**_LIFE, "partitions": _map(_offsets)},
    "fetch": {**_LIFE, "ranges": _list(_range), "checked": _optional(_number)},
    "returned": {**_LIFE, "ranges": _list(_range), "checked": _optional(_number)},
    "restored": _APPLICATION,
    "saved": _APPLICATION,
    "state": _APPLICATION,
    "taken": {**_LIFE, "ranges": _list(_range)},
    "assignment": {"group": _text, "strategy": _text, "input": _ANYTHING, "target": _map(_ANYTHING)},
    "batch": {
        "group": _text, "query": _text, "batch": _whole, "after": _whole, "upto": _whole, "segments": _list(_text),
        "rows": _rows,
    },
    "earliest": {"topic": _text, "topic_id": _text, "partition": _whole, "offset": _whole},
    "jump": {
        **_LIFE, "topic": _text, "topic_id": _text, "partition": _whole, "before": _whole, "after": _whole,
    },
}  # fmt: skip

BOUNDS = (
    "session_timeout", "tick", "sweep", "lease", "poll_interval", "seal_interval", "channel_retention", "collection",
    "notice",
)  # fmt: skip


def problem(event: object) -> str | None:
    """The defect of an event; None for a valid one."""
    if not isinstance(event, dict):
        return "no JSON object"
    if not _number(event.get("at")) or not _text(event.get("who")) or not _text(event.get("event")):
        return "it lacks `at`, `who` or `event`"
    if not _optional(_whole)(event.get("heard")):
        return "`heard` is no whole number"
    kind = event["event"]
    for name, shape in SHAPES.get(kind, {}).items():
        if not shape(event.get(name)):
            return f"`{name}` of {kind!a} is missing or of the wrong type"
    if kind == "run" and not all(name in event["bounds"] for name in BOUNDS):
        return "`bounds` of 'run' are incomplete"
    return None

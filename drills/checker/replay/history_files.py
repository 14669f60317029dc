"""Histories in files: one event per line. Unreadable lines, and events of another schema, are counted and ignored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .verdict import Event, ascii_line

LONGEST_LINE = 8_000_000
"""Bytes: a commit may have 512,000, each up to six characters in JSON."""

MOST_PROBLEMS = 10

Shape = Callable[[Any], bool]


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


def _fields(**shapes: Shape) -> Shape:
    """An object with at least these fields."""
    return lambda value: isinstance(value, dict) and all(shape(value.get(name)) for name, shape in shapes.items())


def _offsets(value: Any) -> bool:
    return _map(_optional(_whole))(value) and all(map(_partition, value))


def _op(value: Any) -> bool:
    if not isinstance(value, dict) or not _text(value.get("path")):
        return False
    verb = value.get("op")
    return verb in ("delete", "check") or (verb in ("create", "set") and _optional(_text)(value.get("data")))


def _rows(value: Any) -> bool:
    return _ranges(value.get("ranges") if isinstance(value, dict) else value)


_TOPIC: dict[str, Shape] = {"topic": _text, "topic_id": _text, "partition": _whole}
_ranges = _list(_fields(**_TOPIC, first=_whole, next=_whole))
_states = _list(_fields(topic=_text, partition=_whole, count=_whole, sum=_whole, squares=_whole))
_member = _list(_fields(**_TOPIC, count=_whole, sum=_whole, squares=_whole))
_LIFE: dict[str, Shape] = {"group": _text, "consumer": _text, "incarnation": _text}
_APPLICATION: dict[str, Shape] = {
    **_LIFE, "reset": _whole, "checkpoint": _whole, "states": _states, "member": _member,
}  # fmt: skip
_NAMES = _optional(_text)

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
    "fetch": {**_LIFE, "ranges": _ranges, "checked": _optional(_number)},
    "returned": {**_LIFE, "ranges": _ranges, "checked": _optional(_number)},
    "restored": _APPLICATION,
    "saved": _APPLICATION,
    "state": _APPLICATION,
    "taken": {**_LIFE, "ranges": _ranges},
    "batch": {
        "group": _text, "query": _text, "batch": _whole, "after": _whole, "upto": _whole, "segments": _list(_text),
        "rows": _rows,
    },
    "earliest": {**_TOPIC, "offset": _whole},
    "jump": {**_LIFE, **_TOPIC, "before": _whole, "after": _whole},
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


class Lines:
    """The events of one file.

    :ivar aside: number of ignored lines.  :ivar problems: the first of them, each with its reason.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.aside = 0
        self.problems: list[str] = []

    def events(self) -> Iterator[Event]:
        """
        :raises OSError: when the file cannot be read.
        """
        with self._path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
                    self._set_aside(number, f"over {LONGEST_LINE} bytes")
                elif line.strip():
                    event, why = _parsed(line)
                    if why is None:
                        yield event
                    elif line.endswith(b"\n"):  # else its process was killed while it wrote it
                        self._set_aside(number, why)

    def _set_aside(self, number: int, why: str) -> None:
        self.aside += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(ascii_line(f"{self._path}:{number}: {why}"))


def _parsed(line: bytes) -> tuple[dict[str, Any], str | None]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}, "no JSON"
    return event, problem(event)


def merged(files: Sequence[Lines]) -> Iterator[Event]:
    """The events of several files as one history.

    Sorted by `at`; commits in the order of their zxid. A process records a commit when it hears of it: a commit is
    moved before any later transaction that was recorded earlier, and before any event with its zxid in `heard`. At
    equal times each file keeps its order.
    """
    found = [list(lines.events()) for lines in files]
    happened = _happened(event for events in found for event in events)
    placed: list[tuple[float, int, int, bool, int, Event]] = []
    for events in found:
        seen = 0
        for event in events:
            is_done = id(event) in happened
            at: float = happened[id(event)] if is_done else event["at"]
            seen = event["zxid"] if is_done else max(seen, event.get("heard") or 0)
            placed.append((at, _RANKS.get(event["event"], 1), seen, not is_done, len(placed), event))
    placed.sort(key=lambda place: place[:5])
    for *_, event in placed:
        yield event


_RANKS = {"run": 0, "end": 2}
_DONE = ("commit", "closed")


def _happened(events: Iterable[Event]) -> dict[int, float]:
    """The latest possible time of each transaction, by the identity of its event."""
    known: list[tuple[int, bool, Event]] = []
    for event in events:
        if event["event"] in _DONE:
            known.append((event["zxid"], False, event))
        elif event.get("heard"):
            known.append((event["heard"], True, event))
    known.sort(key=lambda each: each[:2])
    found: dict[int, float] = {}
    latest = float("inf")
    for _, is_heard, event in reversed(known):
        latest = min(latest, event["at"])
        if not is_heard:
            found[id(event)] = latest
    return found

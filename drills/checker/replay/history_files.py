"""Histories in files: one event per line. Unreadable lines are counted and ignored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .event_schema import problem
from .verdict import Event, ascii_line

LONGEST_LINE = 8_000_000
"""Bytes: a commit may have 512,000, each up to six characters in JSON."""

MOST_PROBLEMS = 10


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

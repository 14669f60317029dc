"""Histories in files: one event a line. What cannot be read is counted and set aside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .shapes import problem
from .verdict import Event, ascii_line

LONGEST_LINE = 8_000_000
"""Bytes: a commit may carry 512,000, and JSON may write each of them in six characters."""

MOST_PROBLEMS = 10


class Lines:
    """The events of one file.

    :ivar aside: lines that were set aside.  :ivar problems: the first of them, and why.
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
                    else:
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

    By `at`; what ZooKeeper did in the order of its zxid. A process notes a commit when it hears of it: one that a later
    transaction was noted before had happened by then, and is moved there. At one moment each file keeps its order.
    """
    found = [list(lines.events()) for lines in files]
    happened = _happened(event for events in found for event in events)
    placed: list[tuple[float, int, int, bool, int, Event]] = []
    for events in found:
        seen = 0
        for event in events:
            is_done = id(event) in happened
            at: float = happened[id(event)] if is_done else event["at"]
            seen = event["zxid"] if is_done else seen
            placed.append((at, _RANKS.get(event["event"], 1), seen, not is_done, len(placed), event))
    placed.sort(key=lambda place: place[:5])
    for *_, event in placed:
        yield event


_RANKS = {"run": 0, "end": 2}


def _happened(events: Iterable[Event]) -> dict[int, float]:
    """When each transaction had happened at the latest, by the identity of its event."""
    done = sorted((e for e in events if e["event"] in ("commit", "closed")), key=lambda event: event["zxid"])
    found: dict[int, float] = {}
    latest = float("inf")
    for event in reversed(done):
        latest = min(latest, event["at"])
        found[id(event)] = latest
    return found

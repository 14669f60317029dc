"""What a drill knows of what happened: its own notes, the processes' histories, and a witness of ZooKeeper."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checker.commits import HAND
from ..checker.lines import Lines, merged
from ..checker.transactions import events_of

Event = dict[str, Any]


class Notes:
    """The drill's own events, in the machine's monotonic time. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.behind_s = time.time() - time.monotonic()

    def note(self, event: str, who: str = "server", /, **fields: Any) -> float:
        """Something that no process can tell of itself; when it was."""
        at = time.monotonic()
        with self._lock:
            self._events.append({"at": at, "who": who, "event": event, **fields})
        return at

    @property
    def events(self) -> list[Event]:
        """All of them, in order."""
        with self._lock:
            return list(self._events)


Witness = Callable[[Mapping[int, str]], Sequence[Event]]
"""Tells what ZooKeeper did (`session`, `commit`, `closed`); it is told which process each session is of."""


def logged(notes: Notes, logs: Callable[[], Sequence[Path]], chroot: str) -> Witness:
    """A witness that reads the servers' transaction logs.

    :param logs: their folders.
    """
    # The log's milliseconds are cut off: a transaction was done at the end of its own at the latest.
    return lambda who: events_of(logs(), who, lambda ms: (ms + 1) / 1000 - notes.behind_s, chroot)


def write_down(notes: Notes, folder: Path, witness: Witness, own_session: int) -> list[Path]:
    """Write what the drill and ZooKeeper know beside what the processes wrote in `folder`; all the files.

    :param own_session: the drill's, whose hand is the only one. Of what an observer knows no session, nobody says whose
        it was; the observer says that there is such (`Observer.missing`).
    """
    told = sorted(folder.glob("*#*.jsonl"))
    sessions = sessions_in(folder)
    done = with_strangers(witness(sessions), {own_session, None, *sessions})
    own, zookeeper = folder / "drill.jsonl", folder / "zookeeper.jsonl"
    for path, events in ((own, notes.events), (zookeeper, done)):
        path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    return [own, zookeeper, *told]


def with_strangers(events: Sequence[Event], known: Collection[int | None]) -> list[Event]:
    """The same, but what a session commits that is not `known` is a stranger's.

    A hand is excused for what it writes; a process that goes on writing on a session of which it tells nobody is not.
    """
    return [
        {**event, "who": f"stranger#{event['session']:x}"}
        if event["event"] == "commit" and event["session"] not in known
        else event
        for event in events
    ]


def merged_history(files: Sequence[Path]) -> tuple[list[Event], list[str]]:
    """One history of several files, from its `run` to its `end`, and what could not be read.

    Transaction logs also tell of other drills on the same ensemble.
    """
    lines = [Lines(path) for path in files]
    events = [dict(event) for event in merged(lines)]
    ended = next((number for number, event in enumerate(events) if event["event"] == "end"), len(events) - 1)
    end = events[ended]["at"] if events else 0.0
    begun = next((event["at"] for event in events if event["event"] == "run"), 0.0)
    kept = [event for event in events if begun <= event["at"] <= end and event["event"] != "end"]
    kept += events[ended : ended + 1]
    return kept, [problem for each in lines for problem in each.problems]


def granted_otherwise(events: Sequence[Event], session_s: float) -> list[str]:
    """The sessions that were granted another timeout than the one that promises were made by.

    Any session of a process that has told of one; and of the others, such as the pool's, whoever asked for just that.
    The drill, its observer, the producer and queries ask for others.
    """
    found = [
        (each["who"] if each["who"] != HAND else f"session 0x{each['session']:x}", each["timeout"])
        for each in events
        if each["event"] == "session" and (each["who"] != HAND or each.get("asked") == session_s)
    ]
    return [f"{who} was granted a session of {s:g} s, not {session_s:g}" for who, s in found if s != session_s]


def sessions_in(folder: Path) -> dict[int, str]:
    """Session -> process, as the processes of a drill have written it down until now."""
    return dict(found for path in folder.glob("*#*.jsonl") for found in _sessions(path))


def _sessions(path: Path) -> Iterator[tuple[int, str]]:
    """Session -> process, as the process itself says."""
    for event in Lines(path).events():
        if isinstance(event.get("session"), int):
            yield event["session"], event["who"]

"""What a drill knows of what happened: its own notes, the processes' histories, and ZooKeeper's transaction logs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

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


def write_down(notes: Notes, folder: Path, logs: Sequence[Path], chroot: str, own_session: int) -> list[Path]:
    """Write what the drill and ZooKeeper know beside what the processes wrote in `folder`; all the files.

    :param logs: the folders of the servers' transaction logs; empty where they cannot be read.
    :param own_session: the drill's, the only hand that there is.
    """
    told = sorted(folder.glob("*#*.jsonl"))
    sessions = dict(found for path in told for found in _sessions(path))
    # The log's milliseconds are cut off: a transaction was done at the end of its own at the latest.
    done = events_of(logs, sessions, lambda ms: (ms + 1) / 1000 - notes.behind_s, chroot) if logs else []
    done = with_strangers(done, {own_session, *sessions})
    own, zookeeper = folder / "drill.jsonl", folder / "zookeeper.jsonl"
    for path, events in ((own, notes.events), (zookeeper, done)):
        path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    return [own, zookeeper, *told]


def with_strangers(events: Sequence[Event], known: Collection[int]) -> list[Event]:
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


def _sessions(path: Path) -> Iterator[tuple[int, str]]:
    """Session -> process, as the process itself says."""
    for event in Lines(path).events():
        if isinstance(event.get("session"), int):
            yield event["session"], event["who"]

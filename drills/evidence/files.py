"""The evidence of a drill: the files of its folder, with all inputs of its verdict, and the sources of its history: its
own notes, the processes' histories, and a witness of ZooKeeper."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from zk_group import __version__
from zk_group.coordinator.zk.store import Store

from ..base.processes import REPOSITORY, finished
from ..checker.replay.commits import HAND
from ..checker.replay.history_files import Lines, merged
from ..checker.replay.txn_log import events_of
from ..reports.drawing import trace
from ..reports.page import markdown, page

MOST_ZNODES = 20_000
LIBRARIES = ("kazoo", "pyspark", "pyarrow", "confluent-kafka")


def write_json(path: Path, document: object) -> None:
    """Write one JSON document atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)


def write_reports(folder: Path, document: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Write `report.html`, `report.md` and `trace.json`."""
    (folder / "report.html").write_text(page(document, events))
    (folder / "report.md").write_text(markdown(document, events))
    (folder / "trace.json").write_text(json.dumps(trace(document, events)) + "\n")


def write_history(path: Path, events: Iterable[Event]) -> None:
    """One event a line."""
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))


def znodes(store: Store, roots: Sequence[str]) -> dict[str, Any]:
    """These znodes and their subtrees: path -> data as text, version, and ephemeral owner."""
    result: dict[str, Any] = {}
    pending = list(roots)
    while pending and len(result) < MOST_ZNODES:
        batch, pending = pending[:500], pending[500:]
        nodes, listings = store.get_many(batch), store.children_many(batch)
        for path, node, listing in zip(batch, nodes, listings, strict=True):
            if node is not None:
                data, stat = node.data.decode("utf-8", "backslashreplace"), node.stat
                result[path] = {"data": data, "version": stat.version, "ephemeral_owner": stat.ephemeral_owner}
            base = path.rstrip("/")
            pending += [f"{base}/{name}" for name in sorted(listing.names if listing else ())]
    return dict(sorted(result.items()))


def versions(zookeeper: str) -> dict[str, str]:
    result = {"zk-group-coordinator": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            result[library] = metadata.version(library)
    result["zookeeper"] = zookeeper
    with suppress(OSError, subprocess.SubprocessError):
        head = finished("git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD", timeout_s=5)
        if head.returncode == 0:
            result["git"] = head.stdout.strip()
    return result


def point_latest(folder: Path) -> None:
    link = folder.parent / "latest"
    temporary = folder.parent / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(link)


Event = dict[str, Any]

STRANGER = "stranger#"
"""Prefix of the name of a process without a history, before its session."""


class Notes:
    """The drill's own events, in the machine's monotonic time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.behind_s = time.time() - time.monotonic()

    def note(self, event: str, who: str = "server", /, **fields: Any) -> float:
        """Record an event that no process records itself; returns its time."""
        at = time.monotonic()
        with self._lock:
            self._events.append({"at": at, "who": who, "event": event, **fields})
        return at

    @property
    def events(self) -> list[Event]:
        """All events, in order."""
        with self._lock:
            return list(self._events)


def logged(logs: Sequence[Path], who: Mapping[int, str], behind_s: float, chroot: str) -> list[Event]:
    """The events of the servers' transaction logs.

    :param logs: their folders.  :param who: session -> process.  :param behind_s: see `Notes`.
    """
    # The log truncates to milliseconds: the transaction was done by the end of its millisecond.
    return events_of(logs, who, lambda ms: (ms + 1) / 1000 - behind_s, chroot)


def with_strangers(events: Sequence[Event], known: Collection[int | None]) -> list[Event]:
    """The same events, with the commits of sessions that are not `known` attributed to a stranger.

    Manual changes are excused, writes of a process on a session missing in its history are not.
    """
    return [
        {**event, "who": f"{STRANGER}{event['session']:x}"}
        if event["event"] == "commit" and event["session"] not in known
        else event
        for event in events
    ]


def merged_history(files: Sequence[Path]) -> tuple[list[Event], list[str]]:
    """One history of several files, from its `run` to its `end`, and the unreadable parts.

    Transaction logs also contain other drills on the same ensemble.
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
    """The sessions with another timeout than that of the promises' bounds.

    Checked are all sessions of processes with a history; of the others, such as the pool's, those that requested this
    timeout. The drill, its observer, the producer and queries request others.
    """
    sessions = [
        (each["who"] if each["who"] != HAND else f"session 0x{each['session']:x}", each["timeout"])
        for each in events
        if each["event"] == "session" and (each["who"] != HAND or each.get("asked") == session_s)
    ]
    return [f"{who} was granted a session of {s:g} s, not {session_s:g}" for who, s in sessions if s != session_s]


def sessions_in(folder: Path) -> dict[int, str]:
    """Session -> process, from the histories so far."""
    events = (event for path in folder.glob("*#*.jsonl") for event in Lines(path).events())
    return {event["session"]: event["who"] for event in events if isinstance(event.get("session"), int)}

"""Histories of real processes: their events, ZooKeeper's transaction log, and the test's faults."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from zk_group.coordinator.zk.lease import LEASE_SHARE
from zk_group.drills.checker import Verdicts, check_files
from zk_group.drills.checker.replay.txn_log import events_of


class HistoryOfTest:
    """Collects the history of the processes that write theirs into `folder`.

    :param version_folder: where the ensemble's first server has its transaction log.
    :param chroot: where the processes work.
    """

    def __init__(self, folder: Path, version_folder: Path, chroot: str, **bounds: float) -> None:
        self.folder = folder
        self._version_folder = version_folder
        self._chroot = chroot
        self._own: list[dict[str, Any]] = []
        self._behind_s = time.time() - time.monotonic()
        self.note("run", version=1, seed=None, profile="processes", bounds=bounds)

    def note(self, event: str, who: str = "server", **fields: Any) -> None:
        """Something that no process can tell of itself."""
        self._own.append({"at": time.monotonic(), "who": who, "event": event, **fields})

    def killed(self, name: str) -> None:
        """The newest process under a name was killed."""
        newest = max(self.folder.glob(f"{name}#*.jsonl"), key=lambda path: path.stat().st_mtime)
        self.note("exit", newest.stem, why="killed")

    def end(self) -> None:
        """The history ends here, before the processes shut down."""
        self.note("end")
        for path in list(self.folder.glob("*#*.jsonl")):
            (self.folder / f"until-end-{path.name}").write_text(path.read_text())
        own = self.folder / "test.jsonl"
        own.write_text("".join(json.dumps(event) + "\n" for event in self._own))
        log = self.folder / "zookeeper.jsonl"
        log.write_text("".join(json.dumps(event) + "\n" for event in self.transactions()))

    def verdicts(self) -> Verdicts:
        """The checker's findings."""
        return check_files(*self.files())

    def files(self) -> list[Path]:
        """Its events."""
        return [self.folder / "test.jsonl", self.folder / "zookeeper.jsonl", *sorted(self.folder.glob("until-end-*"))]

    def transactions(self) -> list[dict[str, Any]]:
        """The changes in ZooKeeper's own log, in the chroot."""
        # The log's milliseconds are cut off: a transaction was done at the end of its own at the latest.
        return events_of(
            [self._version_folder], self._sessions(), lambda ms: (ms + 1) / 1000 - self._behind_s, self._chroot
        )

    def _sessions(self) -> dict[int, str]:
        """Session -> process, as the processes themselves say."""
        found: dict[int, str] = {}
        for path in sorted(self.folder.glob("*#*.jsonl")):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if "session" in event:
                    found[event["session"]] = event["who"]
        return found


def bounds(session_s: float, tick_s: float, sweep_s: float, poll_interval_s: float) -> dict[str, float]:
    """The checker's bounds for real processes, in seconds."""
    return {
        "session_timeout": session_s,
        "tick": tick_s,
        "sweep": sweep_s,
        "lease": session_s * LEASE_SHARE,
        "poll_interval": poll_interval_s,
        "seal_interval": 0.2,
        "channel_retention": 86_400.0,
        "segment_retention": 3600.0,
        "collection": 2 * sweep_s + 2 * session_s,
        "notice": 2 * sweep_s + 1.0,
    }

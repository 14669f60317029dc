"""The history of a real process: one JSON line per event, as specified in `drills/checker/history.md`."""

from __future__ import annotations

import json
import os
from typing import Any

from .. import below
from ..errors import UsageError
from ..runtime import Recorder
from ..znodes.names import shown


class HistoryFile:
    """Writes events to `[folder]/[name]#[process id].jsonl`, unbuffered: a killed process loses none.

    :param start: fields of its first event.
    :raises UsageError: when the file cannot be written.
    """

    def __init__(self, folder: str, name: str, start: dict[str, str]) -> None:
        self.who = f"{name}#{os.getpid()}"
        self._start = start
        try:
            with below.opened_folder(folder, [], makes=True) as parent:
                self._file = below.appended_file(f"{self.who}.jsonl", parent)
        except OSError as error:
            raise UsageError(f"no history can be written to {shown(folder)}: {error.strerror}") from error

    def __call__(self, at: float, event: str, fields: dict[str, Any]) -> None:
        if self._start:
            self._write(at, "start", self._start)
            self._start = {}
        self._write(at, event, fields)

    def _write(self, at: float, event: str, fields: dict[str, Any]) -> None:
        line = json.dumps({"at": at, "who": self.who, "event": event, **fields}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())  # one call per line: several threads may write


def recorder_in(history_dir: str, name: str, **start: str) -> Recorder | None:
    """The history of a process, None when `history_dir` is empty.

    :param start: fields of its first event, `start`.
    :raises UsageError: when the file cannot be written.
    """
    return HistoryFile(history_dir, name, start) if history_dir else None

"""The demo's Spark application, and the SIGKILL to one of its executors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.zk.embedded.processes import command_line, descendants
from drills.base.processes import END_S, Process, module_command


class Driver(Process):
    """The Spark application (`demo.driver`), and its events.

    :param variables: environment variables, as of its credentials; its executors inherit them.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        file = folder / "driver.json"
        file.write_text(json.dumps(config))
        super().__init__(folder, "spark", module_command("demo.driver", [str(file)]), variables, takes_requests=True)
        self._heard = 0

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call; `ended` when it has ended."""
        is_over = not self.is_running  # before its last events are read
        found = self.printed()
        new, self._heard = found[self._heard :], len(found)
        return [*new, {"event": "ended"}] if is_over else new

    def resize(self, slots: int) -> None:
        """Resize the pool to `slots`; the event `resized` follows."""
        with contextlib.suppress(OSError):
            self.request(f"resize {slots}")

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop the query and the pool, and end it; SIGKILL after `timeout_s` seconds."""
        if self.is_running:
            with contextlib.suppress(OSError):
                self.request("stop")
        if self.wait(timeout_s) is None:
            for pid in descendants(self.pid):
                kill(pid)
        super().finish(END_S)

    def executors_with_fetchers(self) -> list[int]:
        """The driver's executor processes with Python workers, those with most of them first."""
        executors = [pid for pid in descendants(self.pid) if "CoarseGrainedExecutorBackend" in command_line(pid)]
        workers = {pid: sum("pyspark.daemon" in command_line(child) for child in descendants(pid)) for pid in executors}
        return sorted((pid for pid in executors if workers[pid] > 1), key=lambda pid: -workers[pid])


def kill(pid: int) -> None:
    """SIGKILL to a process; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

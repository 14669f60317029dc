"""The demo's Spark application, and the SIGKILL to one of its executors."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from coordinator.zk.embedded.processes import command_line, descendants
from drills.base.processes import own_environment


class Driver:
    """The Spark application (`demo.driver`), and its events.

    :param more: environment variables, as of its credentials; its executors inherit them.
    """

    def __init__(self, folder: Path, config: dict[str, Any], more: dict[str, str]) -> None:
        file = folder / "driver.json"
        file.write_text(json.dumps(config))
        spark = {"SPARK_HOME": str(spark_home(folder)), "PYSPARK_PYTHON": sys.executable}
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        with (folder / "spark.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo.driver", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**own_environment(), **spark, **more},
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="driver-events", daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # Spark prints on standard output too
            if isinstance(event, dict) and "event" in event:
                self.events.put(event)
        self.events.put({"event": "ended"})

    def resize(self, slots: int) -> None:
        """Resize the pool to `slots`; the event `resized` follows."""
        self._request(f"resize {slots}")

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop the query and the pool, and end it; SIGKILL after `timeout_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._request("stop")
            self.process.wait(timeout_s)
        for pid in [*descendants(self.process.pid), self.process.pid]:
            kill(pid)
        self.process.wait()

    def _request(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self.process.stdin and self.process.poll() is None:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()

    def executors_with_fetchers(self) -> list[int]:
        """The driver's executor processes with Python workers, those with most of them first."""
        executors = [
            pid for pid in descendants(self.process.pid) if "CoarseGrainedExecutorBackend" in command_line(pid)
        ]
        workers = {pid: sum("pyspark.daemon" in command_line(child) for child in descendants(pid)) for pid in executors}
        return sorted((pid for pid in executors if workers[pid] > 1), key=lambda pid: -workers[pid])


def spark_home(folder: Path) -> Path:
    """PySpark's folder as links below the run folder: Spark's workers write to `work` below its home."""
    import pyspark

    home = folder / "spark-home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def kill(pid: int) -> None:
    """SIGKILL to a process; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

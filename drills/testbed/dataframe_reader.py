"""The reader of the DataFrames: one Spark process for all drills of a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from coordinator.zk.security.access import ZooKeeperAccess, spark_options
from coordinator.zk.znodes.paths import shown

from ..base.processes import END_S, own_environment
from ..base.signals import held
from ..base.waiting import NotReached

READY_S = 120.0
READ_S = 120.0
ENDED = "ended"


class DataFrameReader:
    """`drills.workloads.spark_reader`, started during the first drill, and restarted after it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with held():  # so that the started process is always registered
            self._process, self._answers = self._started()

    @property
    def pid(self) -> int:
        """Of the current reader process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def _started(self) -> tuple[subprocess.Popen[str], Queue[dict[str, Any]]]:
        """A process, and its queue of answers: the first reports that it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "reader.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "drills.workloads.spark_reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=own_environment(),
                cwd=self._folder,
                process_group=0,
            )
        answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=_listen, args=(process, answers), name="drill-reader", daemon=True).start()
        self._is_ready = False
        return process, answers

    def read(
        self, zk: str, group: str, is_whole: bool = True, access: ZooKeeperAccess | None = None
    ) -> list[dict[str, Any]]:
        """The contents of the DataFrame, for each partition.

        :param access: TLS and the file of credentials.
        :param is_whole: whether all records must be in it; else applications have read some of them.
        :raises NotReached: when Spark does not answer, or cannot read it; with the reason.
        """
        if not self.is_running:
            self.close()
            with held():
                self._process, self._answers = self._started()
        if not self._is_ready:
            self._answer(READY_S)
            self._is_ready = True
        assert self._process.stdin is not None
        options = {"zk": zk, "group": group, "failOnDataLoss": str(is_whole).lower()}
        options |= spark_options(access) if access is not None else {}
        try:
            self._process.stdin.write(json.dumps(options) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NotReached(f"Spark has ended: {error}") from error
        answer = self._answer(READ_S)
        if answer.get("event") != "read":
            raise NotReached(f"the DataFrame is unreadable: {answer.get('reason')}")
        partitions: list[dict[str, Any]] = answer["partitions"]
        return partitions

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            self._process.kill()  # a late answer must not be taken for the next one
            raise NotReached(f"Spark did not answer within {timeout_s:.0f} s") from None
        if answer["event"] == ENDED:
            self._end()  # its remaining children
            raise NotReached(f"Spark has ended: {self._last_words()}")
        return answer

    def _last_words(self) -> str:
        lines = (self._folder / "reader.log").read_text(errors="replace").splitlines()
        return next((shown(line, 300) for line in reversed(lines) if line.strip()), "no output")

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended with unwritten output
                self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(4 * END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):  # the JVM ends shortly after its Python process
            os.killpg(self._process.pid, signal.SIGKILL)


def _listen(process: subprocess.Popen[str], answers: Queue[dict[str, Any]]) -> None:
    """Queue every line of JSON; Spark may print others."""
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    answer = json.loads(line)
                    if isinstance(answer, dict) and "event" in answer:
                        answers.put(answer)
    finally:
        answers.put({"event": ENDED})

"""The DataFrame of a drill's group, read by one Spark process that serves all drills of a run."""

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

from coordinator.zk.names import shown

from .interrupts import held
from .processes import END_S, REPOSITORY
from .waiting import NotReached

READY_S = 120.0
READ_S = 120.0
ENDED = "ended"


class Reader:
    """`consumer.spark.drill_reader`, which starts while the first drill runs, and again when it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with held():  # so that it is not started and then forgotten
            self._process, self._answers = self._started()

    @property
    def pid(self) -> int:
        """Of the process that reads now."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def _started(self) -> tuple[subprocess.Popen[str], Queue[dict[str, Any]]]:
        """A process, and what it will answer: first that it is ready."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "reader.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "consumer.spark.drill_reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=self._folder,
                process_group=0,
            )
        answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=_listen, args=(process, answers), name="drill-reader", daemon=True).start()
        self._is_ready = False
        return process, answers

    def read(self, zk: str, group: str, is_whole: bool = True) -> list[dict[str, Any]]:
        """For each partition what is in the DataFrame.

        :param is_whole: whether all records should be in it; else applications have read some of them.
        :raises NotReached: when Spark does not answer, or cannot read it; with its reason.
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
        try:
            self._process.stdin.write(json.dumps(options) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NotReached(f"Spark has ended: {error}") from error
        answer = self._answer(READ_S)
        if answer.get("event") != "read":
            raise NotReached(f"the DataFrame cannot be read: {answer.get('reason')}")
        partitions: list[dict[str, Any]] = answer["partitions"]
        return partitions

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            self._process.kill()  # what it may still answer is for nobody
            raise NotReached(f"Spark did not answer within {timeout_s:.0f} s") from None
        if answer["event"] == ENDED:
            self._end()  # what is left of it
            raise NotReached(f"Spark has ended: {self._last_words()}")
        return answer

    def _last_words(self) -> str:
        lines = (self._folder / "reader.log").read_text(errors="replace").splitlines()
        return next((shown(line, 300) for line in reversed(lines) if line.strip()), "it said nothing")

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended with something unwritten
                self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(4 * END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):  # the JVM ends with its Python, a little later
            os.killpg(self._process.pid, signal.SIGKILL)


def _listen(process: subprocess.Popen[str], answers: Queue[dict[str, Any]]) -> None:
    """Every line of JSON; Spark may print others."""
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

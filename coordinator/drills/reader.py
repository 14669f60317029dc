"""The DataFrame of a drill's group, read by one Spark process that serves all drills of a run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from .processes import END_S, REPOSITORY
from .waiting import NotReached

READY_S = 60.0
READ_S = 60.0


class Reader:
    """`consumer.spark.drill_reader`, which starts while the first drill runs."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "reader.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "consumer.spark.drill_reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        self._is_ready = False

    def read(self, zk: str, group: str, is_whole: bool = True) -> list[dict[str, Any]]:
        """For each partition what is in the DataFrame.

        :param is_whole: whether all records should be in it; else applications have read some of them.
        :raises NotReached: when Spark does not answer, or cannot read it; with its reason.
        """
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
        """The next line of JSON; Spark may print others."""
        found: list[dict[str, Any]] = []

        def read() -> None:
            for line in self._process.stdout or ():
                try:
                    answer = json.loads(line)
                except ValueError:
                    continue
                if isinstance(answer, dict) and "event" in answer:
                    found.append(answer)
                    return

        thread = threading.Thread(target=read, name="drill-reader", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if not found:
            raise NotReached(f"Spark did not answer within {timeout_s:.0f} s")
        return found[0]

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended with something unwritten
                self._process.stdin.close()
        try:
            self._process.wait(4 * END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

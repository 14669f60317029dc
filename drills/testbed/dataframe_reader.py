"""The reader of the DataFrames: one Spark process for all drills of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator.zk.security.access import ZooKeeperAccess, spark_options
from coordinator.zk.znodes.names import shown

from ..base.processes import END_S, NotReached, Process, module_command, wait_for
from ..base.signals import held

READY_S = 120.0
READ_S = 120.0
ENDED = "ended"


class DataFrameReader:
    """`drills.workloads.spark_reader`, started during the first drill, and restarted after it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    @property
    def pid(self) -> int:
        """Of the current reader process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process.is_running

    def _start(self) -> None:
        (self._folder / "reader.out").unlink(missing_ok=True)
        with held():  # so that the started process is always registered
            command = module_command("drills.workloads.spark_reader", [])
            self._process = Process(self._folder, "reader", command, takes_requests=True)
        self._heard = 0

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
            self._start()
        if not self._heard:
            self._answer(READY_S)  # it is ready
        options = {"zk": zk, "group": group, "failOnDataLoss": str(is_whole).lower()}
        options |= spark_options(access) if access is not None else {}
        try:
            self._process.request(json.dumps(options))
        except OSError as error:
            raise NotReached(f"Spark has ended: {error}") from error
        answer = self._answer(READ_S)
        if answer.get("event") != "read":
            raise NotReached(f"the DataFrame is unreadable: {answer.get('reason')}")
        partitions: list[dict[str, Any]] = answer["partitions"]
        return partitions

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            is_over = not self.is_running  # before its last answer is read
            answers = self._process.printed()[self._heard :]
            return answers[0] if answers else {"event": ENDED} if is_over else None

        try:
            answer = wait_for(look, timeout_s, "Spark answers")
        except NotReached:
            self._process.kill()  # a late answer must not be taken for the next one
            raise
        if answer["event"] == ENDED:
            self.close()  # its remaining children
            raise NotReached(f"Spark has ended: {self._last_words()}")
        self._heard += 1
        return answer

    def _last_words(self) -> str:
        lines = (self._folder / "reader.log").read_text(errors="replace").splitlines()
        return next((shown(line, 300) for line in reversed(lines) if line.strip()), "no output")

    def close(self) -> None:
        """End it; the JVM ends shortly after its Python process."""
        self._process.finish(4 * END_S)

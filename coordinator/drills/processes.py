"""The processes of a drill: started, told to hang, paused, killed, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..zk.ensemble import stands_still
from .interrupts import held
from .waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
END_S = 5.0


class Process:
    """One process of the project. Its output is appended to `NAME.log`, what it prints on stdout to `NAME.out`.

    :ivar who: its name in the history, `name#process id`.
    """

    def __init__(self, folder: Path, name: str, module: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        folder.mkdir(parents=True, exist_ok=True)
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ZK_GROUP_")}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with self.out.open("ab") as out, (folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C in the operator's terminal is for the drill, which ends them in order
            )
        self.pid = self._process.pid
        self.who = f"{name}#{self.pid}"

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; true for one that is paused."""
        return self._process.poll() is None

    def printed(self) -> list[dict[str, Any]]:
        """The JSON lines that it has printed so far; a line that is being written is left for later."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pause(self) -> None:
        """SIGSTOP, and wait until it stands still.

        :raises NotReached: when it does not in time.
        """
        self._process.send_signal(signal.SIGSTOP)
        wait_for(lambda: stands_still(self.pid), END_S, f"{self.name} stands still after SIGSTOP")

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def hang(self) -> None:
        """Let it hang where it can (`consumer.drill`); it goes on living."""
        self._process.send_signal(signal.SIGUSR1)

    def go_on(self) -> None:
        """Let it hang no more."""
        self._process.send_signal(signal.SIGUSR2)

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.strike()
        self._process.wait(END_S)

    def strike(self) -> None:
        """SIGKILL; does not wait."""
        self._process.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float = END_S) -> int | None:
        """Its exit code, None when it has not ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


def end_all(processes: Sequence[Process]) -> None:
    """SIGTERM to all, paused ones too, and SIGKILL to those that do not end by that. Not interrupted."""
    with held():
        running = [process for process in processes if process.is_running]
        for process in running:
            process.resume()
            process.terminate()
        for process in running:
            if process.wait() is None:
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    process.kill()
        for process in processes:  # each began a group, in which something that it had started may live on
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def below(root: int) -> list[int]:
    """All living descendants of a process."""
    parents = dict(_parents())
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])

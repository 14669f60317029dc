"""The processes of a drill: start, hang, pause, kill, and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.zk.embedded.processes import stands_still

from .signals import held
from .waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
END_S = 5.0


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a module of the project."""
    return [sys.executable, "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment without the variables of this project, which may hold secrets, and with its path."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ZK_GROUP_")}
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class Process:
    """One process. Its stderr is appended to `NAME.log`, its stdout to `NAME.out`.

    :param variables: of its environment. It inherits none of this project's.
    :ivar who: its name in the history, `name#process id`.
    """

    def __init__(self, folder: Path, name: str, command: Sequence[str], variables: Mapping[str, str] = {}) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        folder.mkdir(parents=True, exist_ok=True)
        with self.out.open("ab") as out, (folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**own_environment(), **variables},
                process_group=0,  # the operator's Ctrl-C goes to the drill only, which ends its processes in order
            )
        self.pid = self._process.pid
        self.who = f"{name}#{self.pid}"

    @property
    def is_running(self) -> bool:
        """Whether it runs or is paused."""
        return self._process.poll() is None

    def printed(self) -> list[dict[str, Any]]:
        """The JSON lines printed so far."""
        return [json.loads(line) for line in self.lines()]

    def lines(self) -> list[str]:
        """The lines printed so far; an incomplete last line is skipped."""
        lines = self.out.read_text(errors="replace").splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]

    def pause(self) -> None:
        """SIGSTOP, and wait until it is stopped.

        :raises NotReached: when it is not stopped in time.
        """
        self._process.send_signal(signal.SIGSTOP)
        wait_for(lambda: stands_still(self.pid), END_S, f"{self.name} is stopped by SIGSTOP")

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def hang(self) -> None:
        """SIGUSR1: it hangs where its workload can (`drills.workloads`), and stays alive."""
        self._process.send_signal(signal.SIGUSR1)

    def go_on(self) -> None:
        """SIGUSR2: it continues."""
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
        """Its exit code; None when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


def end_all(processes: Sequence[Process]) -> None:
    """SIGTERM to all, paused ones included, and SIGKILL to those that still run after it. Not interruptible."""
    with held():
        running = [process for process in processes if process.is_running]
        for process in running:
            process.resume()
            process.terminate()
        for process in running:
            if process.wait() is None:
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    process.kill()
        for process in processes:  # its process group may contain surviving children
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

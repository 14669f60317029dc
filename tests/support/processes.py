"""Nodes and consumers as operators run them: processes of their own, signalled and waited for by their id."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.wait import FAR_OFF_MS, eventually
from zk_group.coordinator.zk.embedded.ensemble import stands_still

REPOSITORY = Path(__file__).resolve().parents[2]


class ProjectProcess:
    """A command line of the project, its output in files. Ended, by force if it must be, at the end of the block."""

    def __init__(self, folder: Path, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ZK_GROUP_")}
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=REPOSITORY,
                env=environment,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process."""
        self._process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        eventually(lambda: stands_still(self._process.pid), 10, f"{self.name} is suspended")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        self.signal(signal.SIGKILL)
        self._process.wait(10)

    def ends(self, timeout_s: float = 15.0) -> int:
        """Its exit code, once it has ended by itself."""
        return self._process.wait(timeout_s)

    def said(self) -> str:
        """Its stderr so far."""
        return self.err.read_text(errors="replace")

    def lines(self) -> list[str]:
        """The whole lines that it, and earlier processes of its name, have printed so far."""
        return [line for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def printed(self) -> list[dict[str, Any]]:
        """The same, each a JSON object."""
        return [json.loads(line) for line in self.lines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process.poll() is not None:
            return
        self.resume()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        self._process.kill()
        self._process.wait(5)


def node_process(folder: Path, zk: str, node: str, session_timeout_ms: int = 1000, *options: str) -> ProjectProcess:
    """`zk-coordinator run`, which no sweep and no assignment timeout helps; `options` go before."""
    arguments = ["run", "--zk", zk, "--node", node, "--session-timeout-ms", str(session_timeout_ms)]
    arguments += ["--sweep-interval-ms", str(FAR_OFF_MS), "--assignment-timeout-ms", str(FAR_OFF_MS)]
    arguments += ["--group-initial-rebalance-delay-ms", "0", *options]
    return ProjectProcess(folder, node, "zk_group.coordinator.cli", *arguments)


def consumer_process(
    folder: Path, zk: str, group: str, consumer: str, log_dir: Path, *options: str, as_file: str = ""
) -> ProjectProcess:
    """`zk-consumer run` of the topic `t`."""
    arguments = ["run", "--zk", zk, "--group", group, "--consumer", consumer, "--log-dir", str(log_dir)]
    arguments += ["--topics", "t", "--session-timeout-ms", "1500", *options]
    return ProjectProcess(folder, as_file or consumer, "zk_group.consumer.cli", *arguments)


def on_terminal(*arguments: str, columns: int = 80, env: Mapping[str, str] | None = None) -> str:
    """What `python ARGUMENTS` prints on a terminal of this width, with its colours; stderr too."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), **(env or {})}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True) as process:
        os.close(slave)
        printed = b""
        while True:
            try:
                more = os.read(master, 65_536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            printed += more
        os.close(master)
        assert process.wait(30) == 0, printed.decode()
    return printed.decode().replace("\r\n", "\n")

"""The processes of a drill: start, hang, pause, kill, and cleanup; waiting with a deadline; and Ctrl-C, SIGTERM and
SIGHUP during drills: the first one ends them in order, later ones are ignored."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from zk_group.coordinator.zk.embedded.ensemble import stands_still
from zk_group.coordinator.zk.errors import CoordinatorError, StoreError

T = TypeVar("T")
Variables = Mapping[str, str]
LOOK_S = 0.1


class NotReached(CoordinatorError):
    """A condition of a drill was not met in time; the message names it."""


def wait_for(look: Callable[[], T | None], timeout_s: float, what: str, look_s: float = LOOK_S) -> T:
    """The first truthy result of `look`; retried while ZooKeeper is unavailable.

    :raises NotReached: after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := look():
                return result
        except StoreError:
            pass
        if time.monotonic() > deadline:
            raise NotReached(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(look_s)


ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEANING = b"cleaning up: this takes some seconds, and is not interrupted\n"


class Interrupts:
    """The handling of those signals; one instance for the process.

    :ivar is_ending: whether a signal has arrived, or they are ignored.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._has_come = self.is_ending = self._is_said = False

    def take(self, *_: int | FrameType | None) -> None:
        """The handler.

        :raises KeyboardInterrupt: the first time, unless they are held.
        """
        if self.is_ending:
            if not self._is_said:
                self._is_said = True
                with contextlib.suppress(OSError):  # the terminal may be gone; a handler must not print
                    os.write(2, CLEANING)
        elif self._holds:
            self._has_come = True
        else:
            self.is_ending = True
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore the signals from now on: the cleanup runs anyway."""
        self.is_ending = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer the signals until the end of the block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if self._has_come and not self._holds:
                self._has_come = False
                self.take()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle them. Ignored signals (SIGHUP under nohup) stay ignored."""
        self._has_come = self.is_ending = self._is_said = False
        before = {each: handler for each in ENDINGS if (handler := signal.getsignal(each)) != signal.SIG_IGN}
        try:
            for each in before:
                signal.signal(each, self.take)
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


INTERRUPTS = Interrupts()
held = INTERRUPTS.held


REPOSITORY = Path(__file__).absolute().parents[3]  # above `zk_group`, in which a checkout has this package as a link
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
    :param takes_requests: whether it reads lines from its stdin, until that ends; it then works in `folder`.
    :ivar who: its name in the history, `name#process id`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str] = {},
        takes_requests: bool = False,
    ) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        folder.mkdir(parents=True, exist_ok=True)
        with self.out.open("ab") as out, (folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if takes_requests else subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                text=True,
                cwd=folder if takes_requests else None,
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
        """The events printed so far, each a JSON object in a line; Spark prints other lines."""
        found = []
        for line in self.lines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, dict) and "event" in each]

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
        """SIGUSR1: it hangs at its workload's hanging point (`zk_group.drills.workloads`), and stays alive."""
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

    def request(self, line: str) -> None:
        """Write a line to its stdin.

        :raises OSError: when it has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def finish(self, timeout_s: float) -> None:
        """Close its stdin, and wait for its end; then, or after `timeout_s`, SIGKILL to its process group."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended with unwritten output
                self._process.stdin.close()
        if self.wait(timeout_s) is None:
            self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def finished(*command: str, timeout_s: float, environment: Variables | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; returns its output. The terminal's Ctrl-C goes to the drill only.

    :raises OSError: when it cannot be started.
    :raises subprocess.TimeoutExpired: when it had to be killed.
    """
    process = None
    try:
        with held():  # so that a started process is always registered
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # with its children, as of Compose
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def end_all(processes: Sequence[Process]) -> None:
    """SIGTERM to all, paused ones included, then SIGKILL to the survivors. Not interruptible."""
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

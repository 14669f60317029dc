"""Ctrl-C, SIGTERM and SIGHUP during drills: the first one ends them in order, later ones are ignored."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEANING = b"cleaning up: this takes some seconds, and is not interrupted\n"


class Interrupts:
    """The handling of those signals; one instance for the process."""

    def __init__(self) -> None:
        self._holds = 0
        self._has_come = self._is_ending = self._is_said = False

    def take(self, *_: int | FrameType | None) -> None:
        """The handler.

        :raises KeyboardInterrupt: the first time, unless they are held.
        """
        if self._is_ending:
            if not self._is_said:
                self._is_said = True
                with contextlib.suppress(OSError):  # the terminal may be gone; a handler must not print
                    os.write(2, CLEANING)
        elif self._holds:
            self._has_come = True
        else:
            self._is_ending = True
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore the signals from now on: the cleanup runs anyway."""
        self._is_ending = True

    def is_ending(self) -> bool:
        """Whether one has come, or they are ignored."""
        return self._is_ending

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
        self._has_come = self._is_ending = self._is_said = False
        before = {each: handler for each in ENDINGS if (handler := signal.getsignal(each)) != signal.SIG_IGN}
        try:
            for each in before:
                signal.signal(each, self.take)
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


_OURS = Interrupts()
held, taken, ignore, is_ending = _OURS.held, _OURS.taken, _OURS.ignore, _OURS.is_ending


def finished(
    *command: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
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

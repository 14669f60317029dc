"""Signals while drills run: the first ends them, later ones are ignored, and every process is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import psutil
import pytest

from coordinator.zk.embedded.ensemble import command_line
from drills.base.processes import ENDINGS, INTERRUPTS, Process, end_all, finished, held
from tests.support.wait import eventually

UNUSED_PID = 1 << 30
"""No process id."""
STUBBORN = "import time, subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}]); time.sleep(60)"
SLEEP = "import time; time.sleep(60)  # of {}"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in ENDINGS}
    for each in ENDINGS:  # under nohup SIGHUP is ignored, and remains so
        signal.signal(each, signal.SIG_DFL if each is not signal.SIGINT else signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class Ending(Process):
    """A process that ends on SIGTERM; Ctrl-C is pressed during the wait for it."""

    def __init__(self) -> None:
        self.pid = UNUSED_PID
        self.done: list[str] = []

    @property
    def is_running(self) -> bool:
        return True

    def resume(self) -> None:
        self.done.append("resume")

    def terminate(self) -> None:
        self.done.append("terminate")

    def wait(self, timeout_s: float = 0.0) -> int | None:
        signal.raise_signal(signal.SIGINT)
        self.done.append("wait")
        return None

    def kill(self) -> None:
        self.done.append("kill")


@pytest.mark.parametrize("first", ENDINGS)
def test_the_first_signal_interrupts_and_further_ones_are_answered_once(
    first: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with INTERRUPTS.taken():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(first)
        for again in (*ENDINGS, *ENDINGS):
            signal.raise_signal(again)

    assert capfd.readouterr().err == "cleaning up: this takes some seconds, and is not interrupted\n"


def test_ignored_signals_stay_ignored_and_handlers_are_restored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {each: signal.getsignal(each) for each in ENDINGS}

    with INTERRUPTS.taken():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]

    assert {each: signal.getsignal(each) for each in ENDINGS} == before


def test_deferred_signal_takes_effect_when_the_last_hold_ends() -> None:
    done = []
    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt), held():
        with held():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    assert done == ["inner", "outer"]


def test_first_signal_does_not_interrupt_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with INTERRUPTS.taken():
        INTERRUPTS.ignore()
        signal.raise_signal(signal.SIGINT)
    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # another run has its own

    assert capfd.readouterr().err.startswith("cleaning up")


def test_every_process_is_ended_despite_ctrl_c_during_the_first_wait() -> None:
    processes = [Ending(), Ending()]

    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt):
        end_all(cast(list[Process], processes))

    assert [each.done for each in processes] == [["resume", "terminate", "wait", "kill"]] * 2


def test_command_runs_in_its_own_session_and_is_not_interrupted_by_the_terminal() -> None:
    done = finished(sys.executable, "-c", "import os; print(os.getsid(0), os.getpid())", timeout_s=30)

    session, pid = done.stdout.split()
    assert (done.returncode, session) == (0, pid)
    assert int(session) != os.getsid(0)


@pytest.mark.long
def test_command_that_does_not_end_is_killed_with_its_children() -> None:
    mark = SLEEP.format(os.getpid())

    with pytest.raises(subprocess.TimeoutExpired):
        finished(sys.executable, "-c", STUBBORN.format(mark), timeout_s=1.0)

    def left() -> list[int]:
        return [pid for pid in psutil.pids() if mark in command_line(pid)]

    eventually(lambda: not left(), 10, "both are gone")


def test_missing_program_is_reported() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        finished("no-such-program", timeout_s=1.0)

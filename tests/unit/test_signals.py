"""The action of a signal is done in any state of the main thread."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.zk.errors import UsageError

IN_THE_MIDST = """
import os, signal, threading
from coordinator.zk.runtime import on_signals

ended = threading.Event()
on_signals([signal.SIGTERM], lambda number: ended.set())
with ended._cond:  # as `wait` holds it for a moment
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
print(ended.wait(10))
"""


HANGUP = """
import os, signal, sys, threading
from coordinator.zk.runtime import ENDINGS, on_signals

ended = threading.Event()
on_signals(ENDINGS, lambda number: ended.set())
os.kill(os.getpid(), signal.SIGHUP)
print(ended.wait(float(sys.argv[1])))
"""


def printed(program: str, *words: str, before: str = "") -> str:
    command = [*before.split(), sys.executable, "-c", program, *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "waits", "is_ended"), [("env --default-signal=HUP", "10", "True\n"), ("nohup", "0.2", "False\n")]
)
def test_hangup_ends_a_process_in_order_unless_it_is_ignored(before: str, waits: str, is_ended: str) -> None:
    assert printed(HANGUP, waits, before=before) == is_ended


COMMANDS = ("consumer.cli run --group g --topics t --log-dir kafka:", "coordinator.cli run --node a")


@pytest.mark.parametrize("command", COMMANDS)
def test_node_and_consumer_commands_leave_on_a_hangup(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[signal.Signals] = []

    def note(numbers: Iterable[signal.Signals], act: object) -> None:
        handled.extend(numbers)
        raise UsageError("enough")

    package, *words = command.split()
    module = import_module(package)
    monkeypatch.setattr(import_module(f"{package}.run"), "on_signals", note)

    CliRunner().invoke(module.main, [*words, "--zk", "zk:1"])

    assert signal.SIGHUP in handled


def test_signal_during_a_lock_of_its_event_blocks_nothing() -> None:
    assert printed(IN_THE_MIDST) == "True\n"

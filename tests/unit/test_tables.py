"""What a command prints, no value of it truncated at any width; and what it does on signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from tests.support.processes import on_terminal
from zk_group.coordinator.cli.groups import HISTORY, LIST
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.process.cli import fitting, table_text

REASON = "the members share no strategy that is installed on this node"
ROWS = [
    ["g", "RebalanceFailed", "3", "cooperative-sticky", "3", "12", "0", REASON],
    ["query-flights-by-carrier-and-day", "Stable", "12", "range", "3", "12", "0", "-"],
]
PROGRAM = f"""
import sys, click
from zk_group.coordinator.zk.process.cli import output_option, print_rows
@click.command()
@output_option
def show(output):
    print_rows({LIST!r}, {ROWS!r}, output)
show()
"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def test_a_table_in_a_pipe_has_every_column_and_value_whole() -> None:
    long = "x" * 200_000

    lines = table_text(("A", "B"), [(long, "a b c d"), (None, "y" * 300)]).splitlines()

    assert [line.split()[0] for line in lines] == ["A", long, "-"]
    assert lines[1].endswith("  a b c d") and lines[2].endswith("y" * 300)


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_a_narrow_table_keeps_each_value_it_shows_whole(width: int) -> None:
    shown, widths = fitting(LIST, ROWS, width)

    assert shown[0] == 0, "the first column names the row"
    for index, cells in zip(shown, widths, strict=True):
        for text in (LIST[index], *(row[index] for row in ROWS)):
            assert cells >= max(map(cell_len, text.split())), "wrapped between words only"
    assert sum(widths) + 2 * (len(widths) - 1) <= width or len(shown) == 1


def test_columns_without_values_are_left_out_first() -> None:
    row = ["12", "3", "2026-10-01 12:00:01Z", "left c2", "-", "c2/1234abcd", "2", "10", "20", "30"]
    row += ["-", "-", "finished"]

    shown, _ = fitting(HISTORY, [row], 126)

    assert [column for i, column in enumerate(HISTORY) if i not in shown] == ["JOINED", "ASSIGNMENT-MS", "ATTEMPTS"]


def test_a_terminal_shows_what_fits_names_the_rest_and_colours_it() -> None:
    printed = on_terminal("-c", PROGRAM, columns=80)
    plain = COLOURS.sub("", printed)

    assert max(len(line) for line in plain.splitlines()[:-1]) <= 80
    assert "RebalanceFailed" in plain and "query-flights-by-carrier-and-day" in plain and "…" not in plain
    assert " ".join(plain.split()).count("installed on this") == 1
    assert plain.splitlines()[-1].startswith("not shown: ") and plain.rstrip().endswith("(--wide)")
    assert "\x1b[31mRebalanceFailed" in printed


def test_wide_shows_every_column_on_a_terminal_too() -> None:
    plain = COLOURS.sub("", on_terminal("-c", PROGRAM, "--wide", columns=80))

    assert plain.splitlines()[0].split() == list(LIST)
    assert REASON in plain and "not shown" not in plain


def test_no_color_prints_no_colour() -> None:
    assert "\x1b[3" not in on_terminal("-c", PROGRAM, columns=200, env={"NO_COLOR": "1"})


# ---- the action of a signal is done in any state of the main thread


IN_THE_MIDST = """
import os, signal, threading
from zk_group.coordinator.zk.runtime import on_signals

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
from zk_group.coordinator.zk.runtime import ENDINGS, on_signals

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


COMMANDS = ("zk_group.consumer.cli run --group g --topics t --log-dir kafka:", "zk_group.coordinator.cli run --node a")


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

"""No value is truncated at any width: columns are hidden and listed."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from coordinator.cli.groups import HISTORY, LIST
from coordinator.zk.process.cli import fitting, table_text
from tests.support.terminal import on_terminal

REASON = "the members share no strategy that is installed on this node"
ROWS = [
    ["g", "RebalanceFailed", "3", "cooperative-sticky", "3", "12", "0", REASON],
    ["query-flights-by-carrier-and-day", "Stable", "12", "range", "3", "12", "0", "-"],
]
PROGRAM = f"""
import sys, click
from coordinator.zk.process.cli import output_option, print_rows
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
    row = [
        "12",
        "3",
        "2026-10-01 12:00:01Z",
        "left c2",
        "-",
        "c2/1234abcd",
        "2",
        "10",
        "20",
        "30",
        "-",
        "-",
        "finished",
    ]

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

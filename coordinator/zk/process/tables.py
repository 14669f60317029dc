"""Tables of the command lines. No value is truncated: on a narrow terminal columns are hidden and listed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..znodes.names import printable

Command = TypeVar("Command", bound=Callable[..., Any])

UNLIMITED = sys.maxsize
GAP = 2
WRAPPED_AT_LEAST = 24
"""Cells of a column whose text is wrapped between words."""
PROSE_WORDS = 3
WIDE = "coordinator.zk.process.tables.wide"

LEFT_OUT_FIRST = (
    "CLIENT-ID", "TURN-MS-PER-S", "EPOCH", "HOST", "RUN", "TOPIC-ID", "INCARNATION", "METADATA-BYTES", "ATTEMPTS",
    "ASSIGNMENT-MS", "LAST-STOP-MS", "LAST-START-MS", "MOVED", "JOINED", "LEFT", "SUBSCRIPTION", "FINISHED", "STRATEGY",
    "FILE", "PARTITIONS", "MEMBERS", "GENERATION",
)  # fmt: skip
"""Columns that a narrow terminal lacks first; then the last ones."""

ALARMING = {
    "STATE": {
        "RebalanceFailed": "red", "Failed": "red", "unreadable": "red", "expired": "red", "silent": "yellow",
        "PreparingRebalance": "yellow", "CompletingRebalance": "yellow", "Resetting": "yellow", "aborted": "yellow",
    },
    "SEVERITY": {"damaged": "red"},
    "RESULT": {"in progress": "yellow"},
}  # fmt: skip
"""Column -> value -> its colour."""
ALARMING_COLUMNS = {
    "PROBLEM": "red", "ERROR": "red", "WHY": "yellow", "REASON": "yellow", "PAUSED": "yellow", "ENDED": "yellow",
}  # fmt: skip
"""Column -> the colour of every value in it."""


def wide_option(command: Command) -> Command:
    """`--wide`, for every table of the command."""
    return click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=lambda context, option, value: context.meta.__setitem__(WIDE, value),
        help="Every column, on a narrow terminal too. Elsewhere there are always all.",
    )(command)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """`rows` as a table, without the final newline.

    Anywhere but on a terminal, and with `--wide`, every column at its full width. On a terminal what fits: a column
    without values is left out first, prose is wrapped between words, then other columns are left out; a last line names
    them.
    """
    texts = [["-" if value is None else printable(value) for value in row] for row in rows]
    is_wide = not sys.stdout.isatty() or _is_asked_wide()
    shown, widths = fitting(columns, texts, UNLIMITED if is_wide else Console().width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, width in zip(shown, widths, strict=True):
        is_number = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(columns[index], justify="right" if is_number else "left", width=width)
    for row in texts:
        table.add_row(*(Text(row[index], style=style_of(columns[index], row[index])) for index in shown))
    console = Console(width=sum(widths) + GAP * len(widths), highlight=False)
    with console.capture() as capture:
        console.print(table)
        if left_out := [column for index, column in enumerate(columns) if index not in shown]:
            console.print(f"not shown: {', '.join(left_out)} (--wide)", style="dim", soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], list[int]]:
    """The columns to show in `width` cells, by their indexes, and the width of each. Pure.

    No width is below that of a column's longest word; where a single column is wider than `width`, so is the table.
    """
    natural = [max(map(cell_len, (column, *(row[i] for row in rows)))) for i, column in enumerate(columns)]
    least = [_least(column, [row[i] for row in rows], natural[i]) for i, column in enumerate(columns)]
    shown = list(range(len(columns)))
    if _total(natural, shown) <= width:
        return shown, natural
    for index in [i for i in reversed(shown) if rows and all(row[i] == "-" for row in rows)]:
        if _total(natural, shown) > width and len(shown) > 1:
            shown.remove(index)
    while _total(least, shown) > width and len(shown) > 1:
        shown.remove(min(shown, key=lambda i: _rank(columns[i], i)))
    widths = {index: least[index] for index in shown}
    for _ in range(min(width, _total(natural, shown)) - _total(least, shown)):
        widths[max(shown, key=lambda i: natural[i] - widths[i])] += 1  # to the one that lacks most
    return shown, [widths[index] for index in shown]


def style_of(column: str, value: str) -> str:
    """The colour of a value that is unhealthy, or in need of attention; empty for all others."""
    if value == "-":
        return ""
    return ALARMING_COLUMNS.get(column) or ALARMING.get(column, {}).get(value, "")


def echo_alarm(text: str, colour: str = "red") -> None:
    """Print a line on stdout, coloured on a terminal."""
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(Text(text, style=colour), soft_wrap=True)
    click.echo(capture.get().rstrip("\n"))


def _rank(column: str, index: int) -> tuple[int, int]:
    """What is left out first has the lowest; the first column is left out last."""
    if column in LEFT_OUT_FIRST and index:
        return 0, LEFT_OUT_FIRST.index(column)
    return (1, -index) if index else (2, 0)


def _least(column: str, texts: Sequence[str], natural: int) -> int:
    words = [word for text in texts for word in text.split()]
    if all(len(text.split()) < PROSE_WORDS for text in texts):
        return natural
    return max(cell_len(column), min(natural, WRAPPED_AT_LEAST), *map(cell_len, words))


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[index] for index in shown) + GAP * (len(shown) - 1)


def _is_asked_wide() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))

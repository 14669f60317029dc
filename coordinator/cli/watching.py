"""`--watch`: what a command shows, shown again and again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coordinator.zk.errors import Retryable
from coordinator.zk.runtime import ThreadRuntime

from .common import JSON, at, print_rows, printable, row_objects, table_text

Command = TypeVar("Command", bound=Callable[..., Any])
EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Shot:
    """What is shown once: a table, and notes that belong beside it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()


def watch_options(command: Command) -> Command:
    """`--watch [SECONDS]` and `--times N`, given to the command as `watch` and `times`."""
    times = click.option("--times", type=click.IntRange(1), help="With --watch: end after so many times.")
    watch = click.option(
        "--watch",
        is_flag=False,
        flag_value=EVERY_S,
        type=click.FloatRange(0.1, 86_400),
        metavar="[SECONDS]",
        help=f"Show it again every so many seconds ({EVERY_S:g} when no number follows), until Ctrl-C.",
    )
    return watch(times(command))


def show(take: Callable[[], Shot], output: str, watch: float | None, times: int | None) -> None:
    """Print what `take` brings: once, or every `watch` seconds until Ctrl-C, or until it was `times` times.

    On a terminal a table is replaced by the next; elsewhere a blank line stands between two. In JSON each is one object
    on a line: `at`, `rows`, `notes`.
    """
    if watch is None:
        shot = take()
        print_rows(shot.columns, shot.rows, output)
        _tell(shot.notes)
        return
    try:
        if output == JSON:
            _repeat(take, _Lines(), watch, times)
        elif not sys.stdout.isatty():
            _repeat(take, _Tables(), watch, times)
        else:
            with Live(console=Console(highlight=False), auto_refresh=False, screen=False) as live:
                _repeat(take, lambda shot: live.update(_rendered(shot), refresh=True), watch, times)
    except BrokenPipeError:
        # Whoever read has gone; what is left in the buffer has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _repeat(take: Callable[[], Shot], tell: Callable[[Shot], None], every_s: float, times: int | None) -> None:
    runtime = ThreadRuntime()
    shown = 0
    while True:
        try:
            shot = take()
        except Retryable as error:  # the connection was lost for a moment: it is shown again when it is back
            shot = Shot(("PROBLEM",), [(str(error),)])
        tell(shot)
        shown += 1
        if shown == times:
            return
        runtime.sleep(every_s)


class _Lines:
    """One object a line."""

    def __call__(self, shot: Shot) -> None:
        now = at(ThreadRuntime().wall_ms())
        document = {"at": now, "rows": row_objects(shot.columns, shot.rows), "notes": list(shot.notes)}
        print(json.dumps(document, separators=(",", ":")), flush=True)


class _Tables:
    """One table after the other; a note is said again when it has changed."""

    def __init__(self) -> None:
        self._notes: Sequence[str] | None = None

    def __call__(self, shot: Shot) -> None:
        if self._notes is not None:
            print()
        print(table_text(shot.columns, shot.rows), flush=True)
        if list(shot.notes) != self._notes:
            _tell(shot.notes)
        self._notes = list(shot.notes)


def _rendered(shot: Shot) -> Group:
    notes = [Text(printable(note)) for note in shot.notes]
    now = Text(at(ThreadRuntime().wall_ms()), style="dim")
    return Group(now, Text.from_ansi(table_text(shot.columns, shot.rows)), *notes)


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(printable(note), err=True)

"""`--watch`: repeat a command's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coordinator.admin.groups import Reading
from coordinator.zk.errors import Retryable
from coordinator.zk.process.cli import (
    JSON,
    Seconds,
    opened,
    output_option,
    print_rows,
    printable,
    row_objects,
    table_text,
    zk_option,
)
from coordinator.zk.runtime import ThreadRuntime

from .common import at

Command = TypeVar("Command", bound=Callable[..., Any])
EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Shot:
    """One output: a table, and its notes."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()


def watch_options(command: Command) -> Command:
    """`--watch [SECONDS]` and `--times N`, given to the command as `watch` and `times`."""
    times = click.option("--times", type=click.IntRange(1), help="With --watch: stop after this many times.")
    watch = click.option(
        "--watch",
        is_flag=False,
        flag_value=EVERY_S,
        type=Seconds(0.1, 86_400),
        metavar="[SECONDS]",
        help=f"Repeat every SECONDS ({EVERY_S:g} by default), until Ctrl-C.",
    )
    return watch(times(command))


def watched(take: Callable[..., Shot]) -> Callable[..., None]:
    """A command whose output can be repeated, from a function that reads it once.

    :param take: called with a new `Reading` and the command's own options.
    """

    @wraps(take)
    def command(watch: float | None, times: int | None, zk: str, output: str, **options: Any) -> None:
        with opened(zk) as store:
            show(lambda: take(Reading(store), **options), output, watch, times)

    return watch_options(zk_option(output_option(command)))


def show(take: Callable[[], Shot], output: str, watch: float | None, times: int | None) -> None:
    """Print the result of `take`: once, or every `watch` seconds until Ctrl-C, or `times` times.

    On a terminal a table is replaced by the next; elsewhere a blank line separates them. In JSON each is one object
    on a line: `at`, `rows`, `notes`.
    """
    if watch is None:
        shot = take()
        print_rows(shot.columns, shot.rows, output)
        _print_notes(shot.notes)
        return
    with suppress(BrokenPipeError):  # the reader of the pipe has gone: `checked_streams` drops further output
        if output == JSON:
            _repeat(take, _Lines(), watch, times)
        elif not sys.stdout.isatty():
            _repeat(take, _Tables(), watch, times)
        else:
            with Live(console=Console(highlight=False), auto_refresh=False, screen=False) as live:
                _repeat(take, lambda shot: live.update(_rendered(shot), refresh=True), watch, times)


def _repeat(take: Callable[[], Shot], print_shot: Callable[[Shot], None], every_s: float, times: int | None) -> None:
    runtime = ThreadRuntime()
    shown = 0
    while True:
        try:
            shot = take()
        except Retryable as error:  # connection lost: shown again after the reconnect
            shot = Shot(("PROBLEM",), [(str(error),)])
        print_shot(shot)
        shown += 1
        if shown == times:
            return
        runtime.sleep(every_s)


class _Lines:
    """One object per line."""

    def __call__(self, shot: Shot) -> None:
        now = at(ThreadRuntime().wall_ms())
        document = {"at": now, "rows": row_objects(shot.columns, shot.rows), "notes": list(shot.notes)}
        print(json.dumps(document, separators=(",", ":")), flush=True)


class _Tables:
    """One table after the other; a note is repeated when it has changed."""

    def __init__(self) -> None:
        self._notes: Sequence[str] | None = None

    def __call__(self, shot: Shot) -> None:
        if self._notes is not None:
            print()
        print(table_text(shot.columns, shot.rows), flush=True)
        if list(shot.notes) != self._notes:
            _print_notes(shot.notes)
        self._notes = list(shot.notes)


def _rendered(shot: Shot) -> Group:
    notes = [Text(printable(note)) for note in shot.notes]
    now = Text(at(ThreadRuntime().wall_ms()), style="dim")
    return Group(now, Text.from_ansi(table_text(shot.columns, shot.rows)), *notes)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(printable(note), err=True)

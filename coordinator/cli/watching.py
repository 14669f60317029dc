"""Options and printing of `zk-coordinator` alone, and the frame of a command that prints what it reads: once, or with
`--watch` again and again.
"""

from __future__ import annotations

import getpass
import json
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce, wraps
from typing import Any, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.zk.errors import Retryable
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.process.log_format import redacted
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.records import LONGEST_BY, PausedRecord

Command = TypeVar("Command", bound=Callable[..., Any])
EVERY_S = 2.0
reason_option = click.option("--reason", help="The reason, shown with the pause or request.")

UNHEALTHY = 5
"""Exit code of a check with findings."""


def timeout_option(what: str) -> Callable[[Command], Command]:
    """`--timeout`, passed to the command as `timeout_s`: the time to wait for `what`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=cli.Seconds(0.1, 3600),
        default=30.0,
        show_default=True,
        help=f"Seconds to wait for the {what}.",
    )


def operator() -> str:
    """The operator, as user@host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:LONGEST_BY]


def at(wall_ms: int) -> str:
    """A wall-clock time as text, in UTC."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def echo_paused(paused: PausedRecord, label: str) -> None:
    """Print the pauses, a line each, that of every group first."""
    everything = [("everything", paused.everything)] if paused.everything else []
    for what, pause in everything + [(f"group {group}", pause) for group, pause in sorted(paused.groups.items())]:
        why = f": {pause.reason}" if pause.reason else ""
        line = f"{label}{what}, by {pause.by or 'an operator'} since {at(pause.since_ms)}{why}"
        cli.echo_alarm(cli.printable(line), "yellow")


@dataclass(frozen=True, slots=True)
class Shot:
    """One output: a table, and its notes.

    :ivar document: what `-o json` prints instead of the rows.
    :ivar text: prints what stands in place of the table, or below it.
    :ivar code: the exit code.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    notes: Sequence[str] = ()
    document: object = None
    text: Callable[[], object] | None = None
    code: int = 0


def watch_options(command: Command) -> Command:
    """`--watch [SECONDS]` and `--times N`, given to the command as `watch` and `times`."""
    times = click.option("--times", type=click.IntRange(1), help="With --watch: stop after this many times.")
    watch = click.option(
        "--watch",
        is_flag=False,
        flag_value=EVERY_S,
        type=cli.Seconds(0.1, 86_400),
        metavar="[SECONDS]",
        help=f"Repeat every SECONDS ({EVERY_S:g} by default), until Ctrl-C.",
    )
    return watch(times(command))


def printed(
    *options: Callable[..., Any], make_chroot: bool = False, check: Callable[..., object] | None = None
) -> Callable[[Callable[..., Shot]], Any]:
    """A command that prints once what a function does or reads, called with a new `Reading` and the command's options.

    :param options: those between `--zk` and `--output`.
    :param check: called with the command's options before it connects; it refuses those that contradict each other.
    """

    def framed(take: Callable[..., Shot]) -> Callable[..., int]:
        @wraps(take)
        def command(zk: str, output: str, watch: float | None = None, times: int | None = None, **own: Any) -> int:
            if check is not None:
                check(**own)
            with cli.opened(zk, make_chroot) as store:
                return show(lambda: take(Reading(store), **own), output, watch, times)

        return reduce(lambda made, add: add(made), (cli.output_option, *reversed(options), cli.zk_option), command)

    return framed


def show(take: Callable[[], Shot], output: str, watch: float | None, times: int | None) -> int:
    """Print the result of `take`: once, or every `watch` seconds until Ctrl-C, or `times` times.

    On a terminal a table is replaced by the next; elsewhere a blank line separates them. In JSON each is one object
    on a line: `at`, `rows`, `notes`.

    :returns: the exit code.
    """
    if watch is None:
        shot = take()
        _print(shot, output)
        return shot.code
    with suppress(BrokenPipeError):  # the reader of the pipe has gone: `checked_streams` drops further output
        if output == cli.JSON:
            _repeat(take, _print_line, watch, times)
        elif not sys.stdout.isatty():
            _repeat(take, _Tables(), watch, times)
        else:
            with Live(console=Console(highlight=False), auto_refresh=False, screen=False) as live:
                _repeat(take, lambda shot: live.update(_rendered(shot), refresh=True), watch, times)
    return 0


def error_note(error: object) -> str:
    """A note of an error, as `report` prints it."""
    return f"error: {redacted(' '.join(str(error).split()))}"


def print_below(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None) -> None:
    """Print another table below a command's own, if it has rows; at most `most` of them."""
    if rows:
        click.echo(f"\n{title}:")
        cli.print_rows(columns, rows[:most])
        if most is not None and len(rows) > most:
            click.echo(f"and {len(rows) - most} more")


def _print(shot: Shot, output: str) -> None:
    if output == cli.JSON:
        cli.print_json(cli.row_objects(shot.columns, shot.rows) if shot.document is None else shot.document)
    elif shot.columns:
        cli.print_rows(shot.columns, shot.rows)
    if shot.text is not None and output != cli.JSON:
        shot.text()
    _print_notes(shot.notes)


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


def _print_line(shot: Shot) -> None:
    now = at(ThreadRuntime().wall_ms())
    document = {"at": now, "rows": cli.row_objects(shot.columns, shot.rows), "notes": list(shot.notes)}
    print(json.dumps(document, separators=(",", ":")), flush=True)


class _Tables:
    """One table after the other; a note is repeated when it has changed."""

    def __init__(self) -> None:
        self._notes: Sequence[str] | None = None

    def __call__(self, shot: Shot) -> None:
        if self._notes is not None:
            print()
        print(cli.table_text(shot.columns, shot.rows), flush=True)
        if list(shot.notes) != self._notes:
            _print_notes(shot.notes)
        self._notes = list(shot.notes)


def _rendered(shot: Shot) -> Group:
    notes = [Text(cli.printable(note)) for note in shot.notes]
    now = Text(at(ThreadRuntime().wall_ms()), style="dim")
    return Group(now, Text.from_ansi(cli.table_text(shot.columns, shot.rows)), *notes)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(cli.printable(note), err=True)

"""Options and printing of `zk-coordinator` alone; those of both sides are in `coordinator.zk.process.cli`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from coordinator.zk.process.cli import Seconds, echo_alarm, printable
from coordinator.zk.znodes.records import LONGEST_BY, PausedRecord

Command = TypeVar("Command", bound=Callable[..., Any])

UNHEALTHY = 5
"""Exit code of a check with findings."""


def reason_option(command: Command) -> Command:
    """`--reason`, for later readers."""
    return click.option("--reason", help="The reason, shown with the pause or request.")(command)


def timeout_option(what: str) -> Callable[[Command], Command]:
    """`--timeout`, passed to the command as `timeout_s`: how long it waits for `what`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(0.1, 3600),
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
        echo_alarm(printable(line), "yellow")


def paused_json(paused: PausedRecord) -> object:
    """The pauses, as in `/consumers/paused`."""
    return paused.to_json()

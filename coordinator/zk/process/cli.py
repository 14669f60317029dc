"""Shared by the command lines of both sides: options, tables, exit codes, and standard streams that fail.

No value in a table is truncated: on a narrow terminal columns are hidden and listed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast, get_type_hints

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import CoordinatorError, UsageError
from ..security.access import ACCESS_HELPS, ZooKeeperAccess, variables_in
from ..session.kazoo_store import open_kazoo
from ..store import AclStore
from ..values import PREFIX, load
from ..znodes.paths import Brokers, shown
from ..znodes.paths import printable as printable
from .log_format import TEXT, redacted

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

SESSION_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 10.0
INTERRUPTED = 130
TABLE = "table"
JSON = "json"
_CONFIG = "zk_group.zk_config"
_FROM_ENVIRONMENT = "zk_group.from_environment"
_TELLING = 4
"""Minimum characters by which a value is recognized in a message."""
_NO_KEY = re.compile(r"[^a-z0-9]+")
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


class EnvOption(click.Option):
    """An option that may be set in the environment; `Cli` knows its value's source."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        if value is not None:
            ctx.meta.setdefault(_FROM_ENVIRONMENT, {})[self.opts[0]] = self.envvar, value
        return value


class Seconds(click.FloatRange):
    """Seconds of an option, from `least` to `most`; not `nan`, which is neither below nor above a bound."""

    name = "seconds"

    def __init__(self, least: float, most: float = 10**9) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number.", param, ctx)
        return seconds


class Cli(click.Group):
    """A click group with the project's exit codes.

    An error of the project prints one line on stderr and exits with its code (2 for usage, as click's own), an
    interrupt with 130; neither prints a traceback.

    :param places: command -> its module, which defines it under its name (with `_` for `-`). Imported when the command
        is called: a node does not wait for imports of other commands.
    """

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT_SETTINGS, **options})
        self._places = places or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._places:
            command: click.Command = getattr(import_module(self._places[cmd_name]), cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """See click. A usage error about the value of an `EnvOption` names its variable."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            given = ctx.meta.pop(_FROM_ENVIRONMENT, {})
            about = [
                f"{option} from {variable}"
                for option, (variable, value) in given.items()
                if re.search(rf"{option}(?![-\w])", str(error)) or (len(value) >= _TELLING and value in str(error))
            ]
            if sources := ", ".join([*about, *variables_in(str(error))]):
                raise UsageError(f"{error} ({sources})") from error
            raise

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        run = partial(super().main, *args, standalone_mode=False, **options)
        if not standalone_mode:
            return run()
        sys.exit(exit_code_of(run))


def exit_code_of(run: Callable[[], Any]) -> int:
    """The exit code of `run`. An error prints one line, an interrupt none."""
    try:
        with checked_streams():
            result = run()
        return result if isinstance(result, int) else 0
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CoordinatorError as error:
        report(error)
        return error.exit_code
    except OSError as error:  # a file, a disk or a limit of this machine: a traceback only when debugging
        log.debug("command failed: reason=%s", error, exc_info=True)
        report(error)
        return CoordinatorError.exit_code


def report(error: object) -> None:
    """Print an error on stderr, in one line."""
    click.echo("error: " + printable(redacted(" ".join(str(error).split()))), err=True)


def env_option(option: str, *name: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option that may be set in the environment: `--log-dir` by `ZK_GROUP_LOG_DIR`."""
    variable = PREFIX + option.removeprefix("--").replace("-", "_").upper()
    return click.option(option, *name, cls=EnvOption, envvar=variable, show_envvar=True, **attributes)


def zk_option(command: Command) -> Command:
    """`--zk`, passed to the command as `zk`: the ZooKeeper servers; and `--zk-config`."""
    servers = env_option(
        "--zk", required=True, metavar="HOSTS/CHROOT", help="The ZooKeeper servers, as host:port,host:port/chroot."
    )
    return servers(zk_config_option(command))


zk_config_option = env_option(
    "--zk-config",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=lambda context, option, file: context.meta.__setitem__(_CONFIG, file),
    help="TOML file of zk_auth_file, zk_tls, zk_tls_ca, zk_tls_cert, zk_tls_key; or set ZK_GROUP_ZK_TLS, ....",
)
"""`--zk-config`, not passed to the command: `command_access` has it."""


def command_access() -> ZooKeeperAccess:
    """The current command's access to ZooKeeper, by `--zk-config` and the environment.

    :raises UsageError: when the file cannot be read, or a value is malformed.
    """
    context = click.get_current_context(silent=True)
    return load(ZooKeeperAccess, {}, context.meta.get(_CONFIG) if context is not None else None)


brokers_option = env_option(
    "--brokers-path",
    "brokers",
    default="/brokers",
    show_default=True,
    metavar="PATH",
    callback=lambda context, option, value: brokers_at(value),
    help="The parent znode of Kafka's brokers and topics.",
)
"""`--brokers-path`, passed to the command as `brokers`, a `Brokers`: the parent of the topics."""

kafka_option = click.option(
    "--kafka",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda context, option, values: _named(values) or None,
    help="A librdkafka option, as security.protocol=SASL_SSL; pass secrets by ZK_GROUP_KAFKA_SASL_PASSWORD.",
)
"""`--kafka NAME=VALUE`, passed to the command as `kafka`, a mapping or None: options of librdkafka."""

bootstrap_option = env_option(
    "--bootstrap-servers",
    default="",
    metavar="HOST:PORT,...",
    help="Kafka's brokers; without it, those registered in ZooKeeper.",
)
"""`--bootstrap-servers`, passed to the command as `bootstrap_servers`: Kafka's brokers."""


def _named(values: Sequence[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value.strip("="):
            raise UsageError(f"--kafka takes NAME=VALUE, and {shown(value.partition('=')[0])} has no value")
    return {name: value for name, _, value in (text.partition("=") for text in values)}


def output_option(command: Command) -> Command:
    """`-o`, passed to the command as `output`: `table` for people, `json` (one document) for programs; and `--wide`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="A table, or one JSON document.",
    )
    return output(wide_option(command))


def command_words(option: str, command: str) -> list[str]:
    """The words of a command in an option, split as a shell splits them; at least one.

    :raises UsageError: when there is none, or a quotation is not closed.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{option} {shown(command)} cannot be split into words: {error}") from error
    if not words:
        raise UsageError(f"{option} needs a command: {option} './program'")
    return words


def brokers_at(path: str) -> Brokers:
    """The `Brokers` of a path.

    :raises UsageError: when `path` is not absolute.
    """
    if not path.startswith("/") or "//" in path or path.endswith("/"):
        raise UsageError(f"{shown(path)} is no --brokers-path: it must be absolute, as /brokers")
    return Brokers(path)


@contextmanager
def opened(zk: str, make_chroot: bool = False) -> Iterator[AclStore]:
    """A session for one admin command, closed at the end.

    :param make_chroot: create the chroot when it does not exist; without it, a mistyped one is an error.
    :raises ZooKeeperUnreachable: when no server answers within `CONNECT_TIMEOUT_S`.
    :raises AuthenticationFailed: when a server and this client refuse each other.
    """
    store = open_kazoo(zk, SESSION_TIMEOUT_MS, CONNECT_TIMEOUT_S, make_chroot, command_access())
    try:
        yield store
    finally:
        store.close()


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], output: str = TABLE) -> None:
    """Print `rows` on stdout: as a table, or as one JSON list of objects whose keys are the columns in lower case.

    :param columns: as `TOPIC-ID`, in JSON `topic_id`. None prints `-` in a table and null in JSON.
    """
    if output == JSON:
        print_json(row_objects(columns, rows))
    else:
        click.echo(table_text(columns, rows))


def row_objects(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    """`rows` as `print_rows` prints them in JSON."""
    keys = [_NO_KEY.sub("_", column.lower()).strip("_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def print_json(document: object) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(document, indent=2))


_UNUSABLE = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


class OutputLost(CoordinatorError):
    """Standard output is closed, or its disk is full."""


@contextmanager
def checked_streams() -> Iterator[None]:
    """Within it a failed write to stdout raises `OutputLost`, also where stdout is closed.

    A broken pipe stays a `BrokenPipeError`: the reader has seen enough. After either, further output is dropped.
    """
    _occupy()
    sys.stdin = sys.stdin or _opened("r", os.O_WRONLY)
    sys.stderr = sys.stderr or _opened("w", os.O_WRONLY)
    with redirect_stdout(cast(TextIO, _Output(sys.stdout or _opened("w", os.O_RDONLY)))):
        yield
        sys.stdout.flush()


def _occupy() -> None:
    """Open closed standard streams, so that no socket gets their numbers, as glibc does (`__libc_check_standard_fds`).

    A read of stdin, or a write to stdout, fails as before.
    """
    for number, flags in _UNUSABLE.items():
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, flags), number)
            os.set_inheritable(number, True)


def _opened(mode: str, flags: int) -> TextIO:
    return cast(TextIO, open(os.devnull, mode, opener=lambda path, _: os.open(path, flags)))


class _Output:
    """stdout: the first failure raises, later output is dropped, its buffer included."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if text == "":  # click tries a stream so, and ignores what it raises
            return 0
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise OutputLost(f"standard output cannot be written: {error.strerror}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


UNLIMITED = sys.maxsize
GAP = 2
WRAPPED_AT_LEAST = 24
"""Cells of a column whose text is wrapped between words."""
PROSE_WORDS = 3
WIDE = "zk_group.wide"

LEFT_OUT_FIRST = (
    "CLIENT-ID", "TURN-MS-PER-S", "EPOCH", "HOST", "RUN", "TOPIC-ID", "INCARNATION", "METADATA-BYTES", "ATTEMPTS",
    "ASSIGNMENT-MS", "LAST-STOP-MS", "LAST-START-MS", "MOVED", "JOINED", "LEFT", "SUBSCRIPTION", "FINISHED", "STRATEGY",
    "FILE", "PARTITIONS", "MEMBERS", "GENERATION",
)  # fmt: skip
"""The first columns to hide on a narrow terminal; then the last ones."""

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


wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=lambda context, option, value: context.meta.__setitem__(WIDE, value),
    help="Every column, on a narrow terminal too. Elsewhere there are always all.",
)
"""`--wide`, for every table of the command."""


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """`rows` as a table, without the final newline.

    Every column at its full width, except on a terminal without `--wide`: there columns without values are hidden
    first, then prose is wrapped between words, then other columns are hidden; a last line names them.
    """
    texts = [["-" if value is None else printable(value) for value in row] for row in rows]
    context = click.get_current_context(silent=True)
    is_wide = not sys.stdout.isatty() or (context is not None and context.meta.get(WIDE))
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
    """The colour of an unhealthy or waiting value; empty for all others."""
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
    """The priority of a column: the lowest is hidden first, the first column last."""
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


_CLICK_TYPES: dict[Any, Any] = {
    int: int, str: str, str | int: str, float: float, bool: bool, tuple[str, ...]: str
}  # fmt: skip


def config_options(kind: type[Any], helps: Mapping[str, str]) -> Callable[[Command], Command]:
    """`--config FILE` and one option for each plain field of `kind`, without defaults: `built` fills those in.

    :param helps: field -> one line of help, in the order of the options; those of `ZooKeeperAccess` follow.
    """
    hints = get_type_hints(kind)
    lines = {**helps, **ACCESS_HELPS}
    fields = {field.name: field for field in dataclasses.fields(kind) if hints[field.name] in _CLICK_TYPES}

    def decorate(command: Command) -> Command:
        for field in (fields[name] for name in reversed(lines) if name in fields):
            value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
            option = f"--{field.name.replace('_', '-')}"
            if hints[field.name] is bool:
                value, option = str(field.default).lower(), f"{option}/--no-{option[2:]}"
            default = "" if value in (dataclasses.MISSING, "") else f"  [default: {value}]"
            command = click.option(
                option,
                field.name,
                type=_CLICK_TYPES[hints[field.name]],
                default=None,
                help=f"{lines[field.name]}{default}  [env: {PREFIX}{field.name.upper()}]",
            )(command)
        file = click.option("--config", type=click.Path(path_type=Path), help="A TOML file with options by name.")
        return file(command)

    return decorate


def built(kind: type[T], options: Mapping[str, Any]) -> T:
    """The configuration from a command's options (including `config`), the environment and the file.

    :raises UsageError: when a value is invalid, or a required one is missing.
    """
    return load(kind, options, options.get("config"), is_command=True)


def log_options(command: Command) -> Command:
    """`--log-level` and `--log-format`, passed to the command as `log_level` and `log_format`."""
    level = _choice("level", ["debug", "info", "warning", "error"], "info", "Lowest level that is logged on stderr.")
    form = _choice("format", [TEXT, JSON], TEXT, "logfmt, or one JSON object per line.")
    return level(form(command))


def _choice(name: str, values: list[str], default: str, line: str) -> Callable[[Command], Command]:
    return click.option(
        f"--log-{name}",
        type=click.Choice(values),
        default=default,
        show_default=True,
        envvar=f"{PREFIX}LOG_{name.upper()}",
        show_envvar=True,
        help=line,
    )

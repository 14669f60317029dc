"""Shared by the command lines of both sides: options, printing of rows, exit codes."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import CoordinatorError, UsageError
from ..security.access import ZooKeeperAccess, variables_in
from ..session.kazoo_store import open_kazoo
from ..store import AclStore
from ..znodes.names import printable as printable
from ..znodes.names import shown
from ..znodes.paths import Brokers
from .config import PREFIX, load
from .log_format import redacted
from .streams import checked_streams
from .tables import table_text as table_text
from .tables import wide_option

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])

SESSION_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 10.0
INTERRUPTED = 130
TABLE = "table"
JSON = "json"
_CONFIG = "zk_group.zk_config"
_FROM_ENVIRONMENT = "zk_group.from_environment"
_TELLING = 4
"""Characters of a value that is taken for the one in a message."""
_NO_KEY = re.compile(r"[^a-z0-9]+")
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


class EnvOption(click.Option):
    """An option that may be set in the environment; `Cli` knows then where its value is from."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """See click."""
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
        """See click."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is no number.", param, ctx)
        return found


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
        """See click."""
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name in self._places:
            found: click.Command = getattr(import_module(self._places[cmd_name]), cmd_name.replace("-", "_"))
            return found
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

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
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
    except OSError as error:  # a file, a disk or a limit of this machine: the traceback is for debugging
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
        "--zk",
        required=True,
        metavar="HOSTS/CHROOT",
        help="The ZooKeeper servers, as host:port,host:port/chroot.",
    )
    return servers(zk_config_option(command))


def zk_config_option(command: Command) -> Command:
    """`--zk-config`, not passed to the command: `command_access` has it."""
    return env_option(
        "--zk-config",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_keep_file,
        help="TOML file of zk_auth_file, zk_tls, zk_tls_ca, zk_tls_cert, zk_tls_key; or set ZK_GROUP_ZK_TLS, ....",
    )(command)


def _keep_file(context: click.Context, option: object, file: Path | None) -> None:
    context.meta[_CONFIG] = file


def command_access() -> ZooKeeperAccess:
    """How the current command connects to ZooKeeper: by `--zk-config` and the environment.

    :raises UsageError: when the file cannot be read, or a value is malformed.
    """
    context = click.get_current_context(silent=True)
    return load(ZooKeeperAccess, {}, context.meta.get(_CONFIG) if context is not None else None)


def brokers_option(command: Command) -> Command:
    """`--brokers-path`, passed to the command as `brokers`, a `Brokers`: the parent of the topics."""
    return env_option(
        "--brokers-path",
        "brokers",
        default="/brokers",
        show_default=True,
        metavar="PATH",
        callback=lambda context, option, value: brokers_at(value),
        help="The parent znode of Kafka's brokers and topics.",
    )(command)


def kafka_option(command: Command) -> Command:
    """`--kafka NAME=VALUE`, passed to the command as `kafka`, a mapping or None: options of librdkafka."""
    return click.option(
        "--kafka",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda context, option, values: _named(values) or None,
        help="A librdkafka option, as security.protocol=SASL_SSL; pass secrets by ZK_GROUP_KAFKA_SASL_PASSWORD.",
    )(command)


def bootstrap_option(command: Command) -> Command:
    """`--bootstrap-servers`, passed to the command as `bootstrap_servers`: Kafka's brokers."""
    return env_option(
        "--bootstrap-servers",
        default="",
        metavar="HOST:PORT,...",
        help="Kafka's brokers; without it, those registered in ZooKeeper.",
    )(command)


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

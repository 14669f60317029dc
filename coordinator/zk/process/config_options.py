"""Command-line options of a configuration's dataclass, and logging for long-running processes."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from ..security.access import ACCESS_HELPS
from .config import PREFIX, load
from .log_format import JSON, TEXT, formatter

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

_CLICK_TYPES: dict[Any, Any] = {
    int: int, str: str, str | int: str, float: float, bool: bool, tuple[str, ...]: str
}  # fmt: skip


def config_options(kind: type[Any], helps: Mapping[str, str]) -> Callable[[Command], Command]:
    """`--config FILE` and one option for each plain field of `kind`, without defaults: `built` fills those in.

    :param helps: field -> one line of help; for those of `ZooKeeperAccess` there is one.
    """
    hints = get_type_hints(kind)
    lines = {**ACCESS_HELPS, **helps}

    def decorate(command: Command) -> Command:
        # Fields of `ZooKeeperAccess`, which are keywords only, after the configuration's own.
        for field in reversed(sorted(dataclasses.fields(kind), key=lambda each: bool(each.kw_only))):
            if hints[field.name] not in _CLICK_TYPES:
                continue
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
                help=f"{lines.get(field.name, '')}{default}  [env: {PREFIX}{field.name.upper()}]".strip(),
            )(command)
        file = click.option("--config", type=click.Path(path_type=Path), help="A TOML file with options by name.")
        return file(command)

    return decorate


def built(kind: type[T], options: Mapping[str, Any]) -> T:
    """The configuration from a command's options (including `config`), the environment and the file.

    :raises UsageError: when a value is invalid, or a required one is missing.
    """
    file = options.get("config")
    return load(kind, {name: value for name, value in options.items() if name != "config"}, file, is_command=True)


def log_to_stderr(level: str = "INFO", log_format: str = TEXT) -> None:
    """One line per state change on stderr, in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


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

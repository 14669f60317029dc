"""Configuration: frozen dataclasses built from options, the environment and a TOML file, in that order.

Environment variables are `ZK_GROUP_` plus the field in capitals; a file has the fields at its top level.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import UsageError
from ..values import PREFIX as PREFIX
from ..values import shown, variables

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
"""Default address of the metrics server, which has no authentication."""

_NAMED = r"(?:^|--|name a ){0}\b"
"""A field's name of one word as messages have it: first, as an option, or as the kind of a name."""


class _Given(NamedTuple):
    """A value, and where it comes from: a variable, a file's line or an option; empty for a keyword in Python."""

    value: Any
    source: str


def load(
    kind: type[T],
    options: Mapping[str, Any],
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    is_command: bool = False,
) -> T:
    """Build `kind` from the values given; missing ones keep their defaults.

    :param options: field -> value or None, keywords, or with `is_command` from the command line.
    :raises UsageError: when a value has the wrong type, the file has an unknown name, or `kind` refuses the values; the
        message has where the value comes from.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    found: dict[str, _Given] = _from_file(file, names) if file else {}
    for variable, text in variables((PREFIX + name.upper() for name in names), env).items():
        found[variable.removeprefix(PREFIX).lower()] = _Given(text, variable)
    for name, value in options.items():
        if value is not None and name in names:
            found[name] = _Given(value, _option(name) if is_command else "")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in found:
            raise UsageError(f"{field.name} is needed: give {_option(field.name)}, or set {PREFIX}{field.name.upper()}")
    try:
        return kind(**{name: given.value for name, given in found.items()})
    except UsageError as error:
        raise _with_sources(error, found) from error


def _with_sources(error: UsageError, found: Mapping[str, _Given]) -> UsageError:
    """`error`, and where the values that it names come from."""
    forms = {name: (r"\b{0}\b" if "_" in name else _NAMED).format(name) for name in found}
    named = [name for name, form in forms.items() if re.search(form, str(error))]
    sources = [f"{name} from {found[name].source}" for name in named if found[name].source]
    return UsageError(f"{error} ({', '.join(sources)})" if sources else str(error))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _from_file(file: Path, names: list[str]) -> dict[str, _Given]:
    try:
        text = file.read_text()
        values = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the configuration {file}: {error}") from error
    unknown = sorted(set(values) - set(names))
    if unknown:
        where = f"{shown(unknown[0])} in line {_line(text, unknown[0])}"
        raise UsageError(f"{file} has an unknown option {where}; known are {', '.join(names)}")
    return {name: _Given(value, f"{file}, line {_line(text, name)}") for name, value in values.items()}


def _line(text: str, name: str) -> int:
    """The line of a key at the top level of a TOML file."""
    key = re.compile(rf"\s*(?:\[\s*)?[\"']?{re.escape(name)}(?![-\w])")
    return next((number for number, line in enumerate(text.splitlines(), 1) if key.match(line)), 1)


def require(condition: bool, rule: str) -> None:
    """For `check`: raise when a rule is broken.

    :raises UsageError: with `rule`, one sentence, when `condition` is False.
    """
    if not condition:
        raise UsageError(rule)

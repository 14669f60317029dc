"""Configuration: frozen dataclasses that come from options, the environment and a TOML file, in that order.

The environment's names are `ZK_GROUP_` and the field's in capitals; a file has the field's names at its top level.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from .errors import UsageError
from .names import shown

T = TypeVar("T")
PREFIX = "ZK_GROUP_"


def load(
    kind: type[T], options: Mapping[str, Any], file: Path | None = None, env: Mapping[str, str] | None = None
) -> T:
    """Build `kind` from what was given; what was not given keeps its default.

    :param options: field -> value or None, as the command line gave it.
    :raises UsageError: when a value is not of its type, a file's name is unknown, or `kind` refuses the whole.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    environment = os.environ if env is None else env
    values: dict[str, Any] = _from_file(file, names) if file else {}
    values |= {name: environment[PREFIX + name.upper()] for name in names if PREFIX + name.upper() in environment}
    values |= {name: value for name, value in options.items() if value is not None and name in names}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in values:
            option = field.name.replace("_", "-")
            raise UsageError(f"{field.name} is needed: give --{option}, or set {PREFIX}{field.name.upper()}")
    return kind(**{name: _typed(name, value, hints[name]) for name, value in values.items()})


def _from_file(file: Path, names: list[str]) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the configuration {file}: {error}") from error
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise UsageError(f"{file} has an unknown option {shown(unknown[0])}; known are {', '.join(names)}")
    return values


def _typed(name: str, value: Any, hint: Any) -> Any:
    try:
        if hint is int:
            return int(value)
        if hint is float:
            return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be a number, not {shown(value)}") from error
    return value


def require(condition: bool, rule: str) -> None:
    """For `__post_init__`: the rule that a value breaks, as one sentence.

    :raises UsageError: when `condition` does not hold.
    """
    if not condition:
        raise UsageError(rule)

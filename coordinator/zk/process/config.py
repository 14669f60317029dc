"""Configuration: frozen dataclasses built from options, the environment and a TOML file, in that order.

Environment variables are `ZK_GROUP_` plus the field in capitals; a file has the fields at its top level.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from ..values import shown

T = TypeVar("T")
PREFIX = "ZK_GROUP_"
LOOPBACK = "127.0.0.1"
"""Default address of the metrics server, which has no authentication."""


def load(
    kind: type[T], options: Mapping[str, Any], file: Path | None = None, env: Mapping[str, str] | None = None
) -> T:
    """Build `kind` from the values given; missing ones keep their defaults.

    :param options: field -> value or None, from the command line.
    :raises UsageError: when a value has the wrong type, the file has an unknown name, or `kind` refuses the values.
    """
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
    return kind(**values)


def _from_file(file: Path, names: list[str]) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the configuration {file}: {error}") from error
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise UsageError(f"{file} has an unknown option {shown(unknown[0])}; known are {', '.join(names)}")
    return values


def require(condition: bool, rule: str) -> None:
    """For `check`: raise when a rule is broken.

    :raises UsageError: with `rule`, one sentence, when `condition` is False.
    """
    if not condition:
        raise UsageError(rule)

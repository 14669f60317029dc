"""Configuration: frozen dataclasses built from options, the environment and a TOML file, in that order.

Environment variables are `ZK_GROUP_` plus the field in capitals; a file has the fields at its top level.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from ..errors import UsageError
from ..znodes.names import shown

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
    """`value` as the field's type; text, as from the environment, is parsed."""
    if hint is int:
        return _number(name, value, int)
    if hint is bool:
        return _switch(name, value)
    if hint is float:
        return _number(name, value, float)
    if hint is str and not isinstance(value, str):
        raise UsageError(f"{name} must be a text, not {shown(value)}")
    if hint == str | int and (not isinstance(value, str | int) or isinstance(value, bool)):
        raise UsageError(f"{name} must be a text or a whole number, not {shown(value)}")
    if get_origin(hint) is tuple:
        return _texts(name, value)
    if get_origin(hint) is Mapping:
        return _named_texts(name, value)
    return value


def _number(name: str, value: Any, kind: type[int] | type[float]) -> int | float:
    try:
        number = kind(value)
        if not isinstance(value, bool) and (isinstance(value, str) or number == value):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{name} must be a {'whole ' if kind is int else ''}number, not {shown(value)}")


def _switch(name: str, value: Any) -> bool:
    parsed = {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(parsed, bool):
        raise UsageError(f"{name} must be true or false, not {shown(value)}")
    return parsed


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts: a list, or one text with commas."""
    texts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{name} must be texts separated by commas, not {shown(value)}")
    return tuple(texts)


def _named_texts(name: str, value: Any) -> Mapping[str, str]:
    """Names and texts; tables that TOML makes of dotted names are joined again."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a table of names and values")  # the value may be a secret
    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            found |= {f"{key}.{rest}": text for rest, text in _named_texts(name, inner).items()}
        elif isinstance(inner, bool):
            found[str(key)] = str(inner).lower()
        elif isinstance(inner, str | int | float):
            found[str(key)] = str(inner)
        else:
            raise UsageError(f"{name}.{key} must be a text or a number")
    return found


def require(condition: bool, rule: str) -> None:
    """For `__post_init__`: raise when a rule is broken.

    :raises UsageError: with `rule`, one sentence, when `condition` is False.
    """
    if not condition:
        raise UsageError(rule)

"""Configuration and other values from outside: parsed as the types of their fields, or refused by their names.

Configurations are frozen dataclasses built from options, the environment and a TOML file, in that order. Environment
variables are `ZK_GROUP_` plus the field in capitals; a file has the fields at its top level.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsIndex, TypeVar, get_args, get_origin, get_type_hints

from .errors import UsageError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_NUMBER = 2**63 - 1
"""The largest offset, and the largest time in milliseconds since the epoch."""
MAX_MS = 10**12
"""The longest duration in milliseconds, some thirty years: about the longest wait of a thread."""
_MAX_SESSION_MS = 2**31 - 1
"""Of ZooKeeper's protocol."""
_SWITCH = {"true": True, "false": False}
_DATETIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_types_of: Callable[[type], Mapping[str, Any]] = cache(get_type_hints)


def in_chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in order, `size` at a time."""
    return (items[first : first + size] for first in range(0, len(items), size))


def first_names(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """`most` of the names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


@dataclass(frozen=True, slots=True)
class Values:
    """Base of the configurations, frozen dataclasses: each value is parsed as in the environment and in files.

    :raises UsageError: at construction, when a value is not of its field's type, or `check` refuses it.
    """

    def __post_init__(self) -> None:
        hints = _types_of(type(self))
        for field in fields(self):
            value = typed(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Check the rules of its values, already of their types.

        :raises UsageError: when a rule is broken.
        """


def shown(text: object, most: int = 80) -> str:
    """`text` for a log line or message: quoted, without control characters, truncated after `most`."""
    try:
        whole = str(text)
    except RecursionError:
        whole = f"a deeply nested {type(text).__name__}"
    quoted = ascii(whole[: most + 1])
    return quoted if len(whole) <= most else quoted[: most + 1] + "…'"


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`; text, as from the environment, is parsed.

    :raises UsageError: by `name`, when it is none.
    """
    if hint is int or hint is float:
        return _number(name, value, hint)
    if hint is bool:
        return _switch(name, value)
    if hint is str:
        return _text(name, value)
    if hint == str | int:
        return value if isinstance(value, str) else _number(name, value, int, "a text or a whole number")
    if get_origin(hint) is tuple:
        return _texts(name, value)
    if get_origin(hint) in (Mapping, dict):
        _, inner = get_args(hint)
        return _named_texts(name, value) if inner is str else _named_numbers(name, value)
    return value


def seconds(timeout_ms: float) -> float:
    """`timeout_ms` of a call, in seconds; infinity is `MAX_MS`.

    :raises UsageError: when it is no number, or longer.
    """
    return (MAX_MS if timeout_ms == math.inf else _number("timeout_ms", timeout_ms, float)) / 1000


def epoch_ms(text: str) -> int:
    """Milliseconds since the epoch of `2026-11-21T10:00:00.000`; UTC unless it has a zone.

    :raises ValueError: when `text` is not such a time.
    """
    if not _DATETIME.fullmatch(text):
        raise ValueError(text)
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def time_text(time_ms: int) -> str:
    """The inverse of `epoch_ms`: `2026-11-21T10:00:00.000Z`; the number itself for a year outside the calendar."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole(what: str, value: object, most: int = MAX_NUMBER) -> int:
    """`value` as a whole number from 0 to `most`: any object with `__index__`, as numpy's integers; not a boolean.

    :param what: for the message, as `offset`.
    :raises UsageError: when it is none.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with suppress(TypeError):  # numpy's boolean
            number = operator.index(value)
            if 0 <= number <= most:
                return number
    raise UsageError(f"{value!r:.80} is no {what}: give a whole number from 0 to {most}")


def _number(name: str, value: Any, kind: type[int] | type[float], form: str = "") -> int | float:
    most = _MAX_SESSION_MS if name == "session_timeout_ms" else MAX_MS if name.endswith("_ms") else MAX_NUMBER
    is_index = isinstance(value, SupportsIndex) and not isinstance(value, Real)
    try:
        number = kind(operator.index(value) if is_index else value)
        is_number = is_index or (not isinstance(value, bool) and isinstance(value, Real) and number == value)
        if (is_number or isinstance(value, str)) and math.isfinite(number):
            if abs(number) > most and not form:  # a field of two forms has bounds of its own
                raise UsageError(f"{name} must be {most} or less, not {shown(value)}")
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{name} must be {form or ('a whole number' if kind is int else 'a number')}, not {shown(value)}")


def _switch(name: str, value: Any) -> bool:
    parsed = _SWITCH.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(parsed, bool):
        raise UsageError(f"{name} must be true or false, not {shown(value)}")
    return parsed


def _text(name: str, value: Any) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise UsageError(f"{name} must be a text, not {shown(value)}")
    return text


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts: a list, or one text with commas."""
    texts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{name} must be texts separated by commas, not {shown(value)}")
    return tuple(texts)


def _named_numbers(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a mapping of names and whole numbers, not {shown(value)}")
    return {_text(name, key): int(_number(f"{name}: {shown(key)}", each, int)) for key, each in value.items()}


def _named_texts(name: str, value: Any) -> dict[str, str]:
    """Names and texts; TOML's nested tables of dotted names are joined again."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a table of names and values")  # the value may be a secret
    texts: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            texts |= {f"{key}.{rest}": text for rest, text in _named_texts(name, inner).items()}
        elif isinstance(inner, bool):
            texts[str(key)] = str(inner).lower()
        elif isinstance(inner, str | int | float):
            texts[str(key)] = str(inner)
        else:
            raise UsageError(f"{name}.{key} must be a text or a number")
    return texts


PREFIX = "ZK_GROUP_"
"""Prefix of every variable; the field's name in capitals follows."""

_OF_SERVICE = re.compile(r".+_SERVICE_(?:HOST|PORT(?:_\w+)?)|.+_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?")
_URL = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def variables(names: Iterable[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The set variables among `names`; those of a Kubernetes Service are ignored with a warning.

    Kubernetes sets `ZK_GROUP_METRICS_PORT=tcp://10.0.0.1:9400`, `ZK_GROUP_METRICS_SERVICE_HOST` and so on in each pod,
    for a Service `zk-group-metrics` (enableServiceLinks).
    """
    environment = os.environ if env is None else env
    return {name: environment[name] for name in names if name in environment and not _is_link(name, environment[name])}


def _is_link(name: str, value: str) -> bool:
    is_link = bool(_OF_SERVICE.fullmatch(name)) or (name.endswith("_PORT") and bool(_URL.fullmatch(value)))
    if is_link:
        _warn(name)
    return is_link


@cache
def _warn(name: str) -> None:
    log.warning("environment variable ignored: variable=%s reason=%s", name, "Kubernetes writes it for a Service")


DEFAULT_PORT: Final = 2181
EXAMPLE: Final = "as in --zk zk1:2181,zk2:2181/groups"

Address = tuple[str, int]


def parsed_hosts(hosts: str) -> tuple[Sequence[Address], str]:
    """The servers, and the chroot, "" for none. A server without a port has 2181. Blanks around each are dropped.

    :raises UsageError: when it is not `host:port,host:port/chroot`.
    """
    if not hosts.strip():
        raise UsageError(f"--zk is empty: name the ZooKeeper servers, {EXAMPLE}")
    servers, slash, rest = hosts.strip().partition("/")
    if not servers.strip():
        raise UsageError(f"--zk {hosts!a} names no server: the servers stand before the chroot, {EXAMPLE}")
    if rest.startswith("/") and servers.endswith(":"):
        raise UsageError(f"--zk {hosts!a} is a URL: give servers and chroot only, {EXAMPLE}")
    return [_address(hosts, server.strip()) for server in servers.split(",")], _chroot(hosts, slash + rest)


def checked_hosts(hosts: str) -> str:
    """`hosts` as ZooKeeper's clients take it, without blanks; each server has its port.

    :raises UsageError: when it is not a connect string.
    """
    servers, chroot = parsed_hosts(hosts)
    addresses = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)
    return ",".join(addresses) + chroot


def _address(hosts: str, server: str) -> Address:
    host, colon, port = server.rpartition(":") if not server.endswith("]") else (server, "", "")
    if not colon:
        host, port = server, str(DEFAULT_PORT)
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
    is_host = host and (":" not in host or (host[0] == "[" and host[-1] == "]"))
    if not is_host or not is_port or any(not char.isprintable() or char in " @" for char in host):
        raise UsageError(f"--zk {hosts!a}: {server!a} is not host:port, {EXAMPLE}")
    return host.strip("[]"), int(port)


def _chroot(hosts: str, chroot: str) -> str:
    names = [name for name in chroot.split("/") if name]
    if "," in chroot:
        raise UsageError(f"--zk {hosts!a}: the chroot is given once, after all servers, without a comma, {EXAMPLE}")
    if any(name in (".", "..") for name in names) or not chroot.isprintable():
        raise UsageError(f"--zk {hosts!a}: the chroot is not a path as /a or /a/b, {EXAMPLE}")
    if names[:1] == ["zookeeper"]:
        raise UsageError("/zookeeper is reserved for ZooKeeper: use another chroot in --zk")
    return "".join(f"/{name}" for name in names)


LOOPBACK = "127.0.0.1"
"""Default address of the metrics server, which has no authentication."""

_NAMED = r"(?:^|--|name a ){0}\b"
"""A field's name of one word as messages have it: first, as an option, or as the kind of a name."""


class _Given(NamedTuple):
    """A value and its source: a variable, a file's line or an option; empty for a keyword in Python."""

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
        message has the value's source.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    found: dict[str, _Given] = _from_file(file, names) if file else {}
    for variable, text in variables((PREFIX + name.upper() for name in names), env).items():
        found[variable.removeprefix(PREFIX).lower()] = _Given(text, variable)
    for name, value in options.items():
        if value is not None and name in names:
            found[name] = _Given(value, _option(name) if is_command else "")
    for field in fields(kind):  # type: ignore[arg-type]
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in found:
            raise UsageError(f"{field.name} is needed: give {_option(field.name)}, or set {PREFIX}{field.name.upper()}")
    try:
        return kind(**{name: given.value for name, given in found.items()})
    except UsageError as error:
        raise _with_sources(error, found) from error


def _with_sources(error: UsageError, found: Mapping[str, _Given]) -> UsageError:
    """`error`, with the sources of the values that it names."""
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

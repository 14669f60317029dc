"""What a log line looks like: logfmt for people, JSON for programs, from the same calls of `logging`.

A call says what happened and with which keys, as `log.info("elected: node=%s epoch=%d", node, epoch)`. The keys are
taken from that template and its arguments, not from the rendered text: so a value stays whole whatever stands in it,
and no name from outside can make a line or a key.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from .names import printable

TEXT = "text"
JSON = "json"
RESERVED = ("ts", "level", "logger", "event", "exception", "stack")
"""Keys that every JSON line may have of its own; a template's key of that name gets an underscore."""

_KEY = r"[a-z][a-z0-9_]*"
_FIELD = re.compile(rf"({_KEY})=(.*?)(?: (?={_KEY}=)|$)")
_SPEC = re.compile(r"%(?:%|[#0 +-]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa])")
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_PASSWORD = re.compile(r"(://)[^/\s@'\"]+@")
_SECRET = re.compile(r"(?i)([?&][^=&\s]*(?:secret|password|token|access_key|session_key)[^=&\s]*=)[^&\s'\"]+")


class Field(NamedTuple):
    """One key of a template, and how its value is written: `%s` mostly, or a constant."""

    key: str
    template: str
    arguments: int


class Template(NamedTuple):
    """`event: key=%s key=%d`, taken apart."""

    event: str
    fields: tuple[Field, ...] = ()

    @property
    def arguments(self) -> int:
        """How many arguments it takes."""
        return sum(field.arguments for field in self.fields)


@lru_cache(maxsize=1024)
def parsed(template: str) -> Template | None:
    """`template` taken apart; None when it is none of ours, as most of other libraries are."""
    event, colon, rest = template.partition(": ")
    if "%" in event:
        return None
    fields, at = [], 0
    while at < len(rest):
        found = _FIELD.match(rest, at)
        if found is None:
            return None
        key, value = found.groups()
        fields.append(Field(key, value, sum(spec != "%%" for spec in _SPEC.findall(value))))
        at = found.end()
    return Template(event, tuple(fields)) if fields or not colon else None


def redacted(text: str) -> str:
    """`text` without the passwords and secret keys that a URL in it may hold."""
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:34:56.789Z INFO    coordinator.elector elected: node=a epoch=7`.

    A value with spaces is in quotes, what is no printable character is escaped, a traceback is indented: no line begins
    with a time but one that was logged.
    """

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _content(record)
        line = f"{_time(record)} {record.levelname:7} {record.name} {printable(redacted(event))}"
        if fields:
            line += ": " + " ".join(f"{key}={_quoted(text)}" for key, text, _ in fields)
        for trace in _traces(self, record).values():
            line += "".join("\n    " + printable(part) for part in redacted(trace).split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: `ts`, `level`, `logger`, `event`, then the keys, then `exception` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _content(record)
        line: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "event": redacted(event),
        }
        for key, text, value in fields:
            name = key
            while name in line or name in RESERVED:
                name += "_"
            line[name] = _plain(text, value)
        line |= {name: redacted(trace) for name, trace in _traces(self, record).items()}
        return json.dumps(line, separators=(",", ":"))


def formatter(log_format: str) -> logging.Formatter:
    """The formatter of that name: `text` or `json`."""
    return JsonFormatter() if log_format == JSON else TextFormatter()


def _content(record: logging.LogRecord) -> tuple[str, list[tuple[str, str, object]]]:
    """The event, and of each key its name, its text and its value; whatever else was logged is all event."""
    try:
        template = parsed(record.msg) if isinstance(record.msg, str) else None
        arguments = record.args if isinstance(record.args, tuple) else ()
        if template is None or len(arguments) != template.arguments or isinstance(record.args, dict):
            return record.getMessage(), []
        return template.event, list(_values(template, arguments))
    except Exception:  # noqa: BLE001  a call with wrong arguments, or a value that cannot be shown, is told as it is
        return f"{record.msg} {_shown(record.args)}", []


def _values(template: Template, arguments: tuple[object, ...]) -> Iterator[tuple[str, str, object]]:
    at = 0
    for key, value, count in template.fields:
        own = arguments[at : at + count]
        at += count
        text = value % own
        yield key, text, own[0] if count == 1 and _SPEC.fullmatch(value) else text


def _plain(text: str, value: object) -> object:
    """`value` as JSON has it; a number as it was rounded for the text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        try:
            return int(text) if "." not in text and "e" not in text.lower() else float(text)
        except ValueError:
            return redacted(text)
    return redacted(text)


def _quoted(text: str) -> str:
    """`text` as logfmt has it: in quotes when it would not stay whole without."""
    shown = redacted(text)
    return printable(shown if _PLAIN.fullmatch(shown) else json.dumps(shown, ensure_ascii=False))


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    traces = {}
    if record.exc_info:
        traces["exception"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        traces["stack"] = record.stack_info
    return traces


def _time(record: logging.LogRecord) -> str:
    stamp = datetime.fromtimestamp(record.created, UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  somebody's own `__repr__`
        return f"<{type(value).__name__}>"

"""Log formats: logfmt for people, JSON for programs, from the same calls of `logging`.

A call names an event and its keys, as `log.info("elected: node=%s epoch=%d", node, epoch)`. Keys are parsed from the
template, not from the rendered text: a value stays whole for any content, and no outside name can forge a line or
a key.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from ..znodes.paths import printable

TEXT = "text"
JSON = "json"
RESERVED = ("ts", "level", "logger", "event", "exception", "stack")
"""Keys of every JSON line; a template's key of the same name gets an underscore."""

_KEY = r"[a-z][a-z0-9_]*"
_FIELD = re.compile(rf"({_KEY})=(.*?)(?: (?={_KEY}=)|$)")
_SPEC = re.compile(r"%(?:%|[#0 +-]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa])")
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_PASSWORD = re.compile(r"(://)[^/\s@'\"]+@")
_SECRET = re.compile(r"(?i)([?&][^=&\s]*(?:secret|password|token|access_key|session_key)[^=&\s]*=)[^&\s'\"]+")


class Field(NamedTuple):
    """One key of a template, and the format of its value: `%s` mostly, or a constant."""

    key: str
    template: str
    arguments: int


class Template(NamedTuple):
    """A parsed `event: key=%s key=%d`."""

    event: str
    fields: tuple[Field, ...] = ()

    @property
    def arguments(self) -> int:
        """Number of arguments."""
        return sum(field.arguments for field in self.fields)


@lru_cache(maxsize=1024)
def parsed(template: str) -> Template | None:
    """`template` parsed; None when it has another form, as in most other libraries."""
    event, colon, rest = template.partition(": ")
    if "%" in event:
        return None
    fields, at = [], 0
    while at < len(rest):
        field = _FIELD.match(rest, at)
        if field is None:
            return None
        key, value = field.groups()
        fields.append(Field(key, value, sum(spec != "%%" for spec in _SPEC.findall(value))))
        at = field.end()
    return Template(event, tuple(fields)) if fields or not colon else None


def redacted(text: str) -> str:
    """`text` without the passwords and secret keys in its URLs."""
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:34:56.789Z INFO    zk_group.coordinator.term.elector elected: node=a epoch=7`.

    A value with spaces is quoted, unprintable characters are escaped, a traceback is indented: every line that begins
    with a time is one log call.
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
    """One object per line: `ts`, `level`, `logger`, `event`, then the keys, then `exception` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _content(record)
        line: dict[str, object] = {"ts": _time(record), "level": record.levelname, "logger": record.name}
        line["event"] = redacted(event)
        for key, text, value in fields:
            name = key
            while name in line or name in RESERVED:
                name += "_"
            line[name] = _plain(text, value)
        line |= {name: redacted(trace) for name, trace in _traces(self, record).items()}
        return json.dumps(line, separators=(",", ":"))


def log_to_stderr(level: str = "INFO", log_format: str = TEXT) -> None:
    """One line per state change on stderr, in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _content(record: logging.LogRecord) -> tuple[str, list[tuple[str, str, object]]]:
    """The event, and each key's name, text and value; a foreign log call is all event."""
    try:
        template = parsed(record.msg) if isinstance(record.msg, str) else None
        arguments = record.args if isinstance(record.args, tuple) else ()
        if template is None or len(arguments) != template.arguments or isinstance(record.args, dict):
            return record.getMessage(), []
        return template.event, list(_values(template, arguments))
    except Exception:  # noqa: BLE001  wrong arguments, or a failing `__str__`: log the call unformatted
        return f"{record.msg} {_shown(record.args)}", []


def _values(template: Template, arguments: tuple[object, ...]) -> Iterator[tuple[str, str, object]]:
    at = 0
    for key, value, count in template.fields:
        own = arguments[at : at + count]
        at += count
        text = value % own
        yield key, text, own[0] if count == 1 and _SPEC.fullmatch(value) else text


def _plain(text: str, value: object) -> object:
    """`value` for JSON; a number rounded as in the text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        try:
            return int(text) if "." not in text and "e" not in text.lower() else float(text)
        except ValueError:
            return redacted(text)
    return redacted(text)


def _quoted(text: str) -> str:
    """`text` in logfmt: quoted when it would be split otherwise."""
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
    except Exception:  # noqa: BLE001  a foreign `__repr__`
        return f"<{type(value).__name__}>"

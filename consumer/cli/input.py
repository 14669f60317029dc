"""The input of `zk-consumer produce`: lines from a file or a pipe, parsed as records."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from consumer.logs.columns import MAX_RECORD_BYTES, MAX_TIMESTAMP_MS, Headers
from coordinator.zk.errors import BadData, CoordinatorError
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.names import shown
from coordinator.zk.znodes.ranges import MAX_PARTITION

_CHUNK = 1 << 18
_FIELDS = ("value", "key", "partition", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record as it was read."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


def lines(descriptor: int, idle_s: float) -> Iterator[bytes | None]:
    """The lines of a file descriptor, without their ends; None whenever none has arrived for `idle_s`.

    A line that is too long for a record is truncated, to a length that is still too long.

    :raises CoordinatorError: when it cannot be read, as a closed stdin.
    """
    pieces: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], idle_s)[0]:
            yield None
            select.select([descriptor], [], [])
        data = _read(descriptor)
        if not data:
            break
        if b"\n" not in data:
            if sum(map(len, pieces)) <= MAX_RECORD_BYTES:
                pieces.append(data)
            continue
        whole = (b"".join(pieces) + data).split(b"\n")
        pieces = [whole.pop()]
        for line in whole:
            yield line.removesuffix(b"\r")
    if last := b"".join(pieces):
        yield last.removesuffix(b"\r")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError as error:
        raise CoordinatorError(f"the input cannot be read: {error.strerror}") from error


def record_of_json(where: str, line: bytes) -> InputRecord:
    """A line of JSON: an object with `value` and optionally `key`, `partition`, `timestamp` (ms) and `headers`.

    A value that is not a string becomes compact JSON; null stays null. Headers are an object, or a list of objects with
    `key` and `value` for repeated names.

    :param where: the line's name, for messages.
    :raises BadData: when the line is invalid.
    """
    values = _object(where, line)
    fields = Fields(where, values)
    return InputRecord(
        _value(where, values),
        _encoded(where, "key", fields.optional_text("key", most=MAX_RECORD_BYTES)),
        fields.number("partition", most=MAX_PARTITION) if fields.has("partition") else None,
        fields.number("timestamp", most=MAX_TIMESTAMP_MS) if fields.has("timestamp") else None,
        _headers(where, fields, values.get("headers")),
    )


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is no JSON: {shown(line[:60].decode('utf-8', 'replace'))}") from error
    if not isinstance(values, dict) or "value" not in values:
        raise BadData(f"{where} is no JSON object with a value: {shown(line[:60].decode('utf-8', 'replace'))}")
    unknown = sorted(set(values) - set(_FIELDS))
    if unknown:
        raise BadData(f"{where} has an unknown field {shown(unknown[0])}; known are {', '.join(_FIELDS)}")
    return values


def _value(where: str, values: dict[str, Any]) -> bytes | None:
    value = values["value"]
    if value is None or isinstance(value, str):
        return _encoded(where, "value", value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise BadData(f"{where} has a value that JSON does not know: {error}") from error
    return _encoded(where, "value", text)


def _headers(where: str, fields: Fields, given: Any) -> Headers:
    if isinstance(given, list):
        return fields.objects("headers", lambda each: _header(where, each.text("key"), each.optional_text("value")))
    return tuple(_header(where, name, value) for name, value in fields.mapping("headers").items())


def _header(where: str, name: str, value: Any) -> tuple[str, bytes | None]:
    if value is not None and not isinstance(value, str):
        raise BadData(f"{where} has a header {shown(name)} that is neither a string nor null")
    return name, _encoded(where, "headers", value)


def _encoded(where: str, name: str, text: str | None) -> bytes | None:
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: field {name!r} has half a character: {error.reason}") from error

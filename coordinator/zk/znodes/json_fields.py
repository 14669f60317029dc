"""Parser for untrusted JSON: bounded and typed; every error names the data's location."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import BadData
from ..store import DENIED, Node
from ..values import MAX_NUMBER as MAX_NUMBER
from . import ranges
from .partitions import TopicPartition
from .paths import is_name, shown

T = TypeVar("T")

MAX_ZNODE_BYTES = 512_000
MAX_COUNT = 2**53 - 1
"""Maximum of a number counted by this protocol: far below its format, and exact in every JSON reader."""
MAX_CONTINUED = MAX_COUNT // 2
"""Maximum of a number that a coordinator increments: a larger one leaves no room, and is bad data."""
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Fields:
    """One untrusted JSON object, read field by field.

    Unknown fields and a higher `version` are ignored, and null is the same as missing: releases can be mixed.
    """

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    @classmethod
    def parse(cls, where: str, data: bytes, most: int = MAX_ZNODE_BYTES) -> Fields:
        """
        :param where: a path or file name, for messages.
        :raises BadData: when `data` is over `most` bytes or no JSON object.
        """
        if data == DENIED:
            raise BadData(f"{where} may not be read: its ACL refuses")
        if len(data) > most:
            raise BadData(f"{where} has {len(data)} bytes; the limit is {most}")
        try:
            values = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadData(f"{where} holds no JSON: {shown(data[:60].decode('utf-8', 'replace'))}") from error
        if not isinstance(values, dict):
            raise BadData(f"{where} holds no JSON object: {shown(values)}")
        return cls(where, values)

    def bad(self, name: str, expected: str) -> BadData:
        """The error for a field `name` that is not `expected`."""
        return BadData(f"{self.where}: field {shown(name)} must be {expected}, not {shown(self.values.get(name))}")

    def _or(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def text(self, name: str, default: str | None = None, most: int = 4096) -> str:
        """A string of at most `most` characters."""
        value = self._or(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise self.bad(name, "a string" if not isinstance(value, str) else f"a string of {most} characters at most")
        return value

    def optional_text(self, name: str, most: int = 4096) -> str | None:
        """A string, or None when the field is missing or null."""
        return self.text(name, most=most) if self.has(name) else None

    def number(self, name: str, default: int | None = None, least: int = 0, most: int = MAX_NUMBER) -> int:
        """A whole number between `least` and `most`."""
        value = self._or(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.bad(name, f"a whole number from {least} to {most}")
        return value

    def count(self, name: str, default: int | None = None, least: int = 0) -> int:
        """A number counted by this protocol, as an epoch or a generation: a whole number up to `MAX_COUNT`."""
        return self.number(name, default, least, MAX_COUNT)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object; empty when the field is missing or null."""
        value: Mapping[str, Any] = self._or(name, {})
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return value

    def items(self, name: str) -> list[Any]:
        """A list; empty when the field is missing or null."""
        value = self._or(name, [])
        if not isinstance(value, list):
            raise self.bad(name, "a list")
        return value

    def strings(self, name: str, most: int = 4096) -> tuple[str, ...]:
        """A list of strings of at most `most` characters each; empty when the field is missing or null."""
        values = self.items(name)
        if not all(isinstance(text, str) and len(text) <= most for text in values):
            raise self.bad(name, f"a list of strings of {most} characters at most")
        return tuple(values)

    def objects(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """A list of objects, each read by `read`."""
        items = []
        for index, value in enumerate(self.items(name)):
            if not isinstance(value, dict):
                raise self.bad(name, "a list of objects")
            items.append(read(Fields(f"{self.where}: {name}[{index}]", value)))
        return tuple(items)

    def inner(self, name: str, read: Callable[[Fields], T]) -> T | None:
        """An object read by `read`; None when the field is missing or null."""
        return read(Fields(f"{self.where}: {name}", self.mapping(name))) if self.has(name) else None

    def named(self, name: str, read: Callable[[Fields], T]) -> dict[str, T]:
        """An object of objects, each read by `read`; the keys must be names."""
        items = {}
        for key, value in self.mapping(name).items():
            if not isinstance(value, dict) or not is_name(key):
                raise self.bad(name, "an object of named objects")
            items[key] = read(Fields(f"{self.where}: {name}.{key}", value))
        return items

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings; the keys must be names."""
        value = self.mapping(name)
        if not all(is_name(key) and isinstance(text, str) for key, text in value.items()):
            raise self.bad(name, "an object of strings")
        return dict(value)

    def value(self, name: str, read: Callable[[Any], T], what: str) -> T | None:
        """Any value, converted by `read`; None when the field is missing or null.

        :param read: raises ValueError when it is not `what`.
        """
        try:
            return read(self.values[name]) if self.has(name) else None
        except ValueError as error:
            raise self.bad(name, what) from error

    def by_partition(self, name: str, read: Callable[[Any], T], what: str) -> dict[TopicPartition, T]:
        """An object topic -> partition -> value, each read as by `value`."""
        expected = f"an object topic -> partition -> {what}"
        return self.value(name, lambda topics: by_partition(topics, read), expected) or {}

    def partitions(self, name: str, most: int | None = None) -> dict[str, ranges.Ranges]:
        """An object topic -> partition ranges; `most` partitions at most, None for any number."""
        topics = {}
        count = 0
        for topic, text in self.texts(name).items():
            try:
                topics[topic] = ranges.decode(text)
            except ValueError as error:
                raise self.bad(name, "an object of partition ranges such as 0-3,7") from error
            count += len(topics[topic])
            if most is not None and count > most:
                raise self.bad(name, f"an object of partition ranges, {most} partitions at most")
        return topics


def readable(
    parse: Callable[[str, bytes], T], path: str, node: Node | None, log: logging.Logger | None = None
) -> T | None:
    """A znode's record; None when it does not exist or is unreadable, which `log` gets."""
    try:
        return parse(path, node.data) if node is not None else None
    except BadData as error:
        if log is not None:
            log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
        return None


def only(is_good: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """For `by_partition`: a value itself, where it is good."""

    def read(value: Any) -> Any:
        if is_good(value):
            return value
        raise ValueError

    return read


def by_partition(topics: Any, read: Callable[[Any], T]) -> dict[TopicPartition, T]:
    """An object topic -> partition -> value, each value read by `read`.

    :raises ValueError: when it is none, or when `read` does.
    """
    found: dict[TopicPartition, T] = {}
    for topic, values in topics.items() if isinstance(topics, dict) else [("", None)]:
        if not is_name(topic) or not isinstance(values, dict) or not all(map(ranges.is_partition, values)):
            raise ValueError
        found |= {TopicPartition(topic, int(number)): read(value) for number, value in values.items()}
    return found


def changed(where: str, data: bytes, values: Mapping[str, Any], most: int = MAX_ZNODE_BYTES) -> bytes:
    """The object of `data` with `values` in it; its other fields stay, later releases' included.

    :raises BadData: when `data` is over `most` bytes or no JSON object.
    """
    return compact({**Fields.parse(where, data, most).values, **values})


def shortened(text: str, most: int) -> str:
    """`text` cut to `most` bytes of JSON, where a character takes up to twelve."""
    while len(_ENCODER.encode(text)) - 2 > most:
        text = text[: max(len(text) * 9 // 10, 0)]
    return text


def compact(values: Mapping[str, Any]) -> bytes:
    """JSON on one line, readable in zkCli."""
    return _ENCODER.encode({"version": 1, **values}).encode()

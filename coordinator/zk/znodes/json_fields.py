"""Parser for untrusted JSON: bounded and typed; every error names the data's location."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_type_hints

from ..errors import BadData
from ..store import DENIED, Node
from ..values import MAX_NUMBER as MAX_NUMBER
from . import ranges
from .names import is_name, shown
from .partitions import TopicPartition, nested, partition_set, range_texts

T = TypeVar("T")

MAX_ZNODE_BYTES = 512_000
MAX_COUNT = 2**53 - 1
"""Maximum of a number that this protocol itself counts: far below its format, and exact in every JSON reader."""
MAX_CONTINUED = MAX_COUNT // 2
"""Maximum of a number that a coordinator counts on from: a larger one leaves no room, and is bad data."""
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
        """A number that this protocol counts, as an epoch or a generation: a whole number up to `MAX_COUNT`."""
        return self.number(name, default, least, MAX_COUNT)

    def optional_number(self, name: str) -> int | None:
        """A whole number, or None when the field is missing or null."""
        return self.number(name) if self.has(name) else None

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object; empty when the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return value

    def items(self, name: str) -> list[Any]:
        """A list; empty when the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return []
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
        found = []
        for index, value in enumerate(self.items(name)):
            if not isinstance(value, dict):
                raise self.bad(name, "a list of objects")
            found.append(read(Fields(f"{self.where}: {name}[{index}]", value)))
        return tuple(found)

    def inner(self, name: str, read: Callable[[Fields], T]) -> T | None:
        """An object read by `read`; None when the field is missing or null."""
        return read(Fields(f"{self.where}: {name}", self.mapping(name))) if self.has(name) else None

    def named(self, name: str, read: Callable[[Fields], T]) -> dict[str, T]:
        """An object of objects, each read by `read`; the keys must be names."""
        found = {}
        for key, value in self.mapping(name).items():
            if not isinstance(value, dict) or not is_name(key):
                raise self.bad(name, "an object of named objects")
            found[key] = read(Fields(f"{self.where}: {name}.{key}", value))
        return found

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings; the keys must be names."""
        value = self.mapping(name)
        if not all(is_name(key) and isinstance(text, str) for key, text in value.items()):
            raise self.bad(name, "an object of strings")
        return dict(value)

    def value(self, name: str, read: Callable[[Any], T], what: str) -> T | None:
        """What `read` makes of any value; None when the field is missing or null.

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
        found = {}
        count = 0
        for topic, text in self.texts(name).items():
            try:
                found[topic] = ranges.decode(text)
            except ValueError as error:
                raise self.bad(name, "an object of partition ranges such as 0-3,7") from error
            count += len(found[topic])
            if most is not None and count > most:
                raise self.bad(name, f"an object of partition ranges, {most} partitions at most")
        return found


def readable(parse: Callable[[str, bytes], T], path: str, node: Node | None) -> T | None:
    """A znode's record; None when it does not exist or is unreadable."""
    try:
        return parse(path, node.data) if node is not None else None
    except BadData:
        return None


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


class Form(NamedTuple):
    """How a field of a record stands in JSON, as in `Annotated[str, text(64)]`.

    :ivar read: reads it, by the object, its key and the field's default (None without one).
    :ivar write: its value in JSON.
    :ivar key: its key; empty for the field's name.
    :ivar is_optional: whether it is left out while it has its default.
    """

    read: Callable[[Fields, str, Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    key: str = ""
    is_optional: bool = False

    def named(self, key: str) -> Form:
        """The same under another key."""
        return self._replace(key=key)

    @property
    def optional(self) -> Form:
        """The same, left out while it has its default."""
        return self._replace(is_optional=True)


def text(most: int = 4096, default: str | None = None) -> Form:
    """As `Fields.text`.

    :param default: of a missing one, where the field has no default.
    """
    return Form(lambda fields, key, own: fields.text(key, own if default is None else default, most))


def number(default: int | None = None, least: int = 0, most: int = MAX_NUMBER) -> Form:
    """As `Fields.number`, with the `default` of `text`."""
    return Form(lambda fields, key, own: fields.number(key, own if default is None else default, least, most))


def count(default: int | None = None, least: int = 0) -> Form:
    """As `Fields.count`, with the `default` of `text`."""
    return number(default, least, MAX_COUNT)


def optional_text(most: int = 4096) -> Form:
    """As `Fields.optional_text`."""
    return Form(lambda fields, key, _: fields.optional_text(key, most))


OPTIONAL_NUMBER = Form(lambda fields, key, _: fields.optional_number(key))
FLAG = Form(lambda fields, key, _: fields.values.get(key) is True)
"""True or left out."""
STRINGS = Form(lambda fields, key, _: fields.strings(key), list)
TEXTS = Form(lambda fields, key, _: fields.texts(key), lambda texts: dict(sorted(texts.items())))


def partitions(most: int | None = None) -> Form:
    """A set of partitions, as `Fields.partitions`."""
    return Form(lambda fields, key, _: partition_set(fields.partitions(key, most)), range_texts)


def partition_map(read: Callable[[Any], Any], what: str) -> Form:
    """As `Fields.by_partition`."""
    return Form(lambda fields, key, _: fields.by_partition(key, read, what), nested)


def inner(kind: Any) -> Form:
    """One record, or None."""
    return Form(lambda fields, key, _: fields.inner(key, kind.read), lambda one: None if one is None else one.to_json())


def objects(kind: Any) -> Form:
    """Several records."""
    return Form(lambda fields, key, _: fields.objects(key, kind.read), lambda found: [each.to_json() for each in found])


def named(kind: Any) -> Form:
    """Records by name."""
    return Form(
        lambda fields, key, _: fields.named(key, kind.read),
        lambda found: {name: each.to_json() for name, each in sorted(found.items())},
    )


class Record:
    """Base of the records, frozen dataclasses whose fields have forms. Fields without one are not in JSON.

    :cvar FIRST: the keys that come first in JSON, where the order is not that of the fields.
    :cvar MAY_BE_EMPTY: whether a znode without data has a record with all defaults.
    """

    __slots__ = ()
    FIRST: ClassVar[tuple[str, ...]] = ()
    MOST_BYTES: ClassVar[int] = MAX_ZNODE_BYTES
    MAY_BE_EMPTY: ClassVar[bool] = False

    @classmethod
    def parse(cls, where: str, data: bytes) -> Self:
        """The record in a znode.

        :raises BadData: when it is malformed.
        """
        if cls.MAY_BE_EMPTY and not data:
            return cls()
        return cls.read(Fields.parse(where, data, cls.MOST_BYTES))

    @classmethod
    def read(cls, fields: Fields) -> Self:
        """The record in an object.

        :raises BadData: when it is malformed.
        """
        return cls(**{name: form.read(fields, form.key, default) for name, form, default in cls._forms()})

    def to_json(self) -> dict[str, Any]:
        """The fields of its object."""
        written = {}
        for name, form, default in self._forms():
            value = getattr(self, name)
            if not form.is_optional or value != default:
                written[form.key] = form.write(value)
        return written

    def to_bytes(self) -> bytes:
        """The data of its znode."""
        return compact(self.to_json())

    @classmethod
    @cache
    def _forms(cls) -> list[tuple[str, Form, Any]]:
        """Each field with its form and its default, in the order of JSON."""
        hints = get_type_hints(cls, include_extras=True)
        found = []
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if (form := getattr(hints[field.name], "__metadata__", (None,))[0]) is not None:
                default = None if field.default is dataclasses.MISSING else field.default
                if field.default_factory is not dataclasses.MISSING:
                    default = field.default_factory()
                found.append((field.name, form.named(form.key or field.name), default))
        keys = [*cls.FIRST, *(form.key for _, form, _ in found)]
        return sorted(found, key=lambda each: keys.index(each[1].key))

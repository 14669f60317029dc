"""Records of znodes: frozen dataclasses whose fields have forms, the only description of each in JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_type_hints

from .json_fields import MAX_COUNT, MAX_NUMBER, MAX_ZNODE_BYTES, Fields, compact
from .partitions import nested, partition_set, range_texts


class Form(NamedTuple):
    """The form of a record's field in JSON, as in `Annotated[str, forms.text(64)]`.

    A lambda in an annotation sees no names of its module.

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

    def checked(self, is_good: Callable[[Any], bool], what: str) -> Form:
        """The same, refused as not `what` unless `is_good`."""

        def read(fields: Fields, key: str, default: Any) -> Any:
            value = self.read(fields, key, default)
            if not is_good(value):
                raise fields.bad(key, what)
            return value

        return self._replace(read=read)


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


OPTIONAL_NUMBER = Form(lambda fields, key, _: fields.number(key) if fields.has(key) else None)
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
        forms = []
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if (form := getattr(hints[field.name], "__metadata__", (None,))[0]) is not None:
                default = None if field.default is dataclasses.MISSING else field.default
                if field.default_factory is not dataclasses.MISSING:
                    default = field.default_factory()
                forms.append((field.name, form.named(form.key or field.name), default))
        keys = [*cls.FIRST, *(form.key for _, form, _ in forms)]
        return sorted(forms, key=lambda each: keys.index(each[1].key))

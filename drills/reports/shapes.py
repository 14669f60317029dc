"""SVG elements as values; the template writes and escapes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Shape(NamedTuple):
    """An SVG element: its attributes, its tooltip `title`, and its text."""

    name: str
    attributes: Mapping[str, object]
    title: str = ""
    text: str = ""


def shape(name: str, title: str = "", text: str = "", class_: str = "", **attributes: object) -> Shape:
    """An element; numbers have one decimal, and attributes that are None are omitted."""
    values = {**attributes, "class": class_ or None}
    return Shape(name, {key: _plain(value) for key, value in values.items()}, title, text)


def _plain(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def rect(
    x: float, y: float, width: float, height: float, class_: str, title: str = "", fill: str | None = None
) -> Shape:
    """A rectangle, at least a pixel wide."""
    return shape("rect", title, class_=class_, x=x, y=y, width=max(width, 1.0), height=height, fill=fill)


def path(d: str, class_: str, title: str = "") -> Shape:
    """A line or an outline."""
    return shape("path", title, class_=class_, d=d)


def words(x: float, y: float, text: str, class_: str = "", title: str = "") -> Shape:
    """A text."""
    return shape("text", title, text, class_=class_, x=x, y=y)

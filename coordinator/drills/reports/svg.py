"""Writes SVG and HTML: every text that goes through here is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

from .facts import text


def attributes(values: dict[str, object]) -> str:
    """` name="value"` for each that is not None; a trailing `_` is dropped and `_` is `-`."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in values.items() if value is not None)
    return "".join(f' {name}="{escape(_plain(value))}"' for name, value in pairs)


def _plain(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def tag(name: str, body: str = "", title: str = "", **values: Any) -> str:
    """An element around `body`, which is markup; `title` is text, shown when somebody points at it."""
    inner = (f"<title>{said(title)}</title>" if title else "") + body
    return f"<{name}{attributes(values)}>{inner}</{name}>" if inner else f"<{name}{attributes(values)}/>"


def element(name: str, body: str = "", **values: Any) -> str:
    """As `tag`, for HTML, in which only a void element may do without its end."""
    return f"<{name}{attributes(values)}>{body}</{name}>"


def said(value: object) -> str:
    """Text from anywhere, safe in an element or an attribute."""
    return escape(text(value))


def rect(x: float, y: float, width: float, height: float, class_: str, title: str = "", **values: Any) -> str:
    """A rectangle, at least a pixel wide."""
    return tag("rect", "", title, x=x, y=y, width=max(width, 1.0), height=height, class_=class_, **values)


def words(x: float, y: float, shown: str, class_: str = "", **values: Any) -> str:
    """A text in a picture."""
    return tag("text", said(shown), x=x, y=y, class_=class_ or None, **values)

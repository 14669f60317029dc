"""Names that are allowed in a path. Every name from outside is checked here before it becomes part of a path."""

from __future__ import annotations

import re

from ..errors import UsageError
from ..store import Store
from ..values import shown as shown

MAX_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_name(text: str) -> bool:
    """Whether `text` may name a group, consumer, topic or query: Kafka's rule for topics, valid in ZooKeeper too."""
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def names_below(store: Store, path: str) -> list[str]:
    """The valid names of a znode's children, sorted."""
    listing = store.children(path)
    return sorted(name for name in (listing.names if listing else ()) if is_name(name))


def checked_name(kind: str, text: str) -> str:
    """`text` itself.

    :raises UsageError: when it is not a valid name (`kind` is for the message).
    """
    if not isinstance(text, str) or not is_name(text):
        raise UsageError(
            f"{shown(text)} cannot name a {kind}: use 1 to {MAX_NAME} letters, digits, dots, underscores and dashes, "
            "not `.` or `..`"
        )
    return text


def printable(value: object) -> str:
    """`value` for a terminal or a log: unprintable characters (znodes may have any) are escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(value))


LONGEST_FAULT = 300
"""Characters that are kept of an assignor's error."""


def error_text(error: BaseException) -> str:
    """A foreign error's type and message, bounded and printable."""
    try:
        text = printable(str(error)[:LONGEST_FAULT])
    except Exception:  # noqa: BLE001  a foreign `__str__`
        text = ""
    kind = printable(type(error).__name__[:LONGEST_FAULT])
    return f"{kind}: {text[:LONGEST_FAULT]}" if text else kind

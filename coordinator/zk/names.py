"""Which names are allowed in a path. Everything from outside passes here before it becomes part of a path."""

from __future__ import annotations

import re

from .errors import UsageError

MAX_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_name(text: str) -> bool:
    """Whether `text` may name a group, consumer, topic or query: Kafka's rule for topics, which ZooKeeper takes too."""
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def checked_name(kind: str, text: str) -> str:
    """`text` itself.

    :raises UsageError: when it is no name (`kind` says of what, for the message).
    """
    if not is_name(text):
        raise UsageError(
            f"{shown(text)} cannot name a {kind}: use 1 to {MAX_NAME} letters, digits, dots, underscores and dashes, "
            "not `.` or `..`"
        )
    return text


def printable(value: object) -> str:
    """`value` as a terminal or a log may get it: what is no printable character (znodes may hold any) is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(value))


def shown(text: object, most: int = 80) -> str:
    """`text` as it may stand in a log line or message: quoted, without control characters, cut after `most`."""
    quoted = ascii(str(text)[: most + 1])
    return quoted if len(str(text)) <= most else quoted[: most + 1] + "…'"

"""Points in time as text, for both sides."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DATETIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_ms(text: str) -> int:
    """Milliseconds since the epoch of `2026-11-21T10:00:00.000`; UTC unless it has a zone.

    :raises ValueError: when `text` is not such a time.
    """
    if not _DATETIME.fullmatch(text):
        raise ValueError(text)
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def as_text(time_ms: int) -> str:
    """The inverse: `2026-11-21T10:00:00.000Z`; the number itself for a year outside the calendar."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")

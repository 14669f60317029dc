"""What can be fetched, behind one small interface: the embedded log, and Kafka."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coordinator.zk.errors import UsageError
from coordinator.zk.names import shown

from .base import LOG_SCHEMA, Fetched, Log
from .embedded import EmbeddedLog
from .errors import LogError, OffsetOutOfRange, UnknownTopic

__all__ = ["LOG_SCHEMA", "Fetched", "Log", "LogError", "OffsetOutOfRange", "UnknownTopic", "open_log"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def open_log(url: str) -> Log:
    """Open a log for reading.

    :param url: a path or `file:` URL, which is the folder of an embedded log.
    :raises UsageError: when it is neither.
    """
    if not _SCHEME.match(url):
        if not url:
            raise UsageError("a log needs a place: give a folder or a file: URL")
        return EmbeddedLog(Path(url))
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"{shown(url)} is no log that can be opened: give a folder or a file: URL")
    return EmbeddedLog(Path(unquote(parts.path)))

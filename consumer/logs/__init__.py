"""Logs behind one interface: the embedded log, and Kafka.

Imports `embedded`, `kafka`, and the records of `coordinator.zk`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.znodes.paths import shown

from .base import Log
from .embedded.log import EmbeddedLog
from .kafka.options import KafkaPlace as KafkaPlace
from .kafka.options import open_kafka

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def open_log(url: str, kafka: KafkaPlace | None = None) -> Log:
    """Open a log for reading.

    :param url: a path or `file:` URL, the folder of an embedded log; `kafka:` for the brokers in `kafka`, or
        `kafka://host:port,host:port`.
    :param kafka: Kafka's brokers and options, for a Kafka log.
    :raises UsageError: when `url` is neither, or an option of Kafka is wrong.
    :raises MissingProgram: when it is Kafka, and the extra `kafka` is not installed.
    """
    folder = embedded_folder(url)
    return EmbeddedLog(folder) if folder is not None else open_kafka(url, kafka or KafkaPlace())


def embedded_folder(url: str) -> Path | None:
    """The folder of an embedded log; None for Kafka.

    :raises UsageError: when `url` is neither.
    """
    if not _SCHEME.match(url):
        if not url:
            raise UsageError("a log needs a place: give a folder, a file: URL, or kafka:")
        return Path(url)
    parts = urlsplit(url)
    if parts.scheme == "kafka":
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"{shown(url)} is no log that can be opened: give a folder, a file: URL, or kafka:")
    return Path(unquote(parts.path))

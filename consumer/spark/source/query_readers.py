"""The readers of one query: a stream that is joined with itself has one for each side, all of one option query.

Spark runs each in a child process of the driver's JVM, and tells it neither the checkpoint nor which side it reads. So
each claims a number, for as long as its process lives, by an abstract socket (unix(7)): the first has the query's name,
the next `NAME.reader-2`. The name is then in the reader's offsets: a restarted query needs no number.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import socket

from coordinator.zk.znodes.names import checked_name

from .options import SourceConfig


class ClaimedReader:
    """The number of one reader of a new query.

    :raises UsageError: when the name of a further reader is too long.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self.query = config.query
        for number in itertools.count(2):
            place = (os.getppid(), config.zk, config.group, self.query)
            try:
                self._socket.bind(b"\0zk-group-" + hashlib.sha256(repr(place).encode()).hexdigest().encode())
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            self.query = checked_name("query", f"{config.query}.reader-{number}")

    def close(self) -> None:
        """Release the number."""
        self._socket.close()


def is_reader_of(query: str, name: str) -> bool:
    """Whether `query`, of an offset, is a reader of the query that the application calls `name`."""
    return re.fullmatch(re.escape(name) + r"(\.reader-\d+)?", query) is not None

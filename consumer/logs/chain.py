"""The files of one partition of the embedded log: each begins at the offset at which the one before it ends.

So the name of the next file is known before it is there, and to look for something new costs one question to the file
system, not a listing of the folder.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

from .errors import LogError, OffsetOutOfRange, UnknownTopic
from .files import LogFile, read_file
from .layout import file_name, first_offset

_FILES_BEFORE_LISTING = 32
"""Past so many new files, listing the folder is cheaper than opening them one by one (0.3 ms each)."""


class Chain:
    """What one process knows of a partition's files, and the file that it has open. For one thread at a time.

    :ivar open_file: the one that was read last; whoever sets it to None frees it, and it is opened again when needed.

    Everything raises `UnknownTopic` when the topic's folder is gone, `LogError` when a file is damaged.
    """

    def __init__(self, folder: Path, topic: str, partition: int) -> None:
        self._folder = folder
        self._topic = topic
        self._partition = partition
        self._topic_folder = str(folder.parent)
        self._firsts: list[int] = []
        self._end = 0
        self._next = folder / file_name(0)
        self._last: tuple[Path, tuple[int, int] | None] | None = None
        self.open_file: LogFile | None = None

    def earliest(self) -> int:
        """The first offset of the oldest file, as the folder stands now."""
        self._list()
        return self._firsts[0] if self._firsts else self._end

    def end(self) -> int:
        """The offset after the last record, as the folder stands now."""
        if not self._firsts:
            self._list()
        for _ in range(_FILES_BEFORE_LISTING):
            if not os.path.exists(self._next):  # noqa: PTH110  asked for every idle partition, again and again
                return self._end_of_known()
            self._extend()
        self._list()
        return self.end()

    def _end_of_known(self) -> int:
        # Somebody may have removed the log and begun it anew. Files never change, so the last one tells.
        if self._last is not None and _identity(self._last[0]) != self._last[1]:
            self._list()
        return self._end

    def file_at(self, offset: int) -> LogFile:
        """The file that holds the record at `offset`, which must be below `end`.

        :raises OffsetOutOfRange: when it is before the earliest file.
        """
        for _ in range(2):
            file = self._opened(offset)
            if file is not None and offset < file.end:
                return file
            self._list()  # a listing may miss a file that comes while it is made, and files may have been removed
        raise LogError(f"no file in {self._folder} holds offset {offset}, which lies between others that are there")

    def check(self, offset: int) -> None:
        """
        :raises OffsetOutOfRange: when `offset` is not between the earliest offset and the end, as far as is known.
        """
        earliest = self._firsts[0] if self._firsts else self._end
        if not earliest <= offset <= self._end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self._topic}-{self._partition} is out of range: "
                f"{self._folder} holds {earliest} to {self._end}"
            )

    def _opened(self, offset: int) -> LogFile | None:
        """The file in which `offset` should be; None when it was removed."""
        self.check(offset)
        first = self._firsts[bisect_right(self._firsts, offset) - 1]
        if self.open_file is None or self.open_file.first != first:
            try:
                self.open_file = self._read(first)
            except FileNotFoundError:
                return None
        return self.open_file

    def _read(self, first: int) -> LogFile:
        return read_file(self._folder / file_name(first), self._topic, self._partition, first)

    def _extend(self) -> None:
        """Take in the next file, which is there."""
        file = self._read_listed(self._end)
        self._firsts.append(file.first)
        self._move_end(file)

    def _move_end(self, last: LogFile) -> None:
        path = self._folder / file_name(last.first)
        self._last = (path, _identity(path))
        self.open_file = last
        self._end = last.end
        self._next = self._folder / file_name(last.end)

    def _list(self) -> None:
        """Read the folder anew. Only the last file is opened: the others end where the next begins."""
        self._firsts = firsts = self._listed()
        if firsts:
            self._move_end(self._read_listed(firsts[-1]))
        else:
            self._last, self.open_file, self._end, self._next = None, None, 0, self._folder / file_name(0)

    def _listed(self) -> list[int]:
        """The first offsets of the files in the folder, in order; none when it is not there yet.

        :raises UnknownTopic: when the topic's folder is not there either.
        """
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  many files: a Path each would double the time
        except FileNotFoundError:
            if os.path.isdir(self._topic_folder):  # noqa: PTH112  asked for every idle partition, again and again
                return []
            raise UnknownTopic(
                f"topic {self._topic} with id {self._folder.parent.name} has no data in {self._folder.parents[2]}"
            ) from None
        return sorted(first for first in map(first_offset, names) if first is not None)

    def _read_listed(self, first: int) -> LogFile:
        try:
            return self._read(first)
        except FileNotFoundError as error:
            raise LogError(f"{self._folder / file_name(first)} was removed while it was being read") from error


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one of the same name; None when it is not there."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns

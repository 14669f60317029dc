"""The files of one partition of the embedded log: each begins at the end offset of the previous one.

So the name of the next file is known in advance, and a check for new records is one file system call, not a listing of
the folder.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path

from coordinator.zk import below

from ..base import LogError, OffsetOutOfRange, UnknownTopic
from .files import LogFile, file_name, first_offset, read_file

_FILES_BEFORE_LISTING = 32
"""Number of new files above which listing the folder is cheaper than opening them one by one (0.3 ms each)."""


class Chain:
    """A process's view of a partition's files, and its open file. For one thread at a time.

    :ivar open_file: the last file read; set it to None to free it, and it is reopened when needed.

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
        """The first offset of the oldest file, as the folder is now."""
        self._list()
        return self._firsts[0] if self._firsts else self._end

    def end(self) -> int:
        """The offset after the last record, as the folder is now."""
        if not self._firsts:
            self._list()
        for _ in range(_FILES_BEFORE_LISTING):
            if not os.path.lexists(self._next):
                return self._end_of_known()
            self._extend()
        self._list()
        return self.end()

    def _end_of_known(self) -> int:
        # The log may have been removed and recreated. Files never change, so the last one identifies it.
        if self._last is not None and _identity(self._last[0]) != self._last[1]:
            self._list()
        return self._end

    def file_at(self, offset: int) -> LogFile:
        """The file with the record at `offset`, which must be below `end`.

        :raises OffsetOutOfRange: when it is before the earliest file.
        """
        for _ in range(2):
            file = self._opened(offset)
            if file is not None and offset < file.end:
                return file
            self._list()  # a listing may miss a concurrent file, and files may have been removed
        raise LogError(f"no file in {self._folder} holds offset {offset}, which lies between others that are there")

    def check(self, offset: int) -> None:
        """
        :raises OffsetOutOfRange: when `offset` is not between the earliest offset and the known end.
        """
        earliest = self._firsts[0] if self._firsts else self._end
        if not earliest <= offset <= self._end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self._topic}-{self._partition} is out of range: "
                f"{self._folder} holds {earliest} to {self._end}"
            )

    def _opened(self, offset: int) -> LogFile | None:
        """The file for `offset`; None when it was removed."""
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
        """Append the next file, which exists."""
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
        """List the folder. Only the last file is opened: the others end where the next begins."""
        self._firsts = firsts = self._listed()
        if firsts:
            self._move_end(self._read_listed(firsts[-1]))
        else:
            self._last, self.open_file, self._end, self._next = None, None, 0, self._folder / file_name(0)

    def _listed(self) -> list[int]:
        """The first offsets of the files in the folder, in order; none when the folder does not exist yet.

        :raises UnknownTopic: when the topic's folder does not exist either.
        :raises LogError: when it cannot be listed.
        """
        try:
            with below.opened_folder(self._folder.parents[2], self._folder.parts[-3:]) as folder:
                names = os.listdir(folder)  # noqa: PTH208  by its descriptor
        except FileNotFoundError:
            if os.path.isdir(self._topic_folder):  # noqa: PTH112  called for every idle partition
                return []
            raise UnknownTopic(
                f"topic {self._topic} with id {self._folder.parent.name} has no data in {self._folder.parents[2]}"
            ) from None
        except OSError as error:
            raise LogError(f"cannot list {self._folder}: {error.strerror}") from error
        return sorted(first for first in map(first_offset, names) if first is not None)

    def _read_listed(self, first: int) -> LogFile:
        try:
            return self._read(first)
        except FileNotFoundError as error:
            raise LogError(f"{self._folder / file_name(first)} was removed while it was being read") from error


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None when it does not exist."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns

"""How a producer adds to a partition of the embedded log, beside any number of others that do the same.

A batch is written to a temporary file, made durable, and then linked to the name of the offset at which the log ends.
Linking never overwrites: of two producers that want the same offset one gets it, and the other takes the next one.
Whatever happens to a producer meanwhile, readers see the whole batch or nothing of it.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from .chain import Chain
from .errors import LogError, UnknownTopic
from .files import write_file
from .layout import TEMPORARY_PREFIX, file_name, topic_folder

ABANDONED_AFTER_S = 3600.0
"""A temporary file that nobody has written to for so long is of a producer that is dead."""


class Appender:
    """Adds batches to one partition. Not for several threads at once.

    :raises LogError: when the partition's folder cannot be made.
    """

    def __init__(self, log_dir: Path, topic: str, topic_id: str, partition: int) -> None:
        self._topic = topic
        self._folder = topic_folder(log_dir, topic, topic_id) / str(partition)
        self._chain = Chain(self._folder, topic, partition)
        try:
            _make(self._folder)
            sweep(self._folder)
        except OSError as error:
            raise LogError(f"cannot write to {self._folder}: {error.strerror}") from error

    def append(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Add `batches` (of `STORED_SCHEMA`, not all empty) as one; when this returns they are on the disk.

        :returns: the offset of the first record.
        :raises UnknownTopic: when the topic's data was removed since this was made.
        :raises LogError: when they could not be written, or the end of the log is damaged.
        """
        temporary = self._folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            write_file(temporary, batches)
            first = self._publish(temporary)
            _sync(self._folder)
        except FileNotFoundError as error:
            raise UnknownTopic(f"the data of topic {self._topic} was removed: {self._folder} is gone") from error
        except OSError as error:
            raise LogError(f"cannot append to {self._folder}: {error.strerror}{_hint(error)}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return first

    def _publish(self, temporary: Path) -> int:
        """Give the file the name of the offset at which the log ends, whatever the others do; that offset."""
        lost = -1
        while True:
            first = self._chain.end()
            target = self._folder / file_name(first)
            if first == lost:
                raise LogError(f"{target} is in the way and cannot be read")
            try:
                os.link(temporary, target)
                return first
            except FileExistsError:
                if _is_same(temporary, target):  # NFS: the link was made and its answer lost, so it was asked again
                    return first
                lost = first


def sweep(folder: Path, older_than_s: float = ABANDONED_AFTER_S) -> int:
    """Remove what dead producers left in a partition's folder; how many files that were."""
    removed = 0
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > older_than_s:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # another producer swept it, or finished
    return removed


def _make(folder: Path) -> None:
    """Make a folder and its parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _hint(error: OSError) -> str:
    no_links = error.errno in (errno.EPERM, errno.EOPNOTSUPP)
    return " (the embedded log needs a file system with hard links)" if no_links else ""

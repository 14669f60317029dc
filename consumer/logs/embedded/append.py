"""Appends to a partition of the embedded log, with any number of concurrent producers.

A batch is written to a temporary file, synced, and then linked to the name of the log's end offset. Linking never
overwrites: of two producers with the same offset one succeeds, and the other takes the next offset. Readers see a
complete batch or none, also when a producer fails.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from coordinator.zk import below

from ..base import LogError, UnknownTopic
from .chain import Chain
from .files import file_name, topic_folder, write_file

ABANDONED_AFTER_S = 3600.0
"""Age after which an unmodified temporary file belongs to a dead producer."""


class Appender:
    """Appends batches to one partition. Not for several threads at once.

    :raises LogError: when the partition's folder cannot be created.
    """

    def __init__(self, log_dir: Path, topic: str, topic_id: str, partition: int) -> None:
        self._topic = topic
        self._folder = topic_folder(log_dir, topic, topic_id) / str(partition)
        self._chain = Chain(self._folder, topic, partition)
        try:
            with below.opened_folder(log_dir, self._folder.parts[-3:], makes=True) as folder:
                sweep(folder)
        except OSError as error:
            raise LogError(f"cannot write to {self._folder}: {error.strerror}") from error

    def append(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Append `batches` (of `STORED_SCHEMA`, not all empty) as one; they are synced to disk on return.

        :returns: the offset of the first record.
        :raises UnknownTopic: when the topic's data was removed meanwhile.
        :raises LogError: when they could not be written, or the end of the log is damaged.
        """
        temporary = f"{below.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            with below.opened_folder(self._folder.parents[2], self._folder.parts[-3:]) as folder:
                try:
                    write_file(temporary, folder, batches)
                    first = self._publish(temporary, folder)
                    os.fsync(folder)
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=folder)
        except FileNotFoundError as error:
            raise UnknownTopic(f"the data of topic {self._topic} was removed: {self._folder} is gone") from error
        except OSError as error:
            raise LogError(f"cannot append to {self._folder}: {error.strerror}{_hint(error)}") from error
        return first

    def _publish(self, temporary: str, folder: int) -> int:
        """Link the file to the name of the log's end offset, past concurrent appends; returns that offset."""
        lost = -1
        while True:
            first = self._chain.end()
            target = file_name(first)
            if first == lost:
                raise LogError(f"{self._folder / target} is in the way and cannot be read")
            try:
                os.link(temporary, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                return first
            except FileExistsError:
                # NFS: the link was made, its answer lost, and the request repeated
                if _is_same(temporary, target, folder):
                    return first
                lost = first


def sweep(folder: int, older_than_s: float = ABANDONED_AFTER_S) -> int:
    """Remove the files of dead producers from a partition's open folder; returns their number."""
    removed = 0
    for name in os.listdir(folder):
        if not name.startswith(below.TEMPORARY_PREFIX):
            continue
        try:
            if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > older_than_s:
                os.unlink(name, dir_fd=folder)
                removed += 1
        except FileNotFoundError:
            continue  # another producer swept it, or finished
    return removed


def _is_same(one: str, other: str, folder: int) -> bool:
    try:
        found = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (one, other)]
    except OSError:
        return False
    return os.path.samestat(*found)


def _hint(error: OSError) -> str:
    no_links = error.errno in (errno.EPERM, errno.EOPNOTSUPP)
    return " (the embedded log needs a file system with hard links)" if no_links else ""

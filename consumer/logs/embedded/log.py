"""The embedded log: topics are folders of immutable Arrow IPC files on a shared file system.

`files.py` has a partition's files, `producer.py` the appends.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.zk import below

from ..base import TIMESTAMP, Fetched, Log, LogError, OffsetAndTimestamp
from ..columns import fitting_rows
from .files import Chain, LogFile, topic_folder

_FILES_A_FETCH = 64
"""Maximum number of files that one fetch opens, to return quickly from a log of very small files."""

_OPEN_FILES = 16
"""Files that stay mapped for the next fetch of their partitions. Mapping a file again takes under a millisecond; those
of a thousand partitions would count as the process's resident memory."""

REMOVED_PREFIX = ".removed-"


class EmbeddedLog(Log):
    """Reads the embedded log under `log_dir`. Any number of producers may append meanwhile."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._chains: dict[tuple[str, str, int], Chain] = {}
        self._open: deque[Chain] = deque()

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        with self._chain(topic, topic_id, partition) as chain:
            return chain.earliest()

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        with self._chain(topic, topic_id, partition) as chain:
            return chain.end()

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        end = self.latest(topic, topic_id, partition)  # first, so that no record written meanwhile is skipped
        found = self.record_of_time(topic, topic_id, partition, timestamp_ms)
        return end if found is None else found.offset

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """As in `Log`. Timestamps are not sorted: compares each file's latest one until it has found the record."""
        with self._chain(topic, topic_id, partition) as chain:
            offset, end = chain.earliest(), chain.end()
            while offset < end:
                file = chain.file_at(offset)
                if file.newest_us >= timestamp_ms * 1000:
                    return _first_at(file, timestamp_ms * 1000)
                offset = file.end
            return None

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        with self._chain(topic, topic_id, partition) as chain:
            end = chain.end()
            if offset == end:
                return Fetched([], offset)
            chain.check(offset)
            return _taken(_batches(chain, offset, end), offset, max_bytes, max_records)

    def close(self) -> None:
        self._chains.clear()
        self._open.clear()

    @contextmanager
    def _chain(self, topic: str, topic_id: str, partition: int) -> Iterator[Chain]:
        """The partition's chain, locked for this thread."""
        key = (topic, topic_id, partition)
        chain = self._chains.get(key)
        if chain is None:
            folder = topic_folder(self._log_dir, topic, topic_id) / str(int(partition))
            chain = self._chains.setdefault(key, Chain(folder, topic, partition))
        with chain.lock:
            was_open = chain.open_file is not None
            try:
                yield chain
            finally:
                if chain.open_file is not None and not was_open:
                    self._open.append(chain)
        self._free_some()

    def _free_some(self) -> None:
        """Close the longest open files above the limit, except those that another thread uses."""
        while len(self._open) > _OPEN_FILES:
            oldest = self._open.popleft()
            if not oldest.lock.acquire(blocking=False):
                self._open.append(oldest)
                return
            oldest.open_file = None
            oldest.lock.release()


def _first_at(file: LogFile, timestamp_us: int) -> OffsetAndTimestamp:
    """The first record in `file` of this time or later, which must exist."""
    timestamp = pa.scalar(timestamp_us, pa.int64()).cast(TIMESTAMP)
    for batch in file.batches(file.first):
        index = pc.index(pc.greater_equal(batch.column("timestamp"), timestamp), True).as_py()
        if index >= 0:
            at_us: int = batch.column("timestamp")[index].value
            return OffsetAndTimestamp(batch.column("offset")[index].as_py(), at_us // 1000)
    raise LogError(f"the file with offsets {file.first} to {file.end - 1} has no record as new as it says")


def _batches(chain: Chain, offset: int, end: int) -> Iterator[pa.RecordBatch]:
    """The batches from `offset` on, the first one cut at it."""
    for _ in range(_FILES_A_FETCH):
        if offset >= end:
            return
        try:
            for batch in chain.file_at(offset).batches(offset):
                yield batch
                offset += batch.num_rows
        except LogError:
            chain.open_file = None  # mapped again by the next fetch: somebody may have restored it
            raise


def _taken(batches: Iterator[pa.RecordBatch], offset: int, max_bytes: int, max_records: int) -> Fetched:
    """As many of `batches` as the limits allow, but one record at least."""
    taken: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            rows = fitting_rows(batch, max_bytes, max_records)
            part = batch.slice(0, rows if taken else max(rows, 1))
            if part.num_rows:
                taken.append(part)
                offset, max_bytes, max_records = offset + part.num_rows, max_bytes - part.nbytes, max_records - rows
            if part.num_rows < batch.num_rows or max_records <= 0 or max_bytes <= 0:
                break  # and the next batch is not read
    except LogError:
        if not taken:
            raise  # records before the damage are valid: return them; the next fetch raises
    return Fetched(taken, offset)


def remove_topic(log_dir: Path, topic: str, topic_id: str) -> bool:
    """Remove the data of one topic; returns whether there was any.

    It disappears for readers and producers at once, before its files are removed one by one.

    :raises LogError: when it cannot be removed.
    """
    folder = topic_folder(log_dir, topic, topic_id)
    doomed = f"{REMOVED_PREFIX}{topic_id}-{uuid.uuid4().hex[:8]}"
    try:
        with below.opened_folder(log_dir, [topic]) as parent:
            try:
                os.rename(topic_id, doomed, src_dir_fd=parent, dst_dir_fd=parent)
            except FileNotFoundError:
                return False
            try:
                shutil.rmtree(doomed, dir_fd=parent)
            except OSError as error:
                reason = f"cannot remove {folder.parent / doomed}, which was {folder}: {error.strerror}"
                raise LogError(reason) from error
            for left in os.listdir(parent):  # noqa: PTH208  by its descriptor
                if left.startswith(REMOVED_PREFIX):  # left by a process that died in between
                    shutil.rmtree(left, ignore_errors=True, dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"cannot remove {folder}: {error.strerror}") from error
    with suppress(OSError):  # the topic exists under another id
        folder.parent.rmdir()
    return True

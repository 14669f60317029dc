"""The embedded log: topics are folders of immutable Arrow IPC files on a shared file system.

Files have checksums, are written and synced once, and memory-mapped. Each file of a partition begins at the end offset
of the previous one. So the name of the next one is known in advance, and a check for new records is one file system
call, not a listing of the folder.

A file contains only the producer's columns; topic, partition and offsets follow from its path,
`[log_dir]/[topic]/[topic id]/[partition]/[first offset].arrow`. So a producer that lost a race for an offset links the
same file at the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from zk_group.coordinator.zk import below
from zk_group.coordinator.zk.znodes.paths import checked_name

from ..base import (
    LOG_SCHEMA,
    TIMESTAMP,
    Fetched,
    LogError,
    OffsetAndTimestamp,
    OffsetOutOfRange,
    PullLog,
    UnknownTopic,
    fitting_rows,
)
from ..checked_file import CheckedFile, DamagedBatch, mapped, write_checked

_STORED = ("key", "value", "timestamp", "timestampType", "headers")
STORED_SCHEMA = pa.schema([LOG_SCHEMA.field(name) for name in _STORED])

_FILES_A_FETCH = 64
"""Maximum number of files that one fetch opens, to return quickly from a log of very small files."""

_OPEN_FILES = 16
"""Files that stay mapped for the next fetch of their partitions. Mapping a file again takes under a millisecond; those
of a thousand partitions would count as the process's resident memory."""

REMOVED_PREFIX = ".removed-"

_ROWS = b"zk_group.rows"
_NEWEST = b"zk_group.newest_us"

SUFFIX = ".arrow"
_NAME = re.compile(r"\d{20}\.arrow")

_FILES_BEFORE_LISTING = 32
"""Number of new files above which listing the folder is cheaper than opening them one by one (0.3 ms each)."""


def topic_folder(log_dir: Path, topic: str, topic_id: str) -> Path:
    """The folder of one topic.

    :raises UsageError: when `topic` or `topic_id` is not a valid name, and might lead outside.
    """
    return log_dir / checked_name("topic", topic) / checked_name("topic id", topic_id)


def file_name(first: int) -> str:
    """The name of the file whose first record has offset `first`; names sort as offsets do."""
    return f"{first:020d}{SUFFIX}"


class LogFile(CheckedFile):
    """A mapped file, whose first record has offset `first`. Its batches are not read yet.

    :ivar end: the offset after its last record.
    :ivar newest_us: its latest timestamp, in microseconds since the epoch.
    """

    def __init__(self, path: Path, topic: str, partition: int, first: int) -> None:
        super().__init__(mapped(path.parents[3], path.parts[-4:]), STORED_SCHEMA)  # topic, topic id, partition, file
        rows = sum(self.rows)
        if _ROWS not in self.metadata or _NEWEST not in self.metadata:
            raise ValueError("it is no file of this log")
        if rows != int(self.metadata[_ROWS]) or rows == 0:
            raise ValueError(f"it holds {rows} records and should hold {int(self.metadata[_ROWS])}")
        self.path, self.first, self.end = path, first, first + rows
        self.newest_us = int(self.metadata[_NEWEST])
        self._topic, self._partition = topic, partition

    def batches(self, offset: int) -> Iterator[pa.RecordBatch]:
        """The rows from `offset` on, as `LOG_SCHEMA`. Each batch is checked when it is read first.

        Derived columns are made per batch on demand: for small records they are larger than the stored ones.

        :raises LogError: when a batch is damaged; the ones before it have been returned.
        """
        first = self.first
        for index, rows in enumerate(self.rows):
            skipped = max(0, offset - first)
            if skipped < rows:
                batch = self._read_at(index, first).slice(skipped)
                yield _placed(batch, self._topic, self._partition, first + skipped)
            first += rows

    def _read_at(self, index: int, first: int) -> pa.RecordBatch:
        try:
            return self.read(index)
        except DamagedBatch as error:
            reason = f"offsets {first} to {first + error.rows - 1} are damaged, with {error}"
            raise _unreadable(self.path, self.first, reason) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(self.path, self.first, error) from error


def write_file(name: str, folder: int, batches: Sequence[pa.RecordBatch]) -> None:
    """Write `batches` of `STORED_SCHEMA` to a new file in an open folder; they are synced to disk on return."""
    rows = sum(batch.num_rows for batch in batches)
    newest = max(pc.max(batch.column("timestamp").cast(pa.int64())).as_py() for batch in batches)
    metadata = {_ROWS: b"%d" % rows, _NEWEST: b"%d" % newest}
    with os.fdopen(below.new_file(name, folder), "wb") as sink:
        write_checked(sink, STORED_SCHEMA, batches, metadata)
        sink.flush()
        os.fsync(sink.fileno())


def _unreadable(path: Path, first: int, reason: object) -> LogError:
    line = str(reason).partition("\n")[0]
    return LogError(f"cannot read {path}, which holds the records from offset {first}: {line}")


def _placed(batch: pa.RecordBatch, topic: str, partition: int, first: int) -> pa.RecordBatch:
    """A stored batch with the columns derived from its path.

    Built from bytes: PyArrow loads pandas, if installed, before it converts its first Python value; that takes up to
    half a second in which the consumer handles no command.
    """
    rows, name = batch.num_rows, topic.encode()
    steps = _bytes(first, 8) + _bytes(1, 8) * (rows - 1)
    placed = {
        "topic": pa.repeat(_array(pa.string(), 1, _bytes(0, 4) + _bytes(len(name), 4), name)[0], rows),
        "partition": pa.repeat(_array(pa.int32(), 1, _bytes(partition, 4))[0], rows),
        "offset": pc.cumulative_sum(_array(pa.int64(), rows, steps)),
    }
    columns = [placed[name] if name in placed else batch.column(name) for name in LOG_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def _array(kind: pa.DataType, rows: int, *data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, *(pa.py_buffer(each) for each in data)])


def _bytes(number: int, size: int) -> bytes:
    return number.to_bytes(size, sys.byteorder)


class Chain:
    """A process's view of a partition's files, and its open file. For one thread at a time, with its `lock`.

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
        self.lock = threading.Lock()

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
                # The log may have been removed and recreated. Files never change, so the last one identifies it.
                if self._last is not None and _identity(self._last[0]) != self._last[1]:
                    self._list()
                return self._end
            file = self._read(self._end)
            self._firsts.append(file.first)
            self._move_end(file)
        self._list()
        return self.end()

    def file_at(self, offset: int) -> LogFile:
        """The file with the record at `offset`, which must be below `end`.

        :raises OffsetOutOfRange: when it is before the earliest file.
        """
        for _ in range(2):
            self.check(offset)
            first = self._firsts[bisect_right(self._firsts, offset) - 1]
            with suppress(FileNotFoundError):
                if self.open_file is None or self.open_file.first != first:
                    self.open_file = self._read(first, is_listed=False)
                if offset < self.open_file.end:
                    return self.open_file
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

    def _read(self, first: int, is_listed: bool = True) -> LogFile:
        """Map the file whose first record has offset `first`. Its batches are not read yet.

        :param is_listed: whether it was there just now.
        :raises LogError: when it is damaged, cannot be read, or was listed and does not exist.
        :raises FileNotFoundError: when it does not exist.
        """
        path = self._folder / file_name(first)
        try:
            return LogFile(path, self._topic, self._partition, first)
        except FileNotFoundError as error:
            if is_listed:
                raise LogError(f"{path} was removed while it was being read") from error
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, first, error) from error

    def _move_end(self, last: LogFile) -> None:
        self._last = (last.path, _identity(last.path))
        self.open_file = last
        self._end = last.end
        self._next = self._folder / file_name(last.end)

    def _list(self) -> None:
        """List the folder. Only the last file is opened: the others end where the next begins."""
        self._firsts = firsts = self._listed()
        if firsts:
            self._move_end(self._read(firsts[-1]))
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
        return sorted(int(name.removesuffix(SUFFIX)) for name in names if _NAME.fullmatch(name))


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and time of modification of a file; None when it does not exist."""
    try:
        stat = path.lstat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


class EmbeddedLog(PullLog):
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

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        with self._chain(topic, topic_id, partition) as chain:
            end = chain.end()
            if offset == end:
                return Fetched([], offset)
            chain.check(offset)
            return _taken(_batches(chain, offset, end), offset, max_bytes)

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
        while len(self._open) > _OPEN_FILES:  # close the longest open ones, except those that another thread uses
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


def _taken(batches: Iterator[pa.RecordBatch], offset: int, max_bytes: int) -> Fetched:
    """As many of `batches` as the limit allows, but one record at least."""
    taken: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            rows = fitting_rows(batch, max_bytes)
            part = batch.slice(0, rows if taken else max(rows, 1))
            if part.num_rows:
                taken.append(part)
                offset, max_bytes = offset + part.num_rows, max_bytes - part.nbytes
            if part.num_rows < batch.num_rows or max_bytes <= 0:
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
            os.rename(topic_id, doomed, src_dir_fd=parent, dst_dir_fd=parent)
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

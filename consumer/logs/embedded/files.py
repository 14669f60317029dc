"""One file of the embedded log: an Arrow IPC file with checksums, written and synced once, and memory-mapped.

It contains only the producer's columns; topic, partition and offsets follow from its path,
`[log_dir]/[topic]/[topic id]/[partition]/[first offset].arrow`. So a producer that lost a race for an offset links the
same file at the next one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.zk import below
from coordinator.zk.znodes.names import checked_name

from ..base import LOG_SCHEMA, LogError
from ..checked_file import CheckedFile, DamagedBatch, write_checked
from ..columns import STORED_SCHEMA

_ROWS = b"zk_group.rows"
_NEWEST = b"zk_group.newest_us"

SUFFIX = ".arrow"
PARTS_OF_A_FILE = 4
"""Topic, topic id, partition, file."""
_NAME = re.compile(r"\d{20}\.arrow")


def topic_folder(log_dir: Path, topic: str, topic_id: str) -> Path:
    """The folder of one topic.

    :raises UsageError: when `topic` or `topic_id` is not a valid name, and might lead outside.
    """
    return log_dir / checked_name("topic", topic) / checked_name("topic id", topic_id)


def file_name(first: int) -> str:
    """The name of the file whose first record has offset `first`; names sort as offsets do."""
    return f"{first:020d}{SUFFIX}"


def first_offset(name: str) -> int | None:
    """The inverse of `file_name`, None for any other name."""
    return int(name[: -len(SUFFIX)]) if _NAME.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class LogFile:
    """A mapped file.

    :ivar newest_us: its latest timestamp, in microseconds since the epoch.
    :ivar stored: batches of `STORED_SCHEMA` in the mapped memory.
    """

    path: Path
    topic: str
    partition: int
    first: int
    end: int
    newest_us: int
    stored: CheckedFile

    def batches(self, offset: int) -> Iterator[pa.RecordBatch]:
        """The rows from `offset` on, as `LOG_SCHEMA`. Each batch is checked when it is read first.

        Derived columns are made per batch on demand: for small records they are larger than the stored ones.

        :raises LogError: when a batch is damaged; the ones before it have been returned.
        """
        first = self.first
        for index, rows in enumerate(self.stored.rows):
            skipped = max(0, offset - first)
            if skipped < rows:
                yield _placed(self._read(index, first).slice(skipped), self.topic, self.partition, first + skipped)
            first += rows

    def _read(self, index: int, first: int) -> pa.RecordBatch:
        try:
            return self.stored.read(index)
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


def read_file(path: Path, topic: str, partition: int, first: int) -> LogFile:
    """Map the file `path` of a log, whose first record has offset `first`. Its batches are not read yet.

    :raises LogError: when it is damaged or cannot be read.
    :raises FileNotFoundError: when it does not exist.
    """
    try:
        stored = CheckedFile(_mapped(path), STORED_SCHEMA)
        rows, newest_us = _figures(stored)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, first, error) from error
    return LogFile(path, topic, partition, first, first + rows, newest_us, stored)


def _unreadable(path: Path, first: int, reason: object) -> LogError:
    line = str(reason).partition("\n")[0]
    return LogError(f"cannot read {path}, which holds the records from offset {first}: {line}")


def _mapped(path: Path) -> pa.Buffer:
    """The bytes of a file."""
    descriptor = below.open_file(path.parents[PARTS_OF_A_FILE - 1], path.parts[-PARTS_OF_A_FILE:])
    try:
        # By the descriptor, not the path, which may be a link by now. Close frees both; the buffer keeps the mapping.
        with pa.memory_map(f"/dev/fd/{descriptor}") as source:
            return source.read_buffer(source.size())
    finally:
        os.close(descriptor)


def _figures(stored: CheckedFile) -> tuple[int, int]:
    """The rows of a file, and its latest timestamp.

    :raises ValueError: when it is no file of a log, or has not the rows that it should have.
    """
    metadata = stored.metadata
    if _ROWS not in metadata or _NEWEST not in metadata:
        raise ValueError("it is no file of this log")
    rows = sum(stored.rows)
    if rows != int(metadata[_ROWS]) or rows == 0:
        raise ValueError(f"it holds {rows} records and should hold {int(metadata[_ROWS])}")
    return rows, int(metadata[_NEWEST])


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

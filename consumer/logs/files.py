"""One file of the embedded log: an Arrow IPC file that is written once, durably, and read through memory mapping.

It holds what a producer says of its records; topic, partition and offsets follow from where the file stands. So a
producer that has lost a race for an offset need not write its file again to put it at the next one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .base import HEADERS, LOG_SCHEMA, TIMESTAMP
from .errors import LogError

STORED_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
_ROWS = b"zk_group.rows"
_NEWEST = b"zk_group.newest_us"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file as it was read.

    :ivar batches: of `LOG_SCHEMA`; their memory is the mapped file, but for topic, partition and offset.
    :ivar newest_us: the latest timestamp in it, in microseconds since the epoch.
    """

    first: int
    end: int
    newest_us: int
    batches: tuple[pa.RecordBatch, ...]


def write_file(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    """Write `batches` of `STORED_SCHEMA` to the new file `path`; when this returns they are on the disk."""
    rows = sum(batch.num_rows for batch in batches)
    newest = max(pc.max(batch.column("timestamp").cast(pa.int64())).as_py() for batch in batches)
    schema = STORED_SCHEMA.with_metadata({_ROWS: str(rows), _NEWEST: str(newest)})
    with path.open("xb") as sink:
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        sink.flush()
        os.fsync(sink.fileno())


def read_file(path: Path, topic: str, partition: int, first: int) -> LogFile:
    """Map the file `path`, whose first record has offset `first`.

    :raises LogError: when it is damaged or cannot be read.
    :raises FileNotFoundError: when it is not there.
    """
    try:
        stored, rows, newest_us = _map(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise LogError(f"cannot read {path}, which holds the records from offset {first}: {reason}") from error
    starts = accumulate((batch.num_rows for batch in stored), initial=first)
    batches = tuple(_placed(batch, topic, partition, start) for batch, start in zip(stored, starts, strict=False))
    return LogFile(first, first + rows, newest_us, batches)


def _map(path: Path) -> tuple[list[pa.RecordBatch], int, int]:
    """The batches of a file, their rows, and its latest timestamp."""
    with pa.memory_map(str(path)) as source:  # closing it frees the descriptor; the batches keep the mapping
        reader = pa.ipc.open_file(source)
        metadata = reader.schema.metadata or {}
        if not reader.schema.equals(STORED_SCHEMA) or _ROWS not in metadata or _NEWEST not in metadata:
            raise ValueError("it is no file of this log")
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)  # a wild offset in a damaged file would otherwise read foreign memory
    rows = sum(batch.num_rows for batch in batches)
    if rows != int(metadata[_ROWS]) or rows == 0:
        raise ValueError(f"it holds {rows} records and should hold {int(metadata[_ROWS])}")
    return batches, rows, int(metadata[_NEWEST])


def _placed(batch: pa.RecordBatch, topic: str, partition: int, first: int) -> pa.RecordBatch:
    """A stored batch with the columns that follow from where it stands."""
    rows = batch.num_rows
    ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
    placed = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "offset": pc.cumulative_sum(ones, start=first - 1),
    }
    columns = [placed[name] if name in placed else batch.column(name) for name in LOG_SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)

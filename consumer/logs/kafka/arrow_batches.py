"""Kafka's records as Arrow batches of `LOG_SCHEMA`: whole columns, then cut where the partition changes.

From buffers: `pa.array` imports pandas where it is installed, which takes 0.4 s and 40 MB of each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..base import HEADERS, LOG_SCHEMA, TIMESTAMP
from ..columns import MAX_TIMESTAMP_MS, POOL, no_headers

MAX_COLUMN_BYTES = (1 << 31) - 1

Headers = list[tuple[str, bytes | None]]


class Columns(NamedTuple):
    """Records of several partitions, column by column.

    :ivar partitions: int32.  :ivar offsets: int64.
    :ivar timestamps: int64, (rows, 2): librdkafka's type, and milliseconds since the epoch.
    """

    topics: list[str]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: NDArray[np.int64]
    headers: list[Headers | None]


class RecordRun(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    first: int
    next: int
    batch: pa.RecordBatch


def runs(columns: Columns) -> Iterator[RecordRun]:
    """The same records, cut into runs of one partition; their memory is one batch's."""
    batch = _batch(columns)
    offsets = columns.offsets
    begin = 0
    for end in _ends(columns):
        part = batch if (begin, end) == (0, len(offsets)) else batch.slice(begin, end - begin)
        place = columns.topics[begin], int(columns.partitions[begin])
        yield RecordRun(*place, int(offsets[begin]), int(offsets[end - 1]) + 1, part)
        begin = end


def _batch(columns: Columns) -> pa.RecordBatch:
    arrays = [
        _data(pa.binary(), columns.keys),
        _data(pa.binary(), columns.values),
        _names(columns.topics),
        _fixed(pa.int32(), columns.partitions),
        _fixed(pa.int64(), columns.offsets),
        _times(columns.timestamps[:, 1]),
        _fixed(pa.int32(), (columns.timestamps[:, 0] - 1).astype(np.int32)),  # Kafka's: 0 for CreateTime, -1 for none
        _headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)


def _fixed(kind: pa.DataType, values: NDArray[Any], valid: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def _valid(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _begins(lengths: NDArray[np.int64]) -> pa.Buffer:
    """Arrow's offsets of items of these lengths.

    :raises pa.ArrowCapacityError: when the items exceed an array.
    """
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    if begins[-1] > MAX_COLUMN_BYTES:
        raise pa.ArrowCapacityError(f"{begins[-1]} bytes exceed an Arrow array")
    return pa.py_buffer(begins.astype(np.int32))


def _data(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """A column of bytes: for values of 1 kB two thirds of the time of `pa.array`, which grows its buffer."""
    rows, valid, items = len(values), None, values
    if None in values:
        if values.count(None) == rows:
            return _nothing(kind, _more(rows)).slice(0, rows)
        valid = _valid(np.fromiter((value is not None for value in values), np.bool_, rows))
        items = [value or b"" for value in values]
    begins = _begins(np.fromiter(map(len, items), np.int64, rows))  # type: ignore[arg-type]
    joined = b"".join(items)  # type: ignore[arg-type]
    data = pa.allocate_buffer(len(joined), memory_pool=POOL)
    memoryview(data).cast("B")[:] = joined
    return pa.Array.from_buffers(kind, rows, [valid, begins, data])


@lru_cache(maxsize=16)
def _nothing(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


@lru_cache(maxsize=128)
def _repeated(name: str, rows: int) -> pa.Array:
    """`name` in `rows` rows, to be sliced."""
    return _data(pa.string(), [name.encode()] * rows)


def _more(rows: int) -> int:
    """Length of a cached array for slices of `rows`: one of a few lengths."""
    return 1 << (rows - 1).bit_length()


def _names(names: Sequence[str]) -> pa.Array:
    rows = len(names)
    if names.count(names[0]) == rows:
        return _repeated(names[0], _more(rows)).slice(0, rows)
    return _data(pa.string(), [name.encode() for name in names])


def _times(times: NDArray[np.int64]) -> pa.Array:
    """Milliseconds as `TIMESTAMP`. A time out of range (producers may write any number) is null, as a missing one."""
    is_valid = (times >= 0) & (times <= MAX_TIMESTAMP_MS)
    return _fixed(TIMESTAMP, times * is_valid * 1000, _valid(is_valid))


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    rows = len(headers)
    if headers[0] is None and headers.count(None) == rows:
        return no_headers(rows)
    found = [row or [] for row in headers]
    flat = list(chain.from_iterable(found))
    names, data = [name.encode() for name, _ in flat], [data for _, data in flat]
    begins = _begins(np.fromiter(map(len, found), np.int64, rows))
    valid = _valid(np.fromiter(map(bool, found), np.bool_, rows))
    columns = [_data(pa.string(), names), _data(pa.binary(), data)]
    items = pa.Array.from_buffers(HEADERS.value_type, len(flat), [None], children=columns)
    return pa.Array.from_buffers(HEADERS, rows, [valid, begins], children=[items])


def _ends(columns: Columns) -> list[int]:
    """End indexes of the runs of one partition, in order."""
    topics, partitions = columns.topics, columns.partitions
    changes = partitions[1:] != partitions[:-1]
    if topics.count(topics[0]) < len(topics):
        names = np.array(topics)
        changes = changes | (names[1:] != names[:-1])
    return [*(np.flatnonzero(changes) + 1).tolist(), len(topics)]

"""Input of the embedded log: single records or whole columns, cut into batches."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from coordinator.zk.errors import UsageError
from coordinator.zk.values import whole

from .base import HEADERS, LOG_SCHEMA, TIMESTAMP

_STORED = ("key", "value", "timestamp", "timestampType", "headers")
STORED_SCHEMA = pa.schema([LOG_SCHEMA.field(name) for name in _STORED])

BATCH_BYTES = 1 << 20
"""Target Arrow memory of a batch: Spark works best with batches of 1 to 2 MB."""

MAX_RECORD_BYTES = 64 << 20
POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.default_memory_pool()
"""The memory pool of pending records. mimalloc, the default, takes up to a half more for exactly sized blocks."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, the limit of Spark's and Python's dates."""

_TIME = "timestamp in milliseconds since 1970"

Headers = Sequence[tuple[str, bytes | None]]


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class PendingRecords:
    """Records of one partition, collected until they are written."""

    def __init__(self) -> None:
        self.bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: dict[int, Headers] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers) -> None:
        """Add one record, unless it is refused.

        :raises UsageError: when it is too large, its time is out of range, or a header's name is not text.
        :raises TypeError: when value or key is neither bytes nor None.
        """
        size = _size(value) + _size(key) + 16
        if headers:
            size += sum(_size(_encoded(name)) + _size(data) for name, data in headers)
        if size > MAX_RECORD_BYTES:
            raise UsageError(f"a record of {size} bytes is too large; the limit is {MAX_RECORD_BYTES}")
        timestamp_ms = now_ms() if timestamp_ms is None else whole(_TIME, timestamp_ms, MAX_TIMESTAMP_MS)
        if headers:
            self._headers[len(self._values)] = headers
        self._keys.append(key)
        self._values.append(value)
        self._timestamps.append(timestamp_ms)
        self.bytes += size

    def batches(self) -> list[pa.RecordBatch]:
        """The pending records, as batches of `STORED_SCHEMA`."""
        headers = None
        if self._headers:
            found = [self._headers.get(index) for index in range(len(self))]
            rows = [None if row is None else [{"key": name, "value": data} for name, data in row] for row in found]
            headers = pa.array(rows, HEADERS)
        keys = pa.array(self._keys, pa.binary())
        return stored_batches(pa.array(self._values, pa.binary()), keys, pa.array(self._timestamps), headers)


def _size(data: bytes | None) -> int:
    if data is None:
        return 0
    if not isinstance(data, bytes):
        raise TypeError(f"a record consists of bytes, not of {type(data).__name__}")
    return len(data)


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise UsageError(f"a header's name is no text: {name!a}") from error


def stored_batches(
    values: pa.Array | pa.ChunkedArray | Sequence[bytes | None],
    keys: pa.Array | pa.ChunkedArray | Sequence[bytes | None] | None = None,
    timestamps_ms: pa.Array | pa.ChunkedArray | int | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
) -> list[pa.RecordBatch]:
    """Whole columns as batches of `STORED_SCHEMA` of about `BATCH_BYTES` each.

    :param values: binary or string; copied only when they are not binary yet.
    :param timestamps_ms: of each record or of all, in milliseconds since the epoch, or Arrow timestamps; None is now.
    :raises UsageError: when the columns do not fit each other or `STORED_SCHEMA`.
    """
    rows = len(values)
    try:
        if not isinstance(timestamps_ms, pa.Array | pa.ChunkedArray):
            moment = now_ms() if timestamps_ms is None else whole(_TIME, timestamps_ms, MAX_TIMESTAMP_MS)
            timestamps_ms = pa.repeat(pa.scalar(moment, pa.int64()), rows)
        columns = [
            pa.nulls(rows, pa.binary()) if keys is None else _column(keys, pa.binary()),
            _column(values, pa.binary()),
            _timestamps(timestamps_ms),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
            no_headers(rows) if headers is None else _column(headers, HEADERS),
        ]
        table = pa.Table.from_arrays(columns, schema=STORED_SCHEMA)
    except (pa.ArrowException, TypeError, ValueError, UsageError) as error:
        raise UsageError(f"these columns are no records: {error}") from error
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(1, rows * BATCH_BYTES // max(1, table.nbytes)))
    return batches


def no_headers(rows: int) -> pa.Array:
    """Null for each row.

    The children of `pa.nulls` are as long as the array, and stay whole in every batch that is cut from it.
    """
    nothing = [pa.py_buffer(bytes(rows // 8 + 1)), pa.py_buffer(bytes(4 * (rows + 1)))]
    return pa.Array.from_buffers(HEADERS, rows, nothing, rows, children=[pa.nulls(0, HEADERS.value_type)])


def _column(values: pa.Array | pa.ChunkedArray | Sequence[bytes | None], kind: pa.DataType) -> pa.ChunkedArray:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, kind)
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    return chunked if chunked.type == kind else chunked.cast(kind)


def _timestamps(timestamps_ms: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if timestamps_ms.null_count:
        raise ValueError("a timestamp is missing")
    is_number = pa.types.is_integer(timestamps_ms.type)
    times = (timestamps_ms.cast(pa.timestamp("ms", tz="UTC")) if is_number else timestamps_ms).cast(TIMESTAMP)
    for bound_us in pc.min_max(times.cast(pa.int64())).values() if len(times) else ():
        whole(_TIME, bound_us.as_py() // 1000, MAX_TIMESTAMP_MS)
    return times


def fitting_rows(batch: pa.RecordBatch, max_bytes: int, max_records: int) -> int:
    """Number of rows of `batch`, from its first, within `max_bytes` and `max_records`."""
    most: int = max(0, min(batch.num_rows, max_records))
    if batch.slice(0, most).nbytes <= max_bytes:
        return most
    fitting: int = bisect_right(range(1, most + 1), max_bytes, key=lambda rows: batch.slice(0, rows).nbytes)
    return fitting

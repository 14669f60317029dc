"""Kafka's records as Arrow batches of `LOG_SCHEMA`: whole columns, then cut where the partition changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..base import HEADERS, LOG_SCHEMA, TIMESTAMP
from ..columns import MAX_TIMESTAMP_MS, POOL, no_headers

_FIRST, _SECOND = itemgetter(0), itemgetter(1)

Headers = list[tuple[str, bytes | None]]


class Columns(NamedTuple):
    """Records of several partitions, column by column. `timestamps` are (librdkafka's type, milliseconds)."""

    topics: list[str]
    partitions: list[int]
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[tuple[int, int]]
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
        yield RecordRun(columns.topics[begin], columns.partitions[begin], offsets[begin], offsets[end - 1] + 1, part)
        begin = end


def _batch(columns: Columns) -> pa.RecordBatch:
    arrays = [
        _data(columns.keys),
        _data(columns.values),
        _same(columns.topics, pa.string()),
        _same(columns.partitions, pa.int32()),
        pa.array(columns.offsets, pa.int64()),
        _times(list(map(_SECOND, columns.timestamps))),
        _kinds(list(map(_FIRST, columns.timestamps))),
        _headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)


@lru_cache(maxsize=128)
def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """`value` in at least `rows` rows, to be sliced: a new array takes 10 us and more."""
    return pa.repeat(pa.scalar(value, kind), rows)


@lru_cache(maxsize=16)
def _nothing(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


def _more(rows: int) -> int:
    """Length of a cached array for slices of `rows`: one of a few lengths."""
    return 1 << (rows - 1).bit_length()


def _same(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    rows = len(values)
    if values.count(values[0]) == rows:
        return _repeated(values[0], kind, _more(rows)).slice(0, rows)
    return pa.array(values, kind)


def _data(values: Sequence[bytes | None]) -> pa.Array:
    if values[0] is None and values.count(None) == len(values):
        return _nothing(pa.binary(), _more(len(values))).slice(0, len(values))
    return pa.array(values, pa.binary(), memory_pool=POOL)


def _kinds(kinds: Sequence[int]) -> pa.Array:
    """Convert librdkafka's timestamp types, from 1 with 0 for none, to Kafka's: 0 for CreateTime, -1 for none."""
    if kinds.count(kinds[0]) == len(kinds):
        return _repeated(kinds[0] - 1, pa.int32(), _more(len(kinds))).slice(0, len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def _times(times: Sequence[int]) -> pa.Array:
    """Milliseconds as `TIMESTAMP`. A time out of range (producers may write any number) is null, as a missing one."""
    dates: Sequence[int | None] = times
    if min(times) < 0 or max(times) > MAX_TIMESTAMP_MS:
        dates = [time if 0 <= time <= MAX_TIMESTAMP_MS else None for time in times]
    return pc.multiply(pa.array(dates, pa.int64()), 1000).view(TIMESTAMP)  # half the time of casts


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    if headers[0] is None and headers.count(None) == len(headers):
        return no_headers(len(headers))
    rows = [[{"key": name, "value": data} for name, data in row] if row else None for row in headers]
    return pa.array(rows, HEADERS, memory_pool=POOL)


def _ends(columns: Columns) -> list[int]:
    """End indexes of the runs of one partition, in order."""
    topics, partitions = columns.topics, columns.partitions
    rows = len(partitions)
    is_one = topics.count(topics[0]) == rows
    if is_one and partitions.count(partitions[0]) == rows:
        return [rows]
    places: Iterable[Any] = partitions if is_one else zip(topics, partitions, strict=True)
    return list(accumulate(len(list(same)) for _, same in groupby(places)))

"""Records of Kafka as Arrow batches of `LOG_SCHEMA`: whole columns at once, then cut where the partition changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .base import HEADERS, LOG_SCHEMA, TIMESTAMP
from .columns import MAX_TIMESTAMP_MS

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


class Run(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    first: int
    next: int
    batch: pa.RecordBatch


def runs(columns: Columns) -> Iterator[Run]:
    """The same records, cut into runs of one partition; their memory is one batch's."""
    batch = _batch(columns)
    offsets = columns.offsets
    begin = 0
    for end in _ends(columns, batch.column("partition")):
        part = batch if (begin, end) == (0, len(offsets)) else batch.slice(begin, end - begin)
        yield Run(columns.topics[begin], columns.partitions[begin], offsets[begin], offsets[end - 1] + 1, part)
        begin = end


def _batch(columns: Columns) -> pa.RecordBatch:
    kinds, times = zip(*columns.timestamps, strict=True)
    arrays = [
        pa.array(columns.keys, pa.binary()),
        pa.array(columns.values, pa.binary()),
        _topics(columns.topics),
        pa.array(columns.partitions, pa.int32()),
        pa.array(columns.offsets, pa.int64()),
        _times(times),
        _kinds(kinds),
        _headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)


def _topics(topics: Sequence[str]) -> pa.Array:
    if topics.count(topics[0]) == len(topics):
        return pa.repeat(topics[0], len(topics))
    return pa.array(topics, pa.string())


def _kinds(kinds: Sequence[int]) -> pa.Array:
    """librdkafka counts from 1 and has 0 for none; Kafka has 0 for the producer's time, and -1 for none."""
    if kinds.count(kinds[0]) == len(kinds):
        return pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def _times(times: Sequence[int]) -> pa.Array:
    """Milliseconds as `TIMESTAMP`. What is no date (a producer may write any number) is null, as no time at all is."""
    dates: Sequence[int | None] = times
    if min(times) < 0 or max(times) > MAX_TIMESTAMP_MS:
        dates = [time if 0 <= time <= MAX_TIMESTAMP_MS else None for time in times]
    return pc.multiply(pa.array(dates, pa.int64()), 1000).view(TIMESTAMP)  # half of what casts take


def _headers(headers: Sequence[Headers | None]) -> pa.Array:
    if headers.count(None) == len(headers):
        return pa.nulls(len(headers), HEADERS)
    rows = [[{"key": name, "value": data} for name, data in row] if row else None for row in headers]
    return pa.array(rows, HEADERS)


def _ends(columns: Columns, partitions: pa.Array) -> list[int]:
    """Where runs of one partition end, in order."""
    ends: list[int] = pc.run_end_encode(partitions).run_ends.to_pylist()
    topics = columns.topics
    if topics.count(topics[0]) < len(topics):
        changes = {row for row in range(1, len(topics)) if topics[row] != topics[row - 1]}
        ends = sorted(changes.union(ends))
    return ends

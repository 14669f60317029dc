"""Records for the application, built from Arrow columns only when they are returned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.zk.znodes.partitions import TopicPartition

from ..types import Fetch

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of a record; topic and partition are the fetch's."""


class Record(NamedTuple):
    """One record, as it was fetched. `timestamp_ms` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_record = partial(tuple.__new__, Record)
"""`Record._make` without a Python call for each record, which takes as long as all other steps."""


def records_of(fetch: Fetch) -> list[Record]:
    """A fetch's rows as records."""
    records: list[Record] = []
    for batch in fetch.batches:
        records.extend(_records_in(fetch.partition, batch))
    return records


def _records_in(partition: TopicPartition, batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of `batch`, read column by column: rows as dictionaries take twice as long."""
    offsets, stamp_types, keys, values = (
        batch.column(name).to_pylist() for name in ("offset", "timestampType", "key", "value")
    )
    columns = (repeat(partition.topic), repeat(partition.partition), offsets, _stamps(batch), stamp_types)
    return map(_record, zip(*columns, keys, values, _headers(batch), strict=False))


def _stamps(batch: pa.RecordBatch) -> list[int]:
    """Times as numbers: datetimes would need a time zone database, which small images lack."""
    column = batch.column("timestamp").view(pa.int64())
    if column.null_count:
        return [-1 if stamp_us is None else stamp_us // 1000 for stamp_us in column.to_pylist()]
    return [stamp_us // 1000 for stamp_us in column.to_pylist()]


def _headers(batch: pa.RecordBatch) -> Iterable[tuple[tuple[str, Any], ...]]:
    column = batch.column("headers") if "headers" in batch.schema.names else None
    if column is None or column.null_count == len(column):
        return repeat(())
    return [tuple((item["key"], item["value"]) for item in headers or ()) for headers in column.to_pylist()]

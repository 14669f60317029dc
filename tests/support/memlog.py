"""A log in memory, for tests that are about the protocol and not about files."""

from __future__ import annotations

import pyarrow as pa

from consumer.logs.base import LOG_SCHEMA, Fetched, OffsetAndTimestamp, OffsetOutOfRange, PullLog


class MemoryLog(PullLog):
    """Every partition of every topic holds the records `<topic>-<partition>-<offset>`, up to `end`."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.lost_below = 0

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self.lost_below

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        return self.end

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return 0

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return None

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        if offset < self.lost_below:
            raise OffsetOutOfRange(f"{topic}-{partition} begins at {self.lost_below}, and {offset} was asked for")
        last = min(self.end, offset + 100)
        if last <= offset:
            return Fetched([], offset)
        values = [f"{topic}-{partition}-{row}".encode() for row in range(offset, last)]
        return Fetched([batch_of(topic, partition, offset, values)], last)

    def close(self) -> None:
        pass


def batch_of(topic: str, partition: int, first: int, values: list[bytes]) -> pa.RecordBatch:
    """Records of these values from the offset `first` on; the time of each is its offset, in milliseconds."""
    count = len(values)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array([topic] * count),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp": pa.array(range(1000 * first, 1000 * (first + count), 1000), pa.int64()).cast(
            LOG_SCHEMA.field("timestamp").type
        ),
        "timestampType": pa.array([0] * count, pa.int32()),
        "headers": pa.array([None] * count, LOG_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LOG_SCHEMA.names], schema=LOG_SCHEMA)

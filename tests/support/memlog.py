"""A log in memory, for tests that are about the protocol and not about files."""

from __future__ import annotations

import pyarrow as pa

from consumer.logs.base import LOG_SCHEMA, Fetched, OffsetOutOfRange, PullLog


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

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        if offset < self.lost_below:
            raise OffsetOutOfRange(f"{topic}-{partition} begins at {self.lost_below}, and {offset} was asked for")
        last = min(self.end, offset + 100)
        if last <= offset:
            return Fetched([], offset)
        rows = range(offset, last)
        columns = {
            "key": [None for _ in rows],
            "value": [f"{topic}-{partition}-{row}".encode() for row in rows],
            "topic": [topic for _ in rows],
            "partition": [partition for _ in rows],
            "offset": list(rows),
            "timestamp": [row * 1000 for row in rows],
            "timestampType": [0 for _ in rows],
            "headers": [None for _ in rows],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in LOG_SCHEMA]
        return Fetched([pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)], last)

    def close(self) -> None:
        pass

"""Logs in memory, for tests that are about the protocol and not about files."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa

from tests.unit.manual import ManualRuntime
from zk_group.consumer.logs.base import (
    LOG_SCHEMA,
    Fetched,
    LogError,
    OffsetAndTimestamp,
    OffsetOutOfRange,
    PullLog,
    fitting_rows,
)
from zk_group.consumer.membership.start_position import EARLIEST, StartRule, Starts


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


class TimedLog(MemoryLog):
    """A `MemoryLog` whose record n is of `n` seconds since the epoch, and whose oldest ones may be gone.

    :ivar begin: the offset of the oldest record, of every partition.
    :ivar asked: how often it was asked for a place: (what, partition).
    """

    def __init__(self, end: int = 0, begin: int = 0) -> None:
        super().__init__(end)
        self.begin = begin
        self.asked: list[tuple[str, int]] = []

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        self.asked.append(("earliest", partition))
        return self.begin

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        self.asked.append(("latest", partition))
        return self.end

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        self.asked.append(("timestamp", partition))
        return min(self.end, max(self.begin, -(-timestamp_ms // 1000)))

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        offset = self.offset_for_timestamp(topic, topic_id, partition, timestamp_ms)
        return OffsetAndTimestamp(offset, 1000 * offset) if offset < self.end else None

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        if not self.begin <= offset <= self.end:
            raise OffsetOutOfRange(f"offset {offset} of {topic}-{partition}: there is {self.begin} to {self.end}")
        return super().fetch(topic, topic_id, partition, offset, max_bytes)


class SizedLog(MemoryLog):
    """A `MemoryLog` whose partitions hold just what a test appends, and that notes each fetch.

    :ivar fetched: the partition of each fetch, also of those that brought nothing.
    :ivar begin: the offset of the oldest record of each partition that is still there.
    :ivar is_away: whether it refuses to answer.
    :ivar takes_s: the clock that each fetch moves, and by how much.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: defaultdict[int, list[bytes]] = defaultdict(list)
        self.fetched: list[int] = []
        self.begin = 0
        self.is_away = False
        self.takes_s: tuple[ManualRuntime, float] | None = None

    def append(self, partition: int, count: int, size: int = 10) -> None:
        """Add records, each of so many bytes."""
        self.records[partition] += [b"x" * size] * count

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self.begin

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        return len(self.records[partition])

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return min(timestamp_ms, len(self.records[partition]))

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        self.fetched.append(partition)
        if self.takes_s is not None:
            self.takes_s[0].sleep(self.takes_s[1])
        if self.is_away:
            raise LogError("the log is away")
        if offset < self.begin:
            raise OffsetOutOfRange(f"offset {offset} of {topic}-{partition}: there is {self.begin} on")
        values = self.records[partition][offset : offset + 2000]
        if not values:
            return Fetched([], offset)
        batch = batch_of(topic, partition, offset, values)
        batch = batch.slice(0, max(1, fitting_rows(batch, max_bytes)))
        return Fetched([batch], offset + batch.num_rows)


# Where the members of a test's group begin, when the test is about something else.
AT_THE_BEGINNING = Starts(MemoryLog(), StartRule(None, EARLIEST))
from_the_beginning = AT_THE_BEGINNING.find

"""A log in memory whose partitions hold just what a test appends, and that notes each fetch."""

from __future__ import annotations

from collections import defaultdict

from consumer.logs.base import Fetched, LogError, OffsetAndTimestamp, OffsetOutOfRange, PullLog, fitting_rows
from tests.support.memlog import batch_of
from tests.unit.manual import ManualRuntime


class SizedLog(PullLog):
    """Records of partitions of one topic.

    :ivar fetched: the partition of each fetch, also of those that brought nothing.
    :ivar begin: the offset of the oldest record of each partition that is still there.
    :ivar is_away: whether it refuses to answer.
    :ivar takes_s: the clock that each fetch moves, and by how much.
    """

    def __init__(self) -> None:
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

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return None

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

    def close(self) -> None:
        pass

"""A log in memory that begins somewhere, and whose records have times: for tests of where consumers start."""

from __future__ import annotations

from consumer.logs.base import Fetched, OffsetAndTimestamp, OffsetOutOfRange
from tests.support.memlog import MemoryLog


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

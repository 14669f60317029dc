"""The records fetched since the last seal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.segments import Missing, SealedRange

from ..types import Fetch


class OpenSegment:
    """The records fetched since the last seal, by partition."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._ranges: dict[TopicPartition, SealedRange] = {}
        self._missing: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, list[pa.RecordBatch]] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._ranges

    def add(self, fetch: Fetch) -> None:
        """Add a fetch; it begins at the partition's end here."""
        (topic, number), known = fetch.partition, self._ranges.get(fetch.partition)
        first = known.first if known else fetch.first
        self._ranges[fetch.partition] = SealedRange(topic, fetch.topic_id, number, first, fetch.next)
        self._batches.setdefault(fetch.partition, []).extend(fetch.batches)
        rows = fetch.rows
        self._missing[fetch.partition] = self._missing.get(fetch.partition, 0) + fetch.next - fetch.first - rows
        self.rows += rows
        self.nbytes += fetch.nbytes

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions, which have no records here, only offsets without one."""
        for partition in partitions:
            for kept in (self._ranges, self._missing, self._batches):
                kept.pop(partition, None)

    @property
    def ranges(self) -> tuple[SealedRange, ...]:
        """The offsets of each partition, in order."""
        return tuple(self._ranges[partition] for partition in sorted(self._ranges))

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The number of offsets without a record, for ranges that have any."""
        return tuple(Missing(*partition, count) for partition, count in sorted(self._missing.items()) if count)

    @property
    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records, grouped by partition."""
        return (batch for partition in sorted(self._batches) for batch in self._batches[partition])

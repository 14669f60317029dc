"""Types shared by members, fetchers and sealers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from coordinator.zk.znodes.partitions import TopicPartition


class Position(NamedTuple):
    """A place in a partition: the next offset to fetch, in the topic of that id."""

    topic_id: str
    offset: int


@dataclass(frozen=True)
class Fetch:
    """Fetched records of one partition: consecutive batches, `first` up to, not including, `next`.

    Measuring a batch takes Arrow about ten microseconds: that is done once.
    """

    partition: TopicPartition
    topic_id: str
    first: int
    next: int
    batches: list[pa.RecordBatch]

    @cached_property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)


class Jump(NamedTuple):
    """Fetching of a partition continues at `after` instead of `before`."""

    topic_id: str
    before: int
    after: int


Offsets = Mapping[TopicPartition, int]
NO_OFFSETS: Offsets = {}

"""The state of one assigned partition of Kafka."""

from __future__ import annotations

from enum import Enum, auto

import pyarrow as pa

from coordinator.zk.znodes.partitions import TopicPartition

from ...types import Fetch
from ..base import LogError
from .arrow_batches import RecordRun


class FetchState(Enum):
    """What becomes of a partition's records. `KafkaSource` is the only caller of the methods that change it.

    WAITING     no client, or no such topic yet: assigned when both are there
    ASSIGNED    librdkafka fetches it
    YIELDING    has got more than its share: unassigned until the starved ones have had theirs
    FAILED      cannot be fetched: unassigned, and assigned again at `retry_at`
    RELEASED    over: records that still arrive are dropped
    """

    WAITING = auto()
    ASSIGNED = auto()
    YIELDING = auto()
    FAILED = auto()
    RELEASED = auto()


class Partition:
    """One assigned partition.

    :ivar position: the offset of the next record that is returned.
    :ivar tail: the offset of the next record that librdkafka returns; those between wait for their confirmation.
    :ivar retry_at: when a `FAILED` one is assigned again.
    """

    def __init__(self, key: TopicPartition, topic_id: str, position: int) -> None:
        self.key = key
        self.topic_id = topic_id
        self.position = self.tail = position
        self.state = FetchState.WAITING
        self.retry_at = float("-inf")

    @property
    def topic(self) -> str:
        return self.key.topic

    @property
    def number(self) -> int:
        return self.key.partition

    @property
    def is_assigned(self) -> bool:
        return self.state is FetchState.ASSIGNED

    def assigned(self) -> None:
        """librdkafka fetches it from `tail` on."""
        self.state = FetchState.ASSIGNED

    def suspended(self, state: FetchState, retry_at: float = float("inf")) -> None:
        """librdkafka does not fetch it any more; records that were received are returned."""
        self.state, self.retry_at = state, retry_at

    def restarted(self) -> None:
        """Its received records were dropped: they are fetched again."""
        self.state, self.tail = FetchState.WAITING, self.position

    def received(self, run: RecordRun) -> Fetch | None:
        """The fetch of received records; None when all of them are here already, as after a new beginning."""
        batch = run.batch
        if run.first < self.tail:
            offsets = batch.column("offset").to_pylist()
            batch = batch.slice(next((row for row, offset in enumerate(offsets) if offset >= self.tail), len(offsets)))
            if not batch.num_rows:
                return None
        return self._moved(run.next, [batch])

    def ended(self, offset: int) -> Fetch | None:
        """The fetch of the offsets before the partition's end, which have no record (markers, aborted records)."""
        return self._moved(offset, []) if offset > self.tail else None

    def _moved(self, following: int, batches: list[pa.RecordBatch]) -> Fetch:
        fetch = Fetch(self.key, self.topic_id, self.tail, following, batches)
        self.tail = following
        return fetch


class Failure(LogError):
    """A partition's error in the order of its records: it holds once these have been returned.

    :ivar retry_s: seconds after which the partition is assigned again; None when librdkafka continues by itself.
    """

    def __init__(self, text: str, retry_s: float | None) -> None:
        super().__init__(text)
        self.retry_s = retry_s


class OutOfRange(Failure):
    """The broker does not have the offset; whether it is out of range is looked up when its turn comes."""

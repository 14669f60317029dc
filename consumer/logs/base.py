"""The interfaces of a log: lookups of offsets, the source of a reader's records, and errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.znodes.partitions import TopicPartition

from ..types import Fetch, Position

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

LOG_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""The schema of a fetched batch: the columns of Spark's Kafka source in their order, with Spark's Arrow types.

`timestampType` is Kafka's: 0 when the producer set the time, 1 when the log did. A record without headers has null.
"""


class LogError(CoordinatorError):
    """A log cannot be read or written; the message names the file and the offsets."""


class OffsetOutOfRange(LogError):
    """An offset before the earliest or after the latest one; the message has both."""


class UnknownTopic(LogError):
    """The log has no topic of this name with this id: it was deleted, or never written to."""


class Fetched(NamedTuple):
    """The result of one fetch: batches of `LOG_SCHEMA` in the order of their offsets, and the next offset."""

    batches: list[pa.RecordBatch]
    next_offset: int


class OffsetAndTimestamp(NamedTuple):
    """A record: its offset, and its time in milliseconds since the epoch. As kafka-python's."""

    offset: int
    timestamp: int


class Log(Protocol):
    """A log of topics. A topic is a name and an id: recreated under its name it is another topic.

    Every method raises `UnknownTopic` when the log has no such topic, and `LogError` when its data cannot be read.
    Safe to call from several threads.
    """

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset of the oldest record; `latest` when there is none."""

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset of the next record to be written."""

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        """The first offset with a record of `timestamp_ms` (since the epoch) or later; `latest` without one."""

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record of `timestamp_ms` (since the epoch) or later; None without one."""

    def close(self) -> None:
        """Free all resources. Batches that were returned stay valid."""


class Source(Protocol):
    """The records of one reader's partitions, as they come. Not for several threads."""

    def assign(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these partitions too, from these positions; one that is assigned already continues there."""

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop their records that were not returned."""

    def poll(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """Records of any assigned partitions, at most one fetch of each. Does not block.

        :param max_bytes: Arrow memory of all fetches; one record may exceed it. 0 for a reader whose buffer is full.
        :param wanted: the partitions of which the reader wants records now; all when it is None. A log that pushes may
            return records of others, too.
        """

    @property
    def is_pending(self) -> bool:
        """Whether records have been received that one of the next polls returns."""

    @property
    def problems(self) -> Mapping[TopicPartition, CoordinatorError | OSError]:
        """Assigned partitions that cannot be fetched now, each with the reason. Their earlier records were returned."""


class PullLog(Log, Protocol):
    """A log whose partitions are fetched one by one."""

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """Records from `offset` on, up to both limits, but at least one if there is one.

        Does not block; returns no batches when there is no record at `offset` yet, at little cost.

        :param max_bytes: Arrow memory of all batches.
        :raises OffsetOutOfRange: when `offset` is before the earliest or after the latest one.
        """


@runtime_checkable
class Pushes(Protocol):
    """A log that prefetches the records of all assigned partitions."""

    def source(self, limits: FetchLimits) -> Source:
        """The source of one reader; a log has one at a time."""


class FetchLimits(NamedTuple):
    """Limits of one fetch besides its bytes.

    :ivar max_partition_bytes: Arrow memory of one partition's records, where each partition is fetched by itself.
    :ivar max_s: seconds after which a fetch that has records ends.
    """

    max_partition_bytes: int = 1 << 31
    max_s: float = inf


class TopicIdPartition(NamedTuple):
    """A partition of a topic with an id."""

    topic: str
    topic_id: str
    partition: int


@runtime_checkable
class AnswersForMany(Protocol):
    """A log that looks up the ends of many partitions in one request."""

    def latest_of(self, places: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int | CoordinatorError]:
        """The `latest` of each, or what it would raise."""


def knows_topics(source: Log) -> bool:
    """Whether a topic unknown to a log may exist: a broker that has just started knows none."""
    return bool(getattr(source, "knows_topics", False))


def outages_of(source: Log) -> int:
    """Number of outages of a log's servers; 0 for a log without servers."""
    return int(getattr(source, "outages", 0))


def ends_of(source: Log, places: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int | CoordinatorError]:
    """The `latest` of each partition, or what it raised; one question where the log can answer so."""
    if isinstance(source, AnswersForMany):
        return source.latest_of(places)
    return {place: _end_of(source, place) for place in places}


def _end_of(source: Log, place: TopicIdPartition) -> int | CoordinatorError:
    try:
        return source.latest(*place)
    except CoordinatorError as error:
        return error
    except OSError as error:
        return CoordinatorError(str(error))

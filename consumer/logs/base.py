"""The interface of a log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError

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

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """Records from `offset` on, up to both limits, but at least one if there is one.

        Does not block; returns no batches when there is no record at `offset` yet, at little cost.

        :param max_bytes: Arrow memory of all batches.
        :raises OffsetOutOfRange: when `offset` is before the earliest or after the latest one.
        """

    def close(self) -> None:
        """Free all resources. Batches that were returned stay valid."""


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


@runtime_checkable
class FetchesAhead(Protocol):
    """A log that prefetches, and must be notified when a partition is revoked."""

    def released(self, topic: str, partition: int) -> None:
        """Stop prefetching a partition and drop its buffered records, until it is fetched again."""


def released(source: Log, topic: str, partition: int) -> None:
    """Notify a prefetching log that a partition is revoked."""
    if isinstance(source, FetchesAhead):
        source.released(topic, partition)


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

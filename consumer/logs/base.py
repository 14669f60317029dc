"""The small interface behind which everything stands that can be fetched."""

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
"""A fetched batch: the columns of Spark's Kafka source in their order, as Spark writes their types in Arrow.

`timestampType` is Kafka's: 0 when the producer set the time, 1 when the log did. A record without headers has null.
"""


class Fetched(NamedTuple):
    """What one fetch brought: batches of `LOG_SCHEMA` in the order of their offsets, and where to go on."""

    batches: list[pa.RecordBatch]
    next_offset: int


class OffsetAndTimestamp(NamedTuple):
    """A record: its offset, and its time in milliseconds since the epoch. As kafka-python's."""

    offset: int
    timestamp: int


class Log(Protocol):
    """A log of topics. A topic is a name and an id: made anew under its name it is another topic.

    Every method raises `UnknownTopic` when the log has no such topic, and `LogError` when what it has cannot be read.
    Safe to call from several threads.
    """

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset of the oldest record that is still there; `latest` when there is none."""

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset that the next record to be written will have."""

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        """The first offset whose record is of `timestamp_ms` (since the epoch) or later; `latest` when none is."""

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record of `timestamp_ms` (since the epoch) or later; None when none is."""

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """Records from `offset` on, as many as there are within both limits, but at least one if there is one.

        Returns at once, with no batches when nothing is at `offset` yet; asking again then costs little.

        :param max_bytes: of Arrow memory, over all batches.
        :raises OffsetOutOfRange: when `offset` is before the earliest or after the latest one.
        """

    def close(self) -> None:
        """Free everything. Batches that were handed out stay good."""


class Place(NamedTuple):
    """A partition of a topic with an id."""

    topic: str
    topic_id: str
    partition: int


@runtime_checkable
class AnswersForMany(Protocol):
    """A log that tells the ends of many partitions in about the time of one."""

    def latest_of(self, places: Iterable[Place]) -> dict[Place, int | CoordinatorError]:
        """The `latest` of each, or what it would raise."""


@runtime_checkable
class FetchesAhead(Protocol):
    """A log that fetches before it is asked, and is told when a partition is given up."""

    def released(self, topic: str, partition: int) -> None:
        """It is fetched no more, and nothing of it waits, until it is asked for again, at once perhaps."""


def released(source: Log, topic: str, partition: int) -> None:
    """Tell a log that a partition is given up, where it wants to know."""
    if isinstance(source, FetchesAhead):
        source.released(topic, partition)


def knows_topics(source: Log) -> bool:
    """Whether a topic that a log does not know may be there all the same: a broker that has just started knows none."""
    return bool(getattr(source, "knows_topics", False))


def outages_of(source: Log) -> int:
    """How often the servers of a log did not answer any more; 0 for one that has none."""
    return int(getattr(source, "outages", 0))


def ends_of(source: Log, places: Iterable[Place]) -> dict[Place, int | CoordinatorError]:
    """The `latest` of each partition, or what it raised; one question where the log can answer so."""
    if isinstance(source, AnswersForMany):
        return source.latest_of(places)
    return {place: _end_of(source, place) for place in places}


def _end_of(source: Log, place: Place) -> int | CoordinatorError:
    try:
        return source.latest(*place)
    except CoordinatorError as error:
        return error
    except OSError as error:
        return CoordinatorError(str(error))

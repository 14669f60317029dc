"""The small interface behind which everything stands that can be fetched."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

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

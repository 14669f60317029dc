"""Kafka as a log: lookups of offsets, and the source of its records, over one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coordinator.zk.errors import CoordinatorError

from ..base import FetchLimits, Log, OffsetAndTimestamp, TopicIdPartition
from .connection import Connection
from .offsets import Questions
from .registry import TopicRegistry
from .requests import EARLIEST, LATEST
from .source import KafkaSource


class KafkaLog(Log):
    """Reads Kafka. Its own threads are librdkafka's, and one that closes an idle connection.

    :param find: returns the bootstrap servers, `host:port,host:port`; called again during an outage.
    :param options: librdkafka's; see `kafka_options`.
    :param registry: knows topics' ids while no controller answers.
    :raises UsageError: when librdkafka refuses them.
    """

    knows_topics = True

    def __init__(
        self, find: Callable[[], str], options: Mapping[str, str], registry: TopicRegistry | None = None
    ) -> None:
        self._connection = Connection(find, options, registry)
        self._lookups, self._bulk_lookups = (Questions(self._connection.requests) for _ in range(2))

    @property
    def outages(self) -> int:
        """Number of outages of all brokers, as a source has seen them."""
        return self._connection.health.outages

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self._lookups.one(topic, topic_id, partition, EARLIEST)

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """As in `Log`; with transactions, the last stable offset."""
        return self._lookups.one(topic, topic_id, partition, LATEST)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return self._lookups.one(topic, topic_id, partition, max(0, timestamp_ms))

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return self._lookups.record_of_time(topic, topic_id, partition, max(0, timestamp_ms))

    def latest_of(self, places: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int | CoordinatorError]:
        """See `AnswersForMany`: one request for each broker that leads some."""
        return self._bulk_lookups.many(places, LATEST)

    def source(self, limits: FetchLimits) -> KafkaSource:
        """See `Pushes`."""
        return KafkaSource(self._connection, self._lookups, limits)

    def close(self) -> None:
        self._connection.close()

"""A consumer's events for the history of its process (`drills/checker/history.md`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.zk.runtime import Recorder, Runtime, recorder_in
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import Channel

from .config import ConsumerConfig
from .types import Fetch, Jump, Position


class Trace:
    """Records the events of one consumer."""

    def __init__(self, runtime: Runtime, group: str, consumer: str) -> None:
        self._runtime = runtime
        self._names = {"group": group, "consumer": consumer}

    def registered(self, incarnation: str, session: int) -> None:
        """An incarnation has begun."""
        self._record("registered", incarnation, session=session)

    def over(self, incarnation: str, why: str) -> None:
        """The consumer has learnt that an incarnation has ended."""
        self._record("over", incarnation, why=why)

    def began(self, channel: Channel, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetching of these partitions begins."""
        offsets: dict[str, dict[str, int]] = {}
        for partition, start in sorted(starts.items()):
            offsets.setdefault(partition.topic, {})[str(partition.partition)] = start.offset
        topics = {partition.topic: start.topic_id for partition, start in sorted(starts.items())}
        self._record("begin", channel.incarnation, generation=channel.generation, partitions=offsets, topics=topics)

    def halted(self, lives: Mapping[TopicPartition, str], why: str) -> None:
        """Fetching of these partitions, by the incarnation of each, has ended."""
        by_life: dict[str, dict[str, list[int]]] = {}
        for partition, incarnation in sorted(lives.items()):
            by_life.setdefault(incarnation, {}).setdefault(partition.topic, []).append(partition.partition)
        for incarnation, numbers in by_life.items():
            self._record("halt", incarnation, partitions=numbers, why=why)

    def sought(self, incarnation: str, offsets: Mapping[TopicPartition, int]) -> None:
        """The application has chosen these offsets itself: by a seek, or for a commit."""
        by_topic: dict[str, dict[str, int]] = {}
        for partition, offset in sorted(offsets.items()):
            by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offset
        self._record("sought", incarnation, partitions=by_topic)

    def fetched(self, incarnation: str, fetched: Sequence[Fetch], checked: float) -> None:
        """Records were fetched.

        :param checked: the monotonic time right before the lease was checked for this fetch.
        """
        ranges = [
            {
                **_range(fetch.partition, fetch.topic_id, fetch.first, fetch.next),
                **({} if fetch.rows else {"records": 0}),
            }
            for fetch in fetched
        ]
        self._record("fetch", incarnation, ranges=ranges, checked=checked)

    def returned(
        self, incarnation: str, records: Mapping[TopicPartition, tuple[int, Position]], checked: float
    ) -> None:
        """`poll` returns these records.

        :param records: partition -> the first offset, and the position after its records.
        :param checked: as of `fetched`.
        """
        ranges = [_range(part, after.topic_id, first, after.offset) for part, (first, after) in records.items()]
        self._record("returned", incarnation, ranges=ranges, checked=checked)

    def jumped(self, incarnation: str, jumps: Mapping[TopicPartition, Jump]) -> None:
        """These positions are out of range: fetching continues elsewhere."""
        for partition, jump in sorted(jumps.items()):
            where = {"topic": partition.topic, "topic_id": jump.topic_id, "partition": partition.partition}
            self._record("jump", incarnation, **where, before=jump.before, after=jump.after)

    def _record(self, event: str, incarnation: str, **fields: Any) -> None:
        self._runtime.record(event, **self._names, incarnation=incarnation, **fields)


def _range(partition: TopicPartition, topic_id: str, first: int, following: int) -> dict[str, Any]:
    where = {"topic": partition.topic, "topic_id": topic_id, "partition": partition.partition}
    return {**where, "first": first, "next": following}


def recorder_of(config: ConsumerConfig, kind: str, **more: str) -> Recorder | None:
    """The recorder of a consumer's own process.

    :param more: further fields of its first event.
    :raises UsageError: when the file cannot be written.
    """
    names = {"group": config.group, "consumer": config.consumer}
    return recorder_in(config.history_dir, config.consumer, kind=kind, **names, **more)

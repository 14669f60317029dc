"""Positions, offsets and pauses of a consumer, as with KafkaConsumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from coordinator.zk.errors import UsageError
from coordinator.zk.values import whole
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.records import OffsetRecord

from .config import ConsumerConfig, Subscription
from .fetching.polling import Polling
from .logs import Log, OffsetAndTimestamp, UnknownTopic
from .membership.call_guard import CallGuard, exclusive, shared
from .membership.member import ConsumerMember
from .types import Position

T = TypeVar("T")


class Control:
    """The half of `Consumer` that moves no records. Names and arguments are those of kafka-python's KafkaConsumer.

    Queries about partitions that are not assigned need an assigned partition of that topic: the topic id comes with
    the assignment.
    """

    _calls: CallGuard
    _config: ConsumerConfig
    _log: Log
    _member: ConsumerMember
    _polling: Polling
    _subscription: Subscription

    @property
    def name(self) -> str:
        """The consumer's name in its group: the configuration's, or the one that this consumer has made."""
        return self._config.consumer

    @shared
    def assignment(self) -> PartitionSet:
        """The partitions that are fetched now."""
        return frozenset(self._polling.positions)

    @shared
    def subscription(self) -> frozenset[str]:
        """The subscribed topics; for a wildcard its pattern."""
        return frozenset(self._subscription.topics)

    @property
    @shared
    def retained(self) -> tuple[int, int]:
        """Records that were fetched and not returned yet, and their bytes in memory."""
        return self._polling.retained

    # ---- positions

    @shared
    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that `poll` returns, None when the partition is not assigned."""
        position = self._polling.position(partition)
        return position.offset if position else None

    @shared
    def committed(self, partition: TopicPartition) -> int | None:
        """The offset at which the partition's next owner begins: the committed one, else the group's start
        (`start_position`); None when neither is known.

        Of an assigned partition its channel has the offset, without a request; else ZooKeeper is read.

        :raises StoreError: when ZooKeeper does not answer.
        :raises BadData: when the znode contains no offset.
        """
        channel, store = self._member.channel, self._member.store
        if channel is not None and partition in channel.running:
            return channel.running[partition]
        if store is None:
            raise UsageError("the consumer has no session yet: poll first")
        path = self._member.paths.offset(*partition)
        node = store.get(path)
        return OffsetRecord.parse(path, node.data).offset if node else None

    @shared
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Let the next poll begin at `offset`. Buffered records of the partition are dropped.

        :raises UsageError: when the partition is not assigned, or `offset` is none: a whole number from 0 to 2^63-1.
        """
        self._refuse_in_region("seek")
        self._check_held([partition])
        self._seek({partition: whole("offset", offset)})

    @shared
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the earliest record of each partition; of all assigned ones when none is given.

        :raises UsageError: when one is not assigned.
        :raises LogError: when the log does not answer; nothing has changed then.
        """
        self._seek_all(partitions, self.beginning_offsets)

    @shared
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek to the end of each; otherwise as `seek_to_beginning`."""
        self._seek_all(partitions, self.end_offsets)

    # ---- pauses

    @exclusive
    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until they are resumed or revoked. Their buffered records are kept.

        :raises UsageError: when one is not assigned.
        """
        self._check_held(partitions)
        self._polling.pause(partitions)

    @exclusive
    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these again.

        :raises UsageError: when one is not assigned.
        """
        self._check_held(partitions)
        self._polling.resume(partitions)

    @shared
    def paused(self) -> PartitionSet:
        """The partitions that are paused."""
        return self._polling.paused

    # ---- the log

    @shared
    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the earliest record of each; 0 when nothing was written yet.

        :raises UsageError: when no partition of its topic is assigned.
        :raises LogError: when the log does not answer.
        """
        return self._asked(partitions, self._log.earliest, 0)

    @shared
    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each will have. Raises as `beginning_offsets`."""
        return self._asked(partitions, self._log.latest, 0)

    @shared
    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of that time or later, in milliseconds since the epoch; None without one.

        Raises as `beginning_offsets`, and `UsageError` when a time is none: a whole number from 0 to 2^63-1.
        """
        times_ms = {part: whole("time in milliseconds since 1970", each) for part, each in timestamps_ms.items()}

        def ask(topic: str, topic_id: str, number: int) -> OffsetAndTimestamp | None:
            return self._log.record_of_time(topic, topic_id, number, times_ms[TopicPartition(topic, number)])

        return self._asked(times_ms, ask, None)

    @shared
    def lag(self, partition: TopicPartition) -> int | None:
        """Records from the position to the log's end, None when the partition is not assigned.

        :raises LogError: when the log does not answer.
        """
        position = self.position(partition)
        return None if position is None else max(0, self.end_offsets([partition])[partition] - position)

    # ---- inside

    def _refuse_in_region(self, what: str) -> None:
        """
        :raises UsageError: in a consistent region: positions belong to the application's state there.
        """
        if self._config.region:
            raise UsageError(
                f"{what} is not for a consistent region, whose offsets move with its checkpoints: go back with "
                f"`zk-coordinator regions reset {self._config.region}`"
            )

    def _check_held(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if self._polling.position(partition) is None:
                raise UsageError(f"{partition} is not assigned to this consumer now")

    def _seek_all(
        self,
        partitions: tuple[TopicPartition, ...],
        ask: Callable[[Iterable[TopicPartition]], dict[TopicPartition, int]],
    ) -> None:
        self._refuse_in_region("seek")
        self._check_held(partitions)
        self._seek(ask(partitions or self.assignment()))

    def _sought(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The application has chosen these itself; for the history."""
        if offsets:
            self._member.record(lambda trace, incarnation: trace.sought(incarnation, offsets))

    def _returned(self, records: Mapping[TopicPartition, tuple[int, Position]], checked: float) -> None:
        """`poll` returns these; parameters as of `Trace.returned`."""
        self._member.record(lambda trace, incarnation: trace.returned(incarnation, records, checked))

    @exclusive
    def _seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._check_held(offsets)
        self._sought(offsets)
        for partition, offset in offsets.items():
            self._polling.seek(partition, offset)

    def _asked(
        self, partitions: Iterable[TopicPartition], ask: Callable[[str, str, int], T], of_nothing: T
    ) -> dict[TopicPartition, T]:
        """The answers; `of_nothing` for a partition without any record."""
        answers = {}
        for partition in sorted(partitions):
            try:
                answers[partition] = ask(partition.topic, self._topic_id(partition), partition.partition)
            except UnknownTopic:
                if self._log.knows_topics:
                    raise
                answers[partition] = of_nothing
        return answers

    def _topic_id(self, partition: TopicPartition) -> str:
        position, channel = self._polling.position(partition), self._member.channel
        topic_id = position.topic_id if position else channel.topics.get(partition.topic) if channel else None
        if topic_id is None:
            raise UsageError(f"no partition of topic {partition.topic} is assigned to this consumer now")
        return topic_id

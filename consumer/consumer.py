"""The consumer as a library, with the API of Kafka's: `poll`, `commit`, and callbacks inside `poll`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypedDict, TypeVar, Unpack

from zk_group.coordinator.zk.errors import CoordinatorError, IncarnationOver, SessionLost, StoreError, UsageError
from zk_group.coordinator.zk.process.metrics_server import MetricsServer
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.values import seconds, typed, whole
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, OffsetRecord

from .assignment.base import ClientAssignor
from .assignment.consumers import client_assignment
from .config import ConsumerConfig, Subscription
from .errors import CommitFailed, UnknownMemberId
from .fetching.polling import LOOK_FOR_DATA_S, AutoCommit, Lag, Polling, fetcher_of
from .fetching.record_buffer import Record as Record
from .fetching.record_buffer import records_of as records_of
from .logs import open_log
from .logs.base import Log, OffsetAndTimestamp, OffsetOutOfRange, Position, UnknownTopic
from .membership.call_guard import MemberContext, exclusive, shared
from .membership.member import ConsumerMember
from .membership.offsets import Consumption
from .membership.start_position import Starts
from .metrics import ConsumerMetrics
from .operator.region import RegionMember, final_checkpoint
from .operator.states import State, own_state

log = logging.getLogger(__name__)

T = TypeVar("T")


COMMIT_TRIES = 5
OUTCOME_UNKNOWN = "whether the offsets were committed is not known"


class Callbacks:
    """Rebalance and checkpoint callbacks. All are called inside `poll` or `close`."""

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        """These partitions are fetched from now on."""

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        """These partitions are released after this call: processed records may still be committed here."""

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        """Other members already own these partitions; no commit is possible."""

    # ---- in a consistent region

    def on_drain(self) -> bool | None:
        """A checkpoint has begun: finish what `poll` has returned. An exception makes the consumer leave.

        :returns: False when it is not finished yet: then it is called again, and `poll` returns nothing meanwhile.
        """
        return None

    def on_checkpoint(self, checkpoint: int) -> State:
        """The application's state after exactly the records that `poll` has returned, or below the offsets that it
        returns with the state; for the checkpoint of this number."""
        return State()

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Discard all state and restore this one: that of a checkpoint, 0 for the initial one, for the partitions that
        are assigned now."""


class ConsumerParts(TypedDict, total=False):
    """Keyword options of `Consumer` and `ConsumerOperator`.

    :ivar source: the log to read; the configuration's `log_dir` when omitted.
    :ivar metrics: metrics that several consumers in one process can share. They are served when the configuration
        has a `metrics_port`; give that to one consumer only.
    :ivar assignors: for `assignment` `client`: the strategies that this member supports, the preferred first, instead
        of the installed ones in `protocols`.
    """

    source: Log | None
    open_store: StoreFactory | None
    runtime: Runtime | None
    metrics: ConsumerMetrics | None
    assignors: Sequence[ClientAssignor]


# Large: Kafka's API, with its documentation.
class Consumer:
    """One member of a group. Names and arguments are those of kafka-python's KafkaConsumer.

    `poll`, `commit`, `seek` and `pause` are for one thread at a time, else they raise `ConcurrentModification`; other
    calls, and `close`, are for any thread. After `close` every call raises `Closed`, and in a process that was forked
    meanwhile `Inherited`.

    Positions begin at the group's committed offsets, else at `start_position`, and follow what `poll` returned;
    offsets follow `commit`, or with `enable_auto_commit` what earlier polls returned.

    Queries about partitions that are not assigned need an assigned partition of that topic: the topic id comes with
    the assignment.

    :raises TypeError: for a keyword option that `ConsumerParts` does not have.
    :raises UsageError: when a strategy of `protocols` is not installed for client-side assignment.
    :raises CoordinatorError: when the metrics port cannot be served.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        callbacks: Callbacks | None = None,
        **parts: Unpack[ConsumerParts],
    ) -> None:
        if unknown := sorted(parts.keys() - ConsumerParts.__optional_keys__):
            raise TypeError(f"a consumer has no keyword option {unknown[0]!r}")
        self._config = config = config.named(parts.get("runtime") or ThreadRuntime())
        self._subscription = subscription
        self._runtime = parts.get("runtime") or ThreadRuntime(config.recorder("consumer"))
        self._log = parts.get("source") or open_log(config.log_dir, config.kafka_place)
        metrics = parts.get("metrics") or ConsumerMetrics()
        self._meter = metrics.of(config.group, config.consumer)
        context = self._context = MemberContext(config, self._runtime, self._meter)
        fetcher = fetcher_of(config, self._log, self._meter, self._runtime.monotonic)
        trace = context.trace
        self._polling = Polling(config, fetcher, self._runtime, trace.fetched, trace.jumped, self._may_fetch)
        self._auto_commit = AutoCommit(config, self._runtime, self.commit)
        Lag(self._log, self._polling, self._runtime).reported(self._meter)
        self._meter.reads_buffer(lambda: self._polling.retained, lambda: len(self._polling.paused))
        self._callbacks = callbacks or Callbacks()
        opener = parts.get("open_store") or config.opener(f"consumer {config.consumer}")
        self._calls = context.calls
        self._client = client_assignment(context, self._log, parts.get("assignors", ()))
        self._region = RegionMember(context, self) if config.region else None
        consumption = Consumption(subscription, self, Starts(self._log, config.start_rule, config.region))
        roles = [role for role in (self._client, self._region) if role is not None]
        self._member = ConsumerMember(context, opener, consumption, roles)
        host, port = config.metrics_host, config.metrics_port
        self._server = MetricsServer(metrics.registry, host, port, self._runtime, metrics.unhealthy)
        self._server.start()

    # ---- the application's calls

    @exclusive
    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """Records of this consumer's partitions, as soon as there are any; empty after `timeout_ms` milliseconds.

        Records that an earlier poll left over are returned without a new fetch. At most `max_poll_records` records and
        `fetch_max_bytes` are returned, in `poll_order`; a larger record is returned alone.

        The coordinator's commands are applied and the callbacks called in here. A consumer that has lost its membership
        (`UnknownMemberId`: evicted, session expired, poll interval exceeded) loses its partitions in here, with
        `on_partitions_lost`, and rejoins without an exception.

        :param max_records: limit below `max_poll_records`; 0 only applies commands.
        :raises FencedInstanceId: when a newer process has this consumer's name; so does every later call.
        :raises InconsistentGroupProtocol: when the group has no strategy in common with this consumer.
        :raises GroupMaxSizeReached: when the group is full. After this and the one before, the next poll tries again,
            after a backoff within which it returns nothing.
        :raises NoOffsetForPartition: when the group has no offset for a partition and `auto_offset_reset` is `none`.
        :raises OffsetOutOfRange: when the log does not have an offset, and `auto_offset_reset` is `none` or there is a
            region, which is `Failed` then: another poll obeys the coordinator, which stops all its members.
        :raises AssignmentFailed: when the group's leader gave no assignment, once for each failure; fetching of
            assigned partitions continues.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made, or `NotAuthorized`.
        :raises UsageError: when `timeout_ms` or `max_records` is no number.
        """
        deadline = self._runtime.monotonic() + seconds(timeout_ms)
        most = typed("max_records", max_records, int) if max_records is not None else None
        self._meter.polled()
        self._polling.looks.at_once()
        while not self._calls.is_closing:
            self._member.tend()
            if most != 0 and self._may_fetch() and (self._region is None or self._region.may_take):
                self._auto_commit.if_due()
                if records := self._polled(most):
                    checked = self._runtime.monotonic()
                    if self._may_fetch() and not self._calls.is_closing:
                        self._context.trace.returned(self._polling.ranges_of(records), checked)
                        return records
                    self._polling.put_back(records)  # closed, or the lease expired while the process was suspended
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0:
                return {}
            self._calls.wait(min(left_s, self._polling.looks.wait_s or LOOK_FOR_DATA_S))
        return {}

    def _polled(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        try:
            return self._polling.poll(max_records)
        except OffsetOutOfRange as error:
            if self._region is not None:  # no offset reset: the region needs the records from its cut on
                try:
                    self._member.in_session(self._region.failing(str(error)))
                except CoordinatorError as problem:  # the next poll finds the offset missing again, and reports it
                    log.info("region failure not reported: consumer=%s reason=%s", self._config.consumer, problem)
            raise

    def _may_fetch(self) -> bool:
        return self._member.may_fetch

    @shared
    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the offsets of all records that `poll` has returned, or the given ones.

        :param offsets: partition -> offset of its next record to read.
        :raises UsageError: when one of them is not an offset, and in a consistent region.
        :raises CommitFailed: when nothing was committed: from `UnknownMemberId` when the consumer has lost its
            membership (the next poll rejoins), from `IllegalGeneration` when one of the partitions was revoked (polling
            continues with the others), from `FencedInstanceId` when a newer process has its name. Also when its session
            has expired (from `UnknownMemberId` too) or ZooKeeper does not answer: then the outcome is unknown.
        """
        self._refuse_in_region("commit")
        self._commit(offsets)

    @exclusive
    def _commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        problem: StoreError | None = None
        given = None
        if offsets is not None:
            given = {part: whole(f"offset for {part}", offset) for part, offset in offsets.items()}
        for _ in range(COMMIT_TRIES):
            channel = self._member.channel
            running = channel.running if channel is not None else {}
            after = given
            if after is None:
                after = {part: position.offset for part, position in self._polling.positions.items()}
            moved = {part: offset for part, offset in after.items() if running.get(part) != offset}
            if not moved:
                return
            beyond = {p: o for p, o in moved.items() if given is not None and o > (self.position(p) or 0)}
            self._context.trace.sought(beyond | {p: o for p, o in moved.items() if o < (running.get(p) or 0)})
            try:
                return self._member.advance(moved)
            except IncarnationOver as over:
                raise CommitFailed(f"{type(over).__name__}: {over}; the offsets were not committed") from over
            except SessionLost as lost:
                raise CommitFailed(f"{UNKNOWN_MEMBER_ID}: {lost}; {OUTCOME_UNKNOWN}") from UnknownMemberId(str(lost))
            except StoreError as error:
                problem = error
                self._runtime.sleep(0.05)
        raise CommitFailed(f"{OUTCOME_UNKNOWN}: ZooKeeper does not answer") from problem

    @shared
    def subscribe(self, subscription: Subscription) -> None:
        """Subscribe to other topics instead. The next poll writes the registration, which causes a rebalance.

        :raises UsageError: when an assignor's metadata for it is too large; nothing has changed then.
        """
        self._member.subscribe(subscription)
        self._subscription = subscription

    @shared
    def enforce_rebalance(self) -> None:
        """Request a rebalance although nothing has changed, as in Kafka; the next poll sends the request.

        :raises UsageError: without client-side assignment: the coordinator's assignment would be the same.
        """
        if self._client is None:
            raise UsageError("enforce_rebalance is for client-side assignment: add assignment='client'")
        self._client.enforce_rebalance()
        self._member.rejoin()

    @property
    def member(self) -> ConsumerMember:
        """The membership, for inspection."""
        return self._member

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

    # ---- in a consistent region

    @property
    def region(self) -> RegionMember:
        """This member's part in its consistent region: its state and its drain times.

        :raises UsageError: when the consumer is in no region.
        """
        if self._region is None:
            raise UsageError("the consumer is in no consistent region: add region='NAME'")
        return self._region

    @shared
    def request_checkpoint(self) -> None:
        """Request a checkpoint of the region; the coordinator begins one every `checkpoint_interval_ms`.

        :raises UsageError: when the consumer is in no region.
        :raises StoreError: when ZooKeeper does not answer.
        """
        self._member.in_session(self.region.request_checkpoint)

    @shared
    def request_reset(self, reason: str) -> None:
        """Reset the whole region to its last checkpoint. Raises as `request_checkpoint`."""
        self._member.in_session(lambda store, fenced: self.region.request_reset(store, fenced, reason))

    def on_drain(self) -> bool | None:
        with self._calls.callback("on_drain"):
            return self._callbacks.on_drain()

    def on_checkpoint(self, checkpoint: int) -> State:
        positions = {partition: position.offset for partition, position in self._polling.positions.items()}
        with self._calls.callback("on_checkpoint"):
            return own_state(self._callbacks.on_checkpoint(checkpoint), positions)

    def on_reset(self, checkpoint: int, state: State) -> None:
        with self._calls.callback("on_reset"):
            self._callbacks.on_reset(checkpoint, state)
        self._meter.restored()

    def close(self, save: bool = True) -> None:
        """Leave the group: callbacks, then one commit releases all partitions, then the session ends.

        In a consistent region a checkpoint precedes it. When none is complete within 10 s, what was processed since
        the last one is dropped and processed again (log line `leaving without checkpoint`).

        Safe in a signal handler and in another thread. A `poll` that waits returns at once, empty, and any other call
        as soon as it can; it then closes the consumer before it returns, and the other thread waits for that. A second
        `close` does nothing.

        :param save: False when the application has not processed everything that `poll` returned: none is saved then.
        :raises CoordinatorError: when the call of another thread has not returned within 60 s.
        :raises Exception: what a callback has raised; the consumer has left and is closed all the same.
        """
        self._calls.close(lambda: self._close(save))

    def _close(self, save: bool) -> None:
        self._auto_commit.is_enabled &= save
        with ExitStack() as closing:  # all of them are called, also when a callback raises
            closing.callback(self._log.close)
            closing.callback(self._server.close)
            closing.callback(self._member.close)
            if self._region is not None and save:
                final_checkpoint(self._context, self._member, self._region)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(save=kind is None)

    # ---- the member's calls

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> None:
        self._polling.begin(starts)
        with self._calls.callback("on_partitions_assigned"):
            self._callbacks.on_partitions_assigned(frozenset(starts))

    def revoke(self, partitions: PartitionSet) -> None:
        self._auto_commit.now()
        with self._calls.callback("on_partitions_revoked"):
            self._callbacks.on_partitions_revoked(partitions)
        self._polling.end(partitions)

    def lost(self, partitions: PartitionSet) -> None:
        self._polling.end(partitions)
        with self._calls.callback("on_partitions_lost"):
            self._callbacks.on_partitions_lost(partitions)

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

    @exclusive
    def _seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._check_held(offsets)
        self._context.trace.sought(offsets)
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

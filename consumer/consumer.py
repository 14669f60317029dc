"""The consumer as a library, with the manners of Kafka's: `poll`, `commit`, and callbacks inside `poll`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType

from coordinator.zk.errors import CoordinatorError, IncarnationOver, SessionLost, StoreError, UsageError
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.refusals import UNKNOWN_MEMBER_ID
from coordinator.zk.runtime import Runtime, ThreadRuntime
from coordinator.zk.serving import MetricsServer
from coordinator.zk.store import StoreFactory

from .assignment.base import ClientAssignor
from .assignment.joining import client_assignment
from .auto_commit import AutoCommit
from .config import ConsumerConfig, Subscription
from .control import Control
from .errors import CommitFailed, UnknownMemberId
from .fetcher import LOOK_FOR_DATA_S, Fetcher
from .holder import Start
from .lag import lag_readers
from .logs import Log, OffsetOutOfRange, open_log
from .member import Member
from .metrics import ConsumerMetrics
from .operator.region import RegionMember
from .operator.states import State, own_state
from .polling import Polling
from .records import Record as Record
from .records import records_of as records_of
from .start_position import NONE
from .starts import Starts
from .trace import Trace, recorder_of

log = logging.getLogger(__name__)

COMMIT_TRIES = 5
SAVE_S = 10.0
"""How long `close` waits for a checkpoint of its region."""
ASK_AGAIN_S = 0.5
"""How soon `close` asks again for one that was aborted."""
NOT_KNOWN = "whether the offsets were committed is not known"


class Callbacks:
    """What happens to this consumer's partitions. All are called inside `poll` or `close`."""

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        """These are now fetched."""

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        """These are given up after this call: what was processed may still be committed here."""

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        """These are somebody else's already; nothing can be committed."""

    # ---- in a consistent region

    def on_drain(self) -> bool | None:
        """A checkpoint is due: finish what `poll` has returned. What it raises makes the consumer leave.

        :returns: False when it is not finished yet: then it is called again and again, and `poll` returns nothing
            meanwhile.
        """
        return None

    def on_checkpoint(self, checkpoint: int) -> State:
        """The application's state after exactly the records that `poll` has returned, or those below the offsets that
        it gives with it; for the checkpoint of this number."""
        return State()

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Drop everything and go on from this state: that at a checkpoint, 0 for the initial one, of the partitions
        that are assigned now."""


class Consumer(Control):
    """One member of a group. Not for several threads. What it may be asked besides polling is `Control`'s.

    Positions begin where the group's offsets stand, else where `start_position` says, and follow what `poll` returned;
    offsets follow `commit`, or with `enable_auto_commit` what earlier polls returned.

    :param source: where records come from; the configuration's `log_dir` when it is not given.
    :param metrics: what is counted and measured, for several consumers in one process to share. It is served when the
        configuration has a `metrics_port`; give that to one of them.
    :param assignors: for `assignment` `client`: the strategies that this member supports, the preferred first, instead
        of those that `protocols` names and that are installed.
    :raises UsageError: when a strategy of `protocols` is not installed for client-side assignment.
    :raises CoordinatorError: when it cannot be served there.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        callbacks: Callbacks | None = None,
        source: Log | None = None,
        open_store: StoreFactory | None = None,
        runtime: Runtime | None = None,
        metrics: ConsumerMetrics | None = None,
        assignors: Sequence[ClientAssignor] = (),
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._runtime = runtime or ThreadRuntime(recorder_of(config, "consumer"))
        self._log = source or open_log(config.log_dir, config.kafka_place)
        self._trace = Trace(self._runtime, config.group, config.consumer)
        metrics = metrics or ConsumerMetrics()
        self._meter = metrics.of(config.group, config.consumer)
        fetcher = Fetcher(self._log, self._meter, NONE if config.region else config.auto_offset_reset)
        self._polling = Polling(
            config,
            fetcher,
            self._runtime,
            lambda fetched: self._member.fetched(fetched),
            lambda jumps: self._member.jumped(jumps),
        )
        self._auto_commit = AutoCommit(config, self._runtime, self.commit)
        self._meter.reads_log(*lag_readers(self._log, self._polling, self._runtime))
        self._meter.reads_buffer(lambda: self._polling.retained, lambda: len(self._polling.paused))
        self._callbacks = callbacks or Callbacks()
        opener = open_store or kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
        starts = Starts(self._log, config.start_rule)
        self._client = client_assignment(config, self._runtime, self._log, lambda: self._member.wake.set(), assignors)
        self._region = RegionMember(config, self._runtime, self) if config.region else None
        self._member = Member(
            config,
            subscription,
            opener,
            self._runtime,
            self,
            starts,
            self._meter,
            client=self._client,
            region=self._region,
        )
        if self._region is not None:
            region = self._region
            region.wake = lambda: self._member.wake.set()
            self._meter.reads_drains(lambda: region.drain_ms, lambda: region.longest_drain_ms)
        self._server = MetricsServer(metrics.registry, config.metrics_host, config.metrics_port, self._runtime)
        self._server.start()

    # ---- what an application calls

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """Records that nobody else gets, as soon as there are any; empty when `timeout_ms` milliseconds are over.

        What an earlier poll left over is returned without a fetch before it. At most `max_poll_records` records and
        `fetch_max_bytes` are returned, in `poll_order`; a record that is larger comes alone.

        Commands of the coordinator are obeyed in here, and the callbacks called. A consumer that is no member any more
        (`UnknownMemberId`: evicted, its session ended, not polled for too long) loses its partitions in here, with
        `on_partitions_lost`, and rejoins; that raises nothing.

        :param max_records: at most so many, and never more than `max_poll_records`; with 0 it only obeys commands.
        :raises FencedInstanceId: when a newer process has this consumer's name; so does every later call.
        :raises InconsistentGroupProtocol: when the group has no strategy in common with this consumer.
        :raises GroupMaxSizeReached: when the group is full. After this and the one before, polling again tries again,
            after a backoff within which it returns nothing.
        :raises NoOffsetForPartition: when the group has no offset for a partition and `auto_offset_reset` is `none`.
        :raises OffsetOutOfRange: when the log does not have an offset and `auto_offset_reset` is `none`.
        :raises AssignmentFailed: when the group's leader gave no assignment, once for each failure; what is assigned
            is fetched on.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made.
        """
        self._meter.polled()
        deadline = self._runtime.monotonic() + timeout_ms / 1000
        self._polling.look()
        while True:
            self._member.tend()
            if max_records != 0 and self._may_fetch() and (self._region is None or self._region.may_take):
                self._auto_commit.if_due()
                if records := self._polled(max_records):
                    if self._may_fetch():
                        return records
                    self._polling.put_back(records)  # the process slept over the end of its lease
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0:
                return {}
            self._member.wake.wait(min(left_s, self._polling.wait_s or LOOK_FOR_DATA_S))

    def _polled(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        try:
            return self._polling.poll(max_records)
        except OffsetOutOfRange as error:
            if self._region is not None:  # never a jump: what the cut says has to come, or nothing
                self._member.in_session(self._region.failing(str(error)))
            raise

    def _may_fetch(self) -> bool:
        return self._member.may_fetch

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Make the offsets of everything that `poll` has returned the group's, or those that are given.

        :param offsets: partition -> the offset of the next record that is to be read of it.
        :raises UsageError: when one of them is no offset, and in a consistent region.
        :raises CommitFailed: when nothing was committed: from `UnknownMemberId` when the consumer is no member any
            more (poll, and it rejoins), from `IllegalGeneration` when it no longer runs one of the partitions (poll,
            and it goes on with the others), from `FencedInstanceId` when a newer process has its name. Also when its
            session is over (from `UnknownMemberId` too) or ZooKeeper does not answer, and nobody knows.
        """
        self._refuse_in_region("commit")
        problem: StoreError | None = None
        wanted = checked(offsets) if offsets is not None else None
        for _ in range(COMMIT_TRIES):
            channel = self._member.channel
            running = channel.running if channel is not None else {}
            after = wanted
            if after is None:
                after = {part: position.offset for part, position in self._polling.positions.items()}
            moved = {part: offset for part, offset in after.items() if running.get(part) != offset}
            if not moved:
                return
            if channel and (back := {p: o for p, o in moved.items() if o < (running.get(p) or 0)}):
                self._trace.sought(channel.incarnation, back)
            try:
                return self._member.advance(moved)
            except IncarnationOver as over:
                raise CommitFailed(f"{type(over).__name__}: {over}; the offsets were not committed") from over
            except SessionLost as lost:
                raise CommitFailed(f"{UNKNOWN_MEMBER_ID}: {lost}; {NOT_KNOWN}") from UnknownMemberId(str(lost))
            except StoreError as error:
                problem = error
                self._runtime.sleep(0.05)
        raise CommitFailed(f"{NOT_KNOWN}: ZooKeeper does not answer") from problem

    def subscribe(self, subscription: Subscription) -> None:
        """Subscribe to other topics instead. The next poll tells the group, which is rebalanced.

        :raises UsageError: when an assignor's metadata for it is too large; nothing has changed then.
        """
        self._member.subscribe(subscription)
        self._subscription = subscription

    def enforce_rebalance(self) -> None:
        """Let the group's leader assign again although nothing has changed, as Kafka's; the next poll asks for it.

        :raises UsageError: without client-side assignment: the coordinator would come to the same assignment.
        """
        if self._client is None:
            raise UsageError("enforce_rebalance is for client-side assignment: add assignment='client'")
        self._client.enforce_rebalance()
        self._member.rejoin()

    @property
    def member(self) -> Member:
        """The membership, for those who look inside."""
        return self._member

    # ---- in a consistent region

    @property
    def region(self) -> RegionMember:
        """This member's part in its consistent region: its state, and how long drains took.

        :raises UsageError: when it is in none.
        """
        if self._region is None:
            raise UsageError("the consumer is in no consistent region: add region='NAME'")
        return self._region

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint of the region; one comes by itself every `checkpoint_interval_ms` of the coordinator.

        :raises UsageError: when the consumer is in no region.
        :raises StoreError: when ZooKeeper does not answer.
        """
        self._member.in_session(self.region.request_checkpoint)

    def request_reset(self, reason: str) -> None:
        """Let the whole region go back to its last checkpoint. Raises as `request_checkpoint`."""
        self._member.in_session(lambda store, fenced: self.region.request_reset(store, fenced, reason))

    def on_drain(self) -> bool | None:
        """See `Application`."""
        return self._callbacks.on_drain()

    def on_checkpoint(self, checkpoint: int) -> State:
        """See `Application`."""
        positions = {partition: position.offset for partition, position in self._polling.positions.items()}
        return own_state(self._callbacks.on_checkpoint(checkpoint), positions)

    def on_reset(self, checkpoint: int, state: State) -> None:
        """See `Application`."""
        self._callbacks.on_reset(checkpoint, state)
        self._meter.restored()

    def close(self, save: bool = True) -> None:
        """Leave the group: callbacks, then everything is given up in one commit, then the session ends.

        In a consistent region a checkpoint comes before it. When none is complete within `SAVE_S`, what was processed
        since the last one is dropped and processed again (log line `leaving without a checkpoint`).

        :param save: False where the application has not processed all that `poll` returned: no checkpoint then.
        """
        if self._region is not None and save:
            self._save()
        self._member.close()
        self._server.close()
        self._log.close()

    def _save(self) -> None:
        """A checkpoint of the region before leaving it. One that is aborted is asked for again while there is time."""
        region = self.region
        if not region.is_ready:
            return  # nothing was taken in
        try:
            problem = self._take_checkpoint(region)
        except CoordinatorError as error:
            problem = str(error)
        if problem:
            log.warning(
                "leaving without a checkpoint: group=%s consumer=%s region=%s since=%d reason=%s",
                self._config.group, self._config.consumer, self._config.region, region.saved, problem,
            )  # fmt: skip

    def _take_checkpoint(self, region: RegionMember) -> str:
        """Why there was none; empty when there was."""
        saved, resets = region.saved, region.resets
        now = ask_at = self._runtime.monotonic()
        until = now + SAVE_S
        while (now := self._runtime.monotonic()) < until:
            store = self._member.store
            if store is None or not region.is_ready or region.resets != resets:
                return "the region is reset"
            if not region.is_in_checkpoint and now >= ask_at:
                if region.has_failed(store):
                    return "the region has failed"
                self.request_checkpoint()
                ask_at = now + ASK_AGAIN_S
            self._member.tend()
            if region.saved != saved:
                return ""
            self._member.wake.wait(0.01)
        return f"none was complete within {SAVE_S:g} s"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(save=kind is None)

    # ---- what the member calls

    def assigned(self, starts: Mapping[TopicPartition, Start]) -> None:
        """See `Holder`."""
        self._polling.begin(starts)
        self._callbacks.on_partitions_assigned(frozenset(starts))

    def revoke(self, partitions: PartitionSet) -> None:
        """See `Holder`."""
        self._auto_commit.now()
        self._callbacks.on_partitions_revoked(partitions)
        self._polling.end(partitions)

    def lost(self, partitions: PartitionSet) -> None:
        """See `Holder`."""
        self._polling.end(partitions)
        self._callbacks.on_partitions_lost(partitions)


def checked(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """
    :raises UsageError: when one is no offset.
    """
    for partition, offset in offsets.items():
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise UsageError(f"{offset!r} is no offset for {partition}: give a whole number, 0 or more")
    return dict(offsets)

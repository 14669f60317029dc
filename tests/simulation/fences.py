"""The design's fences, taken away one by one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import consumer.membership.member
import consumer.membership.offsets
import coordinator.planning.membership
import coordinator.planning.reconciliation
import coordinator.rebalance.rebalancer
from consumer.consumer import Consumer
from consumer.fetching.polling import Polling
from consumer.membership.channel import FencedChannel
from consumer.membership.claims import chunks
from consumer.membership.member import ConsumerMember
from consumer.membership.offsets import CommittedOffsets
from consumer.membership.registration import Keeper
from consumer.sealing.sealer import Sealer
from coordinator.rebalance.group_reader import ChannelReader
from coordinator.retention.segments import SegmentCollector
from coordinator.service import Coordinator
from coordinator.zk.errors import CoordinatorError, Refused
from coordinator.zk.lease import LEASE_SHARE, Heard, Lease
from coordinator.zk.store import Check, SetData
from coordinator.zk.znodes.partitions import NONE, TopicPartition
from coordinator.zk.znodes.records import OffsetRecord
from tests.simulation import znodes
from tests.simulation.links import COMMIT
from tests.simulation.mutation import Patch, constant, nothing, replaced
from tests.simulation.zookeeper import SimulatedEnsemble

# ---- what would hide a hole: with these alone the product is still right


def _collects_only(original: Any) -> Any:
    def sweep(self: Coordinator) -> None:
        while not self._ended.wait(self._term.config.sweep_interval_ms / 1000):
            self._collect(self._collector.collect)

    return sweep


NO_SWEEP: tuple[Patch, ...] = (replaced(Coordinator, "_sweep", _collects_only),)
"""Nothing is read again without a reason: where no event is lost, the watches tell of everything."""


def _late_all_the_same(original: Any) -> Any:
    """What a node had on its way is done although its session has another connection by then, as if it were resent."""

    def receive_late(self: SimulatedEnsemble, request: Any) -> None:
        session = request.link.session
        if request.kind != COMMIT or not session.who.startswith("node"):
            original(self, request)
            return

        def happen() -> None:
            if self.leader is not None and not session.is_over:
                with suppress(Refused):
                    self._commit(request.what, session, None)

        self.scheduler.after(3 * self.scheduler.random.random() ** 2, happen)

    return receive_late


RESENT: tuple[Patch, ...] = (replaced(SimulatedEnsemble, "receive_late", _late_all_the_same),)


def _asks_no_owners(original: Any) -> Any:
    """A partition may be free while an owner znode stands there: the claim will find it in the way."""

    def taken(moves: Any) -> Any:
        return original(replace(moves, snapshot=replace(moves.snapshot, owners=NONE)))

    return taken


def _claims_over_owners(original: Any) -> Any:
    def create(self: Any, operation: Any) -> Any:
        if operation.ephemeral and "/owners/" in operation.path and self._find(operation.path) is not None:
            self.delete(operation.path, -1)
            self.delta.paths.pop()
            self.delta.versions.pop()
        return original(self, operation)

    return create


NO_OWNERS_IN_THE_WAY: tuple[Patch, ...] = (replaced(znodes._Work, "create", _claims_over_owners),)
"""An owner znode is no second lock: whoever claims has it. What is free is handed on, all the same, only then."""


def _looks_rarely(original: Any) -> Any:
    """Once a session timeout, even where that is later than its eviction."""

    def look_again(self: Keeper, store: Any) -> None:
        now = self._runtime.monotonic()
        if now - self._last_look >= store.negotiated_timeout_s:
            self._last_look = now
            self._wake.set()

    return look_again


def _touches_late(original: Any) -> Any:
    """A sign of life is written under the fence: who gives one hears that it has been evicted. Mostly that is soon."""

    def touch_or_leave(self: Keeper, store: Any, fenced: Any) -> None:
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if now - self.last_poll >= limit_s or now - self.last_commit >= 0.75 * limit_s:
            original(self, store, fenced)

    return touch_or_leave


LOOKS_RARELY: tuple[Patch, ...] = (replaced(Keeper, "_look_again", _looks_rarely),)
TOUCHES_LATE: tuple[Patch, ...] = (replaced(Keeper, "_touch_or_leave", _touches_late),)

OWNERS_NOT_ASKED: tuple[Patch, ...] = (
    replaced(coordinator.planning.reconciliation, "taken_partitions", _asks_no_owners),
)

SMALL_STEPS: tuple[Patch, ...] = (
    constant(consumer.membership.member, "chunks", partial(chunks, size=1)),
    constant(consumer.membership.offsets, "PARTITIONS_A_STEP", 2),
    constant(coordinator.rebalance.rebalancer, "PARTITIONS_A_STEP", 2),
)
"""A command over two partitions is a large one."""


# ---- the coordinator's multis


def _without_state_version(original: Any) -> Any:
    def with_state(*args: Any) -> Any:
        return [
            replace(op, version=-1) if isinstance(op, SetData) and op.path.endswith("/state") else op
            for op in original(*args)
        ]

    return with_state


def _marks_die(original: Any) -> Any:
    """Only the coordinator that evicted somebody knows of it."""

    def marks(snapshot: Any, work: Any) -> Any:
        return original(snapshot, work) if snapshot.state.epoch == snapshot.epoch else ()

    return marks


def _keeps_owners(original: Any) -> Any:
    def whole_end(snapshot: Any, paths: Any, end: Any) -> Any:
        return original(snapshot, paths, replace(end, owners=NONE) if end.evicted else end)

    return whole_end


def _withdraws_nothing(original: Any) -> Any:
    def sort_commands(*args: Any) -> Any:
        kept, _ = original(*args)
        return kept, ()

    return sort_commands


def _data_before_commands(original: Any) -> Any:
    def channels(self: ChannelReader) -> Any:
        listing = self._store.children(self._paths.channels)
        names = sorted(listing.names if listing is not None else ())
        nodes = dict(zip(names, self._store.get_many([self._paths.channel(n) for n in names]), strict=True))
        sent = self._sent(names)
        return {n: self._view(n, node, sent.get(n, ())) for n, node in nodes.items() if node is not None}

    return channels


NO_STATE_VERSION: tuple[Patch, ...] = (
    replaced(coordinator.rebalance.rebalancer, "with_state", _without_state_version),
)
MARKS_DIE: tuple[Patch, ...] = (replaced(coordinator.planning.membership, "_keep_marks", _marks_die),)
OWNERS_STAY: tuple[Patch, ...] = (replaced(coordinator.rebalance.rebalancer, "_whole_end", _keeps_owners),)
NOT_WITHDRAWN: tuple[Patch, ...] = (replaced(coordinator.planning.reconciliation, "sort_commands", _withdraws_nothing),)
DATA_FIRST: tuple[Patch, ...] = (replaced(ChannelReader, "read", _data_before_commands),)


# ---- the consumer's multis


def _unfenced(original: Any) -> Any:
    def send(self: FencedChannel, operations: Any, after: Any) -> None:
        free = [
            replace(op, version=-1) if isinstance(op, SetData | Check) and op.path == self._path else op
            for op in operations
        ]
        original(self, free, after)

    return send


def _no_check_of_the_command(original: Any) -> Any:
    def acknowledgement(paths: Any, consumer: str, name: str, is_last: bool) -> Any:
        if is_last:
            return original(paths, consumer, name, is_last)
        return Check(paths.channels, -1)

    return acknowledgement


UNFENCED: tuple[Patch, ...] = (replaced(FencedChannel, "_send", _unfenced),)
IN_PIECES: tuple[Patch, ...] = (replaced(consumer.membership.member, "acknowledgement", _no_check_of_the_command),)


# ---- leases


class _WithoutSync:
    """A store whose `sync` asks nobody."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def sync(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _renewed_by_a_read(original: Any) -> Any:
    def init(self: Lease, store: Any, *rest: Any) -> None:
        original(self, _WithoutSync(store), *rest)

    return init


def _renewed_blindly(original: Any) -> Any:
    def init(self: Lease, store: Any, runtime: Any, read_fence: Any, *rest: Any) -> None:
        original(self, store, runtime, lambda: None, *rest)

    return init


def _counted_at_once(_: Any) -> Any:
    """From the sync that was just answered, whether or not the leader has heard of the session."""
    return lambda self, timeout_s: (self.certain if self.last is None else self.last) + timeout_s * LEASE_SHARE


def _counted_once(_: Any) -> Any:
    """From the renewal before, however long ago the leader has certainly heard of the session."""
    return lambda self, timeout_s: (self.certain if self.before is None else self.before) + timeout_s * LEASE_SHARE


RENEWED_BY_READ: tuple[Patch, ...] = (replaced(Lease, "__init__", _renewed_by_a_read),)
RENEWED_BLINDLY: tuple[Patch, ...] = (replaced(Lease, "__init__", _renewed_blindly),)
COUNTED_AT_ONCE: tuple[Patch, ...] = (replaced(Heard, "until", _counted_at_once),)
COUNTED_ONCE: tuple[Patch, ...] = (replaced(Heard, "until", _counted_once),)


# ---- a consumer's own rules


def _without_a_look_at_the_lease(original: property) -> property:
    def may_fetch(self: ConsumerMember) -> bool:
        fenced, store = self._registrar.live, self.store
        is_ended = fenced is None or fenced.is_ending or store is None or store.lost
        return not is_ended and not (self._region is not None and self._region.is_paused)

    return property(may_fetch)


def _has_polled(original: Any) -> Any:
    def polled(self: Consumer, max_records: int | None) -> Any:
        records = original(self, max_records)
        self.__dict__["_has_polled"] = bool(records)
        return records

    return polled


def _may_fetch_or_has_polled(original: Any) -> Any:
    def may_fetch(self: Consumer) -> bool:
        return self.__dict__.pop("_has_polled", False) or bool(original(self))

    return may_fetch


def _fetch_positions(original: property) -> property:
    """What was fetched, returned or not."""
    return property(lambda self: self._fetcher.positions)


LEASE_IGNORED: tuple[Patch, ...] = (replaced(ConsumerMember, "may_fetch", _without_a_look_at_the_lease),)
RETURNED_LATE: tuple[Patch, ...] = (
    replaced(Consumer, "_polled", _has_polled),
    replaced(Consumer, "_may_fetch", _may_fetch_or_has_polled),
)
FETCHED_COMMITTED: tuple[Patch, ...] = (replaced(Polling, "positions", _fetch_positions),)


# ---- sealing and collecting


def _removes_what_was_sent(original: Any) -> Any:
    def start_over(self: Sealer, reason: str) -> None:
        self._segments._is_sent = False
        original(self, reason)

    return start_over


def _removes_after_a_lost_reply(original: Any) -> Any:
    def fail(self: Sealer, error: Exception) -> None:
        original(self, error)
        if self._segments.pending is not None:
            self._start_over("its commit failed")

    return fail


def _collects_unchecked(original: Any) -> Any:
    def write(self: SegmentCollector, group: Any, record: Any, operations: Any = ()) -> bool:
        some = [op for op in operations if not (isinstance(op, Check) and op.path == group.paths.queries)]
        return bool(original(self, group, record, some))

    return write


def _advances_all_the_same(original: Any) -> Any:
    """What cannot be sealed is dropped, and the offsets go past it."""

    def start_over(self: Sealer, reason: str) -> None:
        pending = self._segments.pending
        ranges = [*(pending.ranges if pending is not None else ()), *self._open.ranges]
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in ranges}
        if offsets and self._member is not None:
            with suppress(CoordinatorError):
                self._member.advance(offsets)
        original(self, reason)

    return start_over


FILE_REMOVED: tuple[Patch, ...] = (
    replaced(Sealer, "_start_over", _removes_what_was_sent),
    replaced(Sealer, "_fail", _removes_after_a_lost_reply),
)
COLLECTED_UNCHECKED: tuple[Patch, ...] = (replaced(SegmentCollector, "_write", _collects_unchecked),)
PAST_DROPPED: tuple[Patch, ...] = (replaced(Sealer, "_start_over", _advances_all_the_same),)


# ---- where a group begins


def _forgets_starts(original: Any) -> Any:
    def standing(self: CommittedOffsets, partition: TopicPartition, channel: Any, node: Any) -> OffsetRecord | None:
        is_start = node is not None and OffsetRecord.parse("", node.data).start
        return None if is_start else original(self, partition, channel, node)

    return standing


def _records_nothing(original: Any) -> Any:
    def begun(self: CommittedOffsets, store: Any, channel: Any, unknown: Any, record: Any) -> Any:
        return original(self, store, channel, unknown, nothing)

    return begun


RESOLVED_ANEW: tuple[Patch, ...] = (replaced(CommittedOffsets, "_standing", _forgets_starts),)
NOT_RECORDED: tuple[Patch, ...] = (replaced(CommittedOffsets, "_begun", _records_nothing),)
LATER_AT_THE_END: tuple[Patch, ...] = (constant(consumer.membership.offsets, "came_later", lambda *_: False),)

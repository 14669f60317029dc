"""Slips of watches and of the request queue, of seals, and of queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.sealing.segment_check
import coordinator.retention.segments
import tests.simulation.tuning
from consumer.sealing.sealer import OpenSegment, Sealer, SegmentCommit, channel_of
from consumer.spark.source.planner import Planner
from consumer.spark.source.query_znode import QueryPost
from consumer.spark.source.segment_index import SealedSegments
from coordinator.listeners.members import MemberListener
from coordinator.rebalance.handlers import Handlers
from coordinator.rebalance.rebalancer import Rebalancer
from coordinator.retention.segments import SegmentCollector
from coordinator.service import Coordinator
from coordinator.term.request_queue import RequestQueue
from coordinator.zk.errors import Refused
from coordinator.zk.store import Create, SessionState, SetData
from coordinator.zk.update import ensure
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR
from tests.simulation.callbacks import Watches
from tests.simulation.fences import NO_SWEEP
from tests.simulation.mutation import Mutation, Patch, constant, nothing, of, replaced
from tests.simulation.slips_gaps import NO_ENDS

# ---- watches, and the queue


def _swallows(original: Any) -> Any:
    def ask(self: Handlers, group: str, reason: str) -> None:
        with self._lock:
            kept = self._groups.get(group)
            is_quiet = kept is not None and kept.quiet_until > self._runtime.monotonic()
        if not is_quiet:
            original(self, group, reason)

    return ask


def _watches_data_once(original: Any) -> Any:
    watched: set[tuple[int, str]] = set()

    def read_some(self: MemberListener, paths: Any, group: Any, consumers: Any, members: Any) -> None:
        new = [name for name in consumers if (id(self), paths.id(name)) not in watched]
        watched.update((id(self), paths.id(name)) for name in new)
        original(self, paths, group, new, members)
        watch, self._on_members = self._on_members, nothing
        try:
            original(self, paths, group, [name for name in consumers if name not in new], members)
        finally:
            self._on_members = watch

    return read_some


def _reads_nothing_again(original: Any) -> Any:
    def on_state(self: Coordinator, state: Any) -> None:
        if state is SessionState.CONNECTED:
            self._on_own_znode(COORDINATOR)
        else:
            original(self, state)

    return on_state


def _watches_no_acknowledgement(original: Any) -> Any:
    return lambda self, decided: (decided.again_s, frozenset())


def _latest_due(original: Any) -> Any:
    def request(self: RequestQueue, group: str, reason: str, delay_s: float = 0.0) -> None:
        with self._changed:
            pending = self._pending.get(group)
            due = self._runtime.monotonic() + delay_s
            left_s = max(pending.due, due) - self._runtime.monotonic() if pending is not None else delay_s
            if pending is not None:
                pending.due = float("inf")
        original(self, group, reason, left_s)

    return request


SILENT_LOSSES: tuple[Patch, ...] = (*NO_SWEEP, constant(Watches, "fire_all", nothing))
"""The store calls no watch when its connection is lost, and forgets none: only a second read shows what has changed."""


# ---- seals


def _two_multis(original: Any) -> Any:
    def commit(self: SegmentCommit, member: Any, segment: Any) -> None:
        self._is_sent = True
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in segment.ranges}
        create = Create(member.paths.segment_prefix, segment.to_bytes(), sequential=True)
        try:
            member.advance(offsets, (), sealed=segment.file)
            member.advance({}, (create,))
        except Refused:
            if channel_of(member).sealed != segment.file:
                raise

    return commit


def _unnamed(original: Any) -> Any:
    """A seal leaves no name in the channel."""

    def commit(self: SegmentCommit, member: Any, segment: Any) -> None:
        self._is_sent = True
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in segment.ranges}
        member.advance(offsets, (Create(member.paths.segment_prefix, segment.to_bytes(), sequential=True),))

    return commit


def _uncompared(original: Any) -> Any:
    def seal(self: Sealer) -> bool:
        channel = self._resolve_seal()
        if not self.is_open:
            return True
        segment = self._segments.pending
        if segment is None:
            segment = self._segments.write(self._membership.paths.group, channel, self._open)
            self._open = OpenSegment()
        if any(TopicPartition(item.topic, item.partition) not in channel.running for item in segment.ranges):
            self._start_over("a partition is gone")
            return True
        self._segments.commit(self._membership, segment)
        self._sealed(segment)
        return True

    return seal


UNNAMED: tuple[Patch, ...] = (replaced(SegmentCommit, "commit", _unnamed),)
UNCOMPARED: tuple[Patch, ...] = (replaced(Sealer, "_seal", _uncompared),)
"""Two rules for one case: a segment whose multi has happened is known by its name, or else by the channel's offsets."""

YOUNG_FILES_TOO: tuple[Patch, ...] = (constant(tests.simulation.tuning, "ORPHAN_AFTER_S", 0.0),)
"""The sweep goes by the channels alone, and not by a file's age."""


NO_GAPS: tuple[Patch, ...] = (constant(SealedSegments, "gaps", lambda *_: []),)
"""A missing number among the segments is not noticed: only `collected` says that some were removed."""


# ---- queries


class _Commits:
    """A store that leaves some operations out of what it commits."""

    def __init__(self, store: Any, is_kept: Any) -> None:
        self._store = store
        self._is_kept = is_kept

    def commit(self, operations: Any) -> Any:
        return self._store.commit([op for op in operations if self._is_kept(op)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _registers_beside_the_set(original: Any) -> Any:
    def register(self: QueryPost, store: Any, *rest: Any) -> None:
        queries = self._paths.queries
        original(self, _Commits(store, lambda op: not (isinstance(op, SetData) and op.path == queries)), *rest)
        self._registered_on = store

    return register


def _without_sync(original: Any) -> Any:
    def refresh(self: SealedSegments, store: Any, force: bool = False) -> None:
        vars(store)["sync"] = nothing
        try:
            original(self, store, force)
        finally:
            del vars(store)["sync"]

    return refresh


def _lists_first(original: Any) -> Any:
    def initial(self: Planner, store: Any) -> Any:
        if self._initial_offset is not None:
            return original(self, store)
        ensure(store, self._paths.skeleton)
        self._segments.refresh(store, force=True)
        self._segments.__dict__["refresh"] = nothing
        try:
            return original(self, store)
        finally:
            del self._segments.__dict__["refresh"]

    return initial


def _fastest(readers: Any) -> int | None:
    finished = max(readers.values(), default=0)
    return finished if finished > 0 else None


def _collected_not_written(original: Any) -> Any:
    def write(self: SegmentCollector, group: Any, record: Any, operations: Any = ()) -> bool:
        kept = replace(record, collected=group.record.collected) if operations else record
        return bool(original(self, group, kept, operations))

    return write


def _finishes_what_is_next(original: Any) -> Any:
    def latest(self: Planner, store: Any, start: Any, max_rows: int) -> Any:
        end = original(self, store, start, max_rows)
        if self._post is not None and end.czxid > start.czxid:
            self._post._published_at = float("-inf")
            self._post.publish(store, end.czxid)
        return end

    return latest


WATCHES: tuple[Mutation, ...] = (
    Mutation(
        "the debounce swallows a change",
        "Rebalance",
        (replaced(Handlers, "ask", _swallows),),
        of("L1", "L2", "S2"),
        ("watchful", "aimed"),
        NO_SWEEP,
    ),
    Mutation(
        "a watch on a registration is set once only",
        "Rebalance",
        (replaced(MemberListener, "_read_some", _watches_data_once),),
        of("L1", "L2", "S2"),
        ("watchful", "led"),
        NO_SWEEP,
    ),
    Mutation(
        "nothing is read again after a reconnect",
        "Failover",
        (replaced(Coordinator, "_on_state", _reads_nothing_again),),
        of("L1", "L2", "S2"),
        ("watchful", "storm"),
        SILENT_LOSSES,
    ),
    Mutation(
        "acknowledgements are not watched",
        "Rebalance",
        (replaced(Rebalancer, "_watch", _watches_no_acknowledgement),),
        of("L1", "L2", "L3"),
        ("watchful", "storm"),
        NO_SWEEP,
    ),
    Mutation(
        "the queue forgets the earliest time",
        "Rebalance",
        (replaced(RequestQueue, "request", _latest_due),),
        of("L1", "L2", "L3"),
        ("watchful", "aimed"),
        NO_SWEEP,
    ),
)

_SWEEP = consumer.sealing.segment_check

SEALS: tuple[Mutation, ...] = (
    *WATCHES,
    Mutation(
        "a seal is two multis", "Seal 2", (replaced(SegmentCommit, "commit", _two_multis),), of("S5"), ("sealing",)
    ),
    Mutation(
        "a seal does not compare the channel's offsets",
        "Seal 2",
        UNCOMPARED,
        of("S5"),
        ("sealing", "storm"),
        UNNAMED,
    ),
    Mutation(
        "a file is sealed twice after a lost reply", "Seal 3", UNNAMED, of("S5"), ("sealing", "storm"), UNCOMPARED
    ),
    Mutation(
        "the sweep removes files of the living",
        "Seal 3",
        (constant(_SWEEP, "_is_over", lambda *_: True),),
        of("S5"),
        ("sealing", "storm"),
        YOUNG_FILES_TOO,
    ),
    Mutation(
        "a query registers beside the set of queries",
        "A query reads 1",
        (replaced(QueryPost, "_register", _registers_beside_the_set),),
        of("S5"),
        ("sealing", "storm"),
    ),
    Mutation(
        "a query lists before it registers",
        "A query reads 1",
        (replaced(Planner, "_initial", _lists_first),),
        of("S5"),
        ("sealing", "storm"),
    ),
    Mutation(
        "a query lists without a sync",
        "A query reads 2",
        (replaced(SealedSegments, "refresh", _without_sync),),
        of("S5"),
        ("sealing", "storm"),
    ),
    Mutation(
        "an older run of a query goes on",
        "A query reads 1",
        (constant(QueryPost, "_check_run", nothing),),
        of("S5"),
        ("sealing", "storm"),
    ),
    Mutation(
        "segments are collected ahead of the slowest query",
        "A query reads 4",
        (constant(coordinator.retention.segments, "finished_by_all", _fastest),),
        of("S5"),
        ("sealing", "storm"),
    ),
    Mutation(
        "a collection does not write how far it came",
        "A query reads 4",
        (replaced(SegmentCollector, "_write", _collected_not_written),),
        of("S5"),
        ("sealing", "storm"),
        NO_GAPS,
    ),
    Mutation(
        "a query that returns too late is not refused",
        "A query reads 5",
        (constant(Planner, "_collected", lambda *_: []),),
        of("S5"),
        ("sealing", "storm"),
        (*NO_GAPS, *NO_ENDS),
    ),
    Mutation(
        "a query has finished what it is about to read",
        "A query reads 4",
        (replaced(Planner, "_latest", _finishes_what_is_next),),
        of("S5"),
        ("sealing", "storm"),
    ),
)

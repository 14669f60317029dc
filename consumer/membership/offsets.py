"""The partitions that a member holds, and their offsets: read after a claim, written when their owner ends.

The channel's running partitions are applied to the member's holder, by its callbacks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.partitions import LOST, NONE, RESET, Discontinuity, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord

from ..config import Subscription
from ..errors import NoOffsetForPartition
from ..logs.base import Position
from .call_guard import MemberContext
from .channel import FencedChannel
from .claims import PARTITIONS_A_STEP, chunks, offset_operations, release_operations
from .roles import OffsetReader, Record, Role
from .start_position import StartOffset, Starts, came_later

log = logging.getLogger(__name__)

Find = Callable[[TopicPartition, str, bool], StartOffset]
"""Where a group begins with a partition: (partition, topic id, whether it was added after the group had begun)."""


READ_AGAIN_S = 1.0
"""Retry interval of an offset that could not be read."""

SLOW_RETRY_S = 3.0
"""The same of all failed ones, after a lookup of seconds: the consumer's thread fetches the others meanwhile."""


class Holder(Protocol):
    """Fetches assigned partitions. All calls come from inside `tend`, `leave` or `close` of the member."""

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Start fetching these partitions."""

    def revoke(self, partitions: PartitionSet) -> None:
        """Before their release: commit or seal what was fetched, or drop it; then stop fetching them."""

    def lost(self, partitions: PartitionSet) -> None:
        """They are lost: drop them and their fetched records."""


class Consumption(NamedTuple):
    """The subscription of a member, and how it consumes.

    :ivar starts: resolves where the group begins with partitions that have no offset.
    :ivar seal_interval_ms: the holder's seal interval, for the registration; 0 when it does not seal.
    """

    subscription: Subscription
    holder: Holder
    starts: Starts
    seal_interval_ms: int = 0


class CommittedOffsets:
    """The offsets of one consumer's partitions.

    The znodes of a partition are known from its claim: another read before each commit would cost more than the commit.
    When a commit is refused after an operator's change, `doubt` makes it read them again.

    :param find: where the group begins with a partition that has no offset.
    """

    reloads = False  # only in a consistent region

    def __init__(self, runtime: Runtime, paths: GroupPaths, find: Find) -> None:
        self._runtime = runtime
        self._paths = paths
        self._find = find
        self._undecided: dict[TopicPartition, NoOffsetForPartition] = {}
        self._published: dict[TopicPartition, int | None] = {}
        self._complaints: dict[TopicPartition, str] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._has_znode: dict[TopicPartition, bool] = {}
        self._is_in_doubt = False

    def doubt(self, path: str) -> bool:
        """A commit was refused at `path`; whether the cached znodes are the cause, and a retry is useful."""
        was_in_doubt = self._is_in_doubt
        self._is_in_doubt |= path.startswith((f"{self._paths.owners}/", f"{self._paths.offsets}/"))
        return self._is_in_doubt and not was_in_doubt

    def believe(self) -> None:
        """A commit succeeded."""
        self._is_in_doubt = False

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions` filled in.

        The group begins a partition that has no offset, or one under another topic id: the start is resolved and
        recorded with `record`, some hundred partitions at a time, before any fetch. An offset that cannot be read
        leaves its partition unfetched, and is logged: starting over would repeat records.

        :raises StoreError: when `record` does; recorded offsets are read by the next call.
        """
        now = self._runtime.monotonic()
        self._forget_others(channel)
        pending = sorted(part for part in partitions if self._not_before.get(part, now) <= now)
        nodes = store.get_many([self._paths.offset(*partition) for partition in pending])
        found: dict[TopicPartition, OffsetRecord] = {}
        unknown: dict[TopicPartition, Node | None] = {}
        for partition, node in zip(pending, nodes, strict=True):
            self._has_znode[partition] = node is not None
            try:
                standing = self._standing(partition, channel, node)
            except CoordinatorError as error:
                self._wait(partition, error)
                continue
            if standing is None:
                unknown[partition] = node
            else:
                found[partition] = standing
                self._settled(partition)
        if unknown:
            found |= self._begun(store, channel, unknown, record)
        offsets = {part: start.offset for part, start in found.items()}
        causes = {part: start.discontinuity for part, start in found.items() if start.discontinuity}
        causes = {**channel.discontinuities, **causes}
        return replace(channel, running={**channel.running, **offsets}, discontinuities=causes)

    def _forget_others(self, channel: Channel) -> None:
        """Bounds memory: removes the notes of partitions that no longer run."""
        self._published = {part: offset for part, offset in self._published.items() if part in channel.running}
        self._complaints = {part: why for part, why in self._complaints.items() if part in channel.running}
        self._not_before = {part: at for part, at in self._not_before.items() if part in channel.running}
        self._undecided = {part: why for part, why in self._undecided.items() if part in channel.running}
        self._has_znode = {part: has for part, has in self._has_znode.items() if part in channel.running}

    def _standing(self, partition: TopicPartition, channel: Channel, node: Node | None) -> OffsetRecord | None:
        """The record in `offsets/`; None when there is none of this topic."""
        if node is None:
            return None
        standing = OffsetRecord.parse(self._paths.offset(*partition), node.data)
        if standing.topic_id != channel.topics.get(partition.topic, ""):
            return None
        if standing.discontinuity == (RESET, 0):  # the operator's own znode: no transaction knows its zxid before
            return replace(standing, discontinuity=Discontinuity(RESET, node.stat.mzxid))
        return standing

    def _begun(
        self, store: Store, channel: Channel, unknown: Mapping[TopicPartition, Node | None], record: Record
    ) -> dict[TopicPartition, OffsetRecord]:
        """Begin with partitions that have no offset in the group, once their start is recorded."""
        topics = sorted({partition.topic for partition in unknown})
        nodes = store.get_many([self._paths.offsets_of(topic) for topic in topics])
        notes = dict(zip(topics, nodes, strict=True))
        # Those that failed before are last: a lookup may take seconds, and this ends after one that did.
        starts = self._found(channel, sorted(unknown, key=lambda part: (part in self._complaints, part)), notes)
        missing = {topic for topic in topics if notes[topic] is None}
        for batch in chunks(starts, PARTITIONS_A_STEP if missing else MAX_OPERATIONS - 10) if starts else ():
            parents = sorted(missing & {partition.topic for partition in batch})
            missing -= set(parents)
            made = [Create(self._paths.offsets_of(topic)) for topic in parents]
            record([*made, *(self._start(part, starts[part], unknown[part]) for part in batch)])
            for partition in batch:
                self._has_znode[partition] = True
                self._settled(partition)
        if starts:
            self._log_starts(starts)
        return starts

    def _found(
        self, channel: Channel, unknown: Iterable[TopicPartition], notes: Mapping[str, Node | None]
    ) -> dict[TopicPartition, OffsetRecord]:
        """Where the group begins. An unavailable log is not waited for at each partition: the next call continues.

        Of a partition that was added later, records before the log's first one are lost. A topic's znode without data
        does not say whether it was.
        """
        starts: dict[TopicPartition, OffsetRecord] = {}
        until = self._runtime.monotonic() + READ_AGAIN_S
        for partition in unknown:
            began = self._runtime.monotonic()
            topic, topic_id = partition.topic, channel.topics.get(partition.topic, "")
            try:
                note = notes[topic]
                is_later = came_later(self._paths.offsets_of(topic), note, topic_id, partition.partition)
                offset, place = self._find(partition, topic_id, is_later)
                lost = Discontinuity(LOST, 0) if offset > 0 and is_later and note and note.data else None
                starts[partition] = OffsetRecord(offset, topic_id, channel.generation, place.text, lost)
            except (CoordinatorError, OSError) as error:
                self._wait(partition, error)
                if (now := self._runtime.monotonic()) - began > READ_AGAIN_S:
                    self._not_before |= dict.fromkeys(self._complaints, now + SLOW_RETRY_S)
            if self._runtime.monotonic() > until:
                break
        return starts

    def _log_starts(self, starts: Mapping[TopicPartition, OffsetRecord]) -> None:
        places = Counter(start.start for start in starts.values())
        log.info(
            "start positions recorded: group=%s partitions=%d positions=%s",
            self._paths.group, len(starts), ",".join(f"{place}:{count}" for place, count in sorted(places.items())),
        )  # fmt: skip
        for partition, start in starts.items():
            log.debug(
                "partition start recorded: partition=%s offset=%d position=%s", partition, start.offset, start.start
            )

    def _start(self, partition: TopicPartition, start: OffsetRecord, node: Node | None) -> Operation:
        """Records a start when there is no offset of this topic; refused when one was written meanwhile."""
        path, data = self._paths.offset(*partition), start.to_bytes()
        return Create(path, data) if node is None else SetData(path, data, node.stat.version)

    def _settled(self, partition: TopicPartition) -> None:
        self._complaints.pop(partition, None)
        self._undecided.pop(partition, None)

    def _wait(self, partition: TopicPartition, error: Exception) -> None:
        problem = str(error)
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition offset unavailable: partition=%s problem=%s", partition, problem)
        self._not_before[partition] = self._runtime.monotonic() + READ_AGAIN_S
        if isinstance(error, NoOffsetForPartition):
            self._undecided[partition] = error

    def refuse_undecided(self, channel: Channel) -> None:
        """
        :raises NoOffsetForPartition: when a running partition has no offset in the group, and must not begin.
        """
        for partition, error in self._undecided.items():
            if partition in channel.running:
                raise error

    def _there(self, store: Store, path: Callable[[str, int], str], parts: Iterable[TopicPartition]) -> PartitionSet:
        """Which of `parts` have a znode at `path`."""
        ordered = sorted(parts)
        nodes = store.get_many([path(*partition) for partition in ordered])
        return frozenset(part for part, node in zip(ordered, nodes, strict=True) if node is not None)

    def release(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition]) -> list[Operation]:
        """The operations that release `partitions`: offsets written, owners removed."""
        released = frozenset(partitions)
        if not self._is_in_doubt and all(p in self._has_znode for p in released if channel.running.get(p) is not None):
            known: PartitionSet = frozenset(part for part in released if self._has_znode.get(part))
            owned: PartitionSet = released
        else:
            known = self._there(store, self._paths.offset, released)
            owned = self._there(store, self._paths.owner, released)
        return release_operations(self._paths, channel, released, known, owned)

    def in_the_way(self, store: Store, partitions: Iterable[TopicPartition]) -> PartitionSet:
        """Which of `partitions` cannot be claimed, because an owner znode exists."""
        return self._there(store, self._paths.owner, partitions) if self._is_in_doubt else NONE

    def ended(
        self, store: Store, consumer: str, channel: Channel, reason: str, error: str = ""
    ) -> tuple[Channel, list[Operation]]:
        """The channel of an incarnation that ends itself, and the operations beside it.

        :param error: Kafka's name for it, empty when the application requested it.

        Partitions that do not fit into one multi stay in `running`: the fence has moved, and the coordinator writes
        them.
        """
        ids: list[Operation] = [Delete(self._paths.id(consumer))]
        if len(channel.running) > PARTITIONS_A_STEP:
            return replace(channel, ended=reason, error=error), ids
        self._is_in_doubt = True  # there is no second try
        released = self.release(store, channel, channel.running)
        return channel.over(reason, error), released + ids

    def publish(self, store: Store, fenced: FencedChannel) -> None:
        """Write offsets changed since the last call into `offsets/`, for readers, under the fence.

        At most one multi's worth; the rest goes with the next call.
        """
        channel = fenced.channel
        moved = [p for p, o in sorted(channel.running.items()) if o is not None and self._published.get(p) != o]
        batch = moved[: MAX_OPERATIONS - 10]
        if operations := offset_operations(self._paths, channel, batch, self._there(store, self._paths.offset, batch)):
            fenced.guarded(operations)
            self._published |= {partition: channel.running[partition] for partition in batch}
            self._has_znode |= dict.fromkeys(batch, True)


class Holding(Role):
    """The role of a member with partitions: those of its holder, each with the incarnation that it was assigned to."""

    def __init__(self, context: MemberContext, holder: Holder, reader: OffsetReader) -> None:
        self._consumer = context.consumer
        self._trace = context.trace
        self._meter = context.meter
        self._holder = holder
        self._reader = reader
        self._held: dict[TopicPartition, str] = {}
        self._held_as: Channel | None = None

    def give_up(self, partitions: PartitionSet) -> None:
        """Stop fetching `partitions`, before the multi that releases them."""
        held = partitions & frozenset(self._held)
        if held:
            self._held_as = None
            self._holder.revoke(held)
            self._record_release(held, "revoked")

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Make the fetchers equal to the channel: running partitions are held, others dropped."""
        if fenced.channel is self._held_as:
            return
        running = fenced.channel.running
        gone = frozenset(part for part, life in self._held.items() if part not in running or life != fenced.incarnation)
        if gone:
            self._holder.lost(gone)
            self._record_release(gone, "lost")
        unread = {part for part, offset in running.items() if offset is None or self._reader.reloads}
        if unread:
            fenced.channel = self._reader.read(store, fenced.channel, unread, fenced.guarded)
        channel = fenced.channel
        starts = {
            part: Position(channel.topics.get(part.topic, ""), offset)
            for part, offset in channel.running.items()
            if part not in self._held and offset is not None and not self._reader.reloads
        }
        if starts:
            self._held |= dict.fromkeys(starts, fenced.incarnation)
            self._trace.began(channel, starts)
            self._holder.assigned(starts)
        self._held_as = channel if len(self._held) == len(channel.running) else None
        topics = {part.topic for part in self._held}
        self._meter.holds(len(self._held), len(channel.refused), channel.generation, len(topics))

    def lost(self, reason: str) -> None:
        held = frozenset(self._held)
        self._held_as = None
        self._meter.holds(0, 0, 0)
        if held:
            log.warning("partitions lost: consumer=%s count=%d reason=%s", self._consumer, len(held), reason)
            self._record_release(held, "lost")
            self._holder.lost(held)

    def _record_release(self, partitions: PartitionSet, why: str) -> None:
        """Record that the holder holds `partitions` no more."""
        self._trace.halted({partition: self._held.pop(partition) for partition in partitions}, why)

"""Sealing: fetched records are written to an immutable file; the multi that moves the offsets makes it a segment.

Exactly once rests on three rules. A file's segment znode and the offsets of its records are written in one fenced
multi. A file whose multi may have happened is never removed, and is committed again only unchanged. The channel is the
truth: a file that does not begin at the channel's offsets is dropped, and its records are fetched again from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from zk_group.coordinator.zk.backoff import Backoff
from zk_group.coordinator.zk.errors import IncarnationOver, Refused, Retryable, SessionLost, StoreError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Create, Store
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.regions import Contribution, Order
from zk_group.coordinator.zk.znodes.segments import SEAL_INTERVAL_MS, Missing, SealedRange, Segment

from ..errors import ForeignFolder, UnknownMemberId
from ..fetching.polling import Fetcher
from ..logs.base import Fetch, Position
from ..membership.call_guard import MemberContext
from ..membership.channel import FencedChannel
from ..membership.contributor import Contributor
from ..membership.member import ConsumerMember
from ..metrics import Meter, unread
from .segment_files import ClaimedFiles, segment_file

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.1, 5.0)
REVOKE_TRIES = 3
SEAL_AGAIN_S = 0.5


class SealConfig(NamedTuple):
    """Seal triggers.

    :ivar seal_interval_ms: milliseconds after the first record of an open segment.
    :ivar seal_bytes: maximum Arrow memory of an open segment; one fetch may exceed it.
    :ivar fetch_max_bytes: bytes of one fetch.
    """

    seal_interval_ms: int = SEAL_INTERVAL_MS
    seal_bytes: int = 32 << 20
    fetch_max_bytes: int = 8 << 20


class Sealer:
    """The `Holder` of a fetcher whose records are sealed. `bind` sets its member.

    A partition's position is always the channel's offset plus its open records.

    :ivar refetched: records that were dropped and fetched again.
    :ivar failed: failed seals, for example with a full disk or without an answer of ZooKeeper.
    :ivar problem: why sealing fails, None while it works.
    :ivar paused: why fetching and sealing are paused, None when they are not. Open records stay open, so that a pause
        costs at most `seal_bytes` of memory; they are dropped, and fetched again later, when their partitions are
        revoked.
    """

    def __init__(
        self,
        config: SealConfig,
        consumer: str,
        runtime: Runtime,
        fetcher: Fetcher,
        files: ClaimedFiles,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter or unread()
        self._config = config
        self._consumer = consumer
        self._runtime = runtime
        self._fetcher = fetcher
        self._segments = SegmentCommit(consumer, runtime, files)
        self._membership: ConsumerMember
        self._open = OpenSegment()
        self._opened_at = 0.0
        self._failures = 0
        self._not_before = float("-inf")
        self.refetched = self.failed = 0
        self.problem: str | None = None
        self.paused: str | None = None

    def bind(self, member: ConsumerMember) -> None:
        """Seal for `member`."""
        self._membership = member

    @property
    def is_open(self) -> bool:
        """Whether there are unsealed records."""
        return self._segments.pending is not None or self._open.rows > 0

    # ---- the slot's loop

    def fetch(self) -> int:
        """Fetch into the open segment, unless it is full or fetching is paused; the number of records.

        :raises OffsetOutOfRange: when the log does not have an offset, and `auto_offset_reset` is `none`.
        """
        room = self._config.seal_bytes - self._open.nbytes
        if self.paused or not self._may_fetch() or self._segments.pending is not None or room <= 0:
            return 0
        self._fetcher.refuse_out_of_range(self._fetcher.out_of_range)
        if self._fetcher.jumps and not self._jump():
            return 0
        checked = self._runtime.monotonic()
        if not self._may_fetch():
            return 0  # the lease has expired during the seal before a jump
        fetched = self._fetcher.fetch(min(room, self._config.fetch_max_bytes))
        if fetched and not self._open.rows:
            self._opened_at = self._runtime.monotonic()
        for fetch in fetched:
            self._open.add(fetch)
        self._membership.trace.fetched(fetched, checked)
        return sum(fetch.rows for fetch in fetched)

    def _jump(self) -> bool:
        """Move the channel over offsets that the log does not have, once earlier records are sealed; whether that is
        done. The segments have a gap there, which queries notice. Offsets without a record right before the gap become
        part of it: no segment has them, and the channel has not moved over them."""
        if self._runtime.monotonic() < self._not_before or (self.is_open and not self.seal()):
            return False
        jumps = self._fetcher.jumps
        try:
            self._open.forget(jumps)
            running = channel_of(self._membership).running
            ends = {part: offset for part in jumps if (offset := running.get(part)) is not None}
            jumps = {part: jump._replace(before=ends.get(part, jump.before)) for part, jump in jumps.items()}
            self._membership.trace.jumped(jumps)
            self._membership.advance(
                {partition: jump.after for partition, jump in jumps.items()},
                lost={partition: jump.before for partition, jump in jumps.items()},
            )
        except IncarnationOver:
            return False
        except StoreError as error:
            self._fail(error)
            return False
        self._fetcher.jump()
        return True

    def seal_if_due(self, interval_ms: int | None = None) -> float:
        """Seal when the interval is over.

        :param interval_ms: the coordinator's interval; the longer of this and the configuration's applies.
        :returns: seconds until the next seal; infinite while nothing is open, or sealing is paused.
        """
        if not self.is_open or self.paused:
            return float("inf")
        now = self._runtime.monotonic()
        seal_at = self._opened_at + max(interval_ms or 0, self._config.seal_interval_ms) / 1000
        if self._segments.pending is not None or self._open.nbytes >= self._config.seal_bytes:
            seal_at = now
        seal_at = max(seal_at, self._not_before)
        if now < seal_at or not self._membership.may_fetch:
            return max(seal_at - now, 0.001)
        self.seal()
        return max(self._not_before - now, 0.001) if self.is_open else float("inf")

    def seal(self) -> bool:
        """Try once to seal the open records; whether none is open afterwards. A failed seal is tried again later."""
        try:
            return self._seal()
        except IncarnationOver:
            return False  # the next `tend` of the member ends the incarnation and its partitions
        except (OSError, StoreError, pa.ArrowException, ForeignFolder) as error:
            self._fail(error)
            return False

    # ---- the member's calls

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> None:
        self._fetcher.begin(starts)

    def revoke(self, partitions: PartitionSet) -> None:
        """Seal all open records, then stop fetching `partitions`; records that cannot be sealed now are dropped.

        While sealing is paused no record is sealed: repeated rebalances would otherwise exceed the group's limits.

        :raises Retryable: when ZooKeeper did not answer: the outcome of the seal is unknown.
        :raises IncarnationOver: when the incarnation is over.
        :raises SessionLost: when the session is over.
        """
        if self.paused:
            self._resolve_seal()
        else:
            self._seal_for_revoke()
        self._fetcher.end(partitions)
        if self.is_open or self._open.ranges:
            why = "sealing is paused" if self.paused else "it could not be sealed before its partitions were given up"
            self._start_over(why)

    def lost(self, partitions: PartitionSet) -> None:
        """Drop the open records; partitions that are still assigned begin again at the channel's offsets."""
        self._fetcher.end(partitions)
        self._start_over("partitions were lost")

    # ---- sealing

    def _may_fetch(self) -> bool:
        return self._membership.may_fetch

    def _seal_for_revoke(self) -> None:
        for _ in range(REVOKE_TRIES):
            try:
                if self._seal():
                    return
            except (Retryable, SessionLost, IncarnationOver):
                raise
            except Refused as refused:
                log.info("seal refused, retrying: consumer=%s refused=%s", self._consumer, refused)
            except (OSError, StoreError, pa.ArrowException, ForeignFolder) as error:
                return self._fail(error)

    def _seal(self) -> bool:
        """One try.

        :raises OSError: when the file could not be written.
        :raises StoreError: when the multi was refused, or its outcome is unknown.
        """
        channel = self._resolve_seal()
        if not self.is_open:
            return True
        segment = self._segments.pending
        if segment is None:
            segment = self._segments.write(self._membership.paths.group, channel, self._open)
            self._open = OpenSegment()
        if any(channel.running.get(TopicPartition(r.topic, r.partition)) != r.first for r in segment.ranges):
            self._start_over("the channel has other offsets")
            return True
        self._segments.commit(self._membership, segment)
        self._sealed(segment)
        return True

    def _resolve_seal(self) -> Channel:
        """The channel, after a seal whose reply was lost has been noted."""
        channel = channel_of(self._membership)
        segment = self._segments.pending
        if segment is not None and channel.sealed == segment.file:
            self._sealed(segment)
        return channel

    def _sealed(self, segment: Segment) -> None:
        self._meter.sealed(self._segments.finish(), segment.rows, segment.size)
        self._failures, self._not_before = 0, float("-inf")
        if self.problem is not None:
            log.info("sealing resumed: consumer=%s", self._consumer)
            self.problem = None

    # ---- failures

    def _fail(self, error: Exception) -> None:
        """Log it once; the backoff grows."""
        self._meter.seal_failed()
        self.failed += 1
        self._failures += 1
        self._not_before = self._runtime.monotonic() + BACKOFF.after(self._failures)
        if self.problem != str(error):
            self.problem = str(error)
            log.error("seal failed, retrying: consumer=%s reason=%s", self._consumer, error)

    def _start_over(self, reason: str) -> None:
        """Drop the open records, and fetch assigned partitions again from the channel's offsets."""
        pending = self._segments.pending
        dropped = self._open.rows + (pending.rows if pending is not None else 0)
        self._open = OpenSegment()
        channel = self._membership.channel
        for partition in self._fetcher.positions:
            offset = channel.running.get(partition) if channel else None
            if offset is not None:
                self._fetcher.rewind(partition, offset)
        if dropped:
            self._meter.dropped(dropped)
            self.refetched += dropped
            log.warning("open segment discarded: consumer=%s records=%d reason=%s", self._consumer, dropped, reason)
        self._segments.drop()


class SlotRegion(Contributor):
    """A slot in a consistent region: a drain seals open records, so that the checkpoint cuts the order of segments.

    Sealed records stay: there is no reset, and starts begin at the group's offsets. Between its contribution and the
    end of the checkpoint a slot seals nothing, so that the segments below the czxid of `completed` contain exactly the
    contributions.
    """

    def __init__(self, context: MemberContext, sealer: Sealer) -> None:
        super().__init__(context)
        self._sealer = sealer
        self._seal_at = float("inf")

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """See `Contributor`; also tries a drain again that could not be applied."""
        super().tend(store, fenced)
        if self._runtime.monotonic() >= self._seal_at:
            self._seal_at = float("inf")
            self._wake.set()

    def _contribution(self, store: Store, fenced: FencedChannel, order: Order) -> Contribution | None:
        """The offsets after the sealed records; None while records are open, or a partition has no start yet."""
        is_sealed = self._sealer.seal()
        channel = fenced.channel
        offsets = {part: offset for part, offset in channel.running.items() if offset is not None}
        if not is_sealed or len(offsets) < len(channel.running):
            self._seal_at = self._runtime.monotonic() + SEAL_AGAIN_S
            return None
        return Contribution(fenced.incarnation, order.reset, offsets, channel.topics)


def channel_of(member: ConsumerMember) -> Channel:
    """
    :raises UnknownMemberId: when the consumer is not registered.
    """
    channel = member.channel
    if channel is None:
        raise UnknownMemberId("the consumer is not registered")
    return channel


class SegmentCommit:
    """The segments of one consumer, one after the other.

    :ivar pending: the segment with a written file and an unconfirmed multi; None without one.
    """

    def __init__(self, consumer: str, runtime: Runtime, files: ClaimedFiles) -> None:
        self._consumer = consumer
        self._runtime = runtime
        self._files = files
        self._number = 0
        self._began_at = 0.0
        self._is_sent = False
        self.pending: Segment | None = None

    def write(self, group: str, channel: Channel, records: OpenSegment) -> Segment:
        """Write `records` into a file, which is pending from then on.

        :raises OSError: when it could not be written.
        """
        self._number += 1
        self._began_at = self._runtime.monotonic()
        file = segment_file(group, self._consumer, channel.incarnation, self._number)
        size = self._files.write(file, records.batches)
        self._is_sent = False
        causes = {part: cause for part, cause in channel.discontinuities.items() if part in records}
        writer = self._consumer, channel.incarnation, channel.generation
        contents = records.rows, size, records.ranges
        self.pending = Segment(file, self._files.url, *contents, *writer, records.missing, causes)
        return self.pending

    def commit(self, member: ConsumerMember, segment: Segment) -> None:
        """Commit the pending segment: its znode, and the offsets after its records.

        :raises StoreError: when the multi was refused, or its outcome is unknown.
        :raises UnknownMemberId: when it was refused, and the consumer has lost its membership.
        """
        self._is_sent = True
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in segment.ranges}
        create = Create(member.paths.segment_prefix, segment.to_bytes(), sequential=True)
        try:
            member.advance(offsets, (create,), sealed=segment.file)
        except Refused:
            # Refused because the channel has changed: an earlier try, whose reply was lost, may have succeeded.
            if channel_of(member).sealed != segment.file:
                raise

    def finish(self) -> float:
        """The pending segment is sealed: the seconds since its file was begun."""
        self.pending = None
        return self._runtime.monotonic() - self._began_at

    def drop(self) -> None:
        """Drop the pending segment, and remove its file unless the multi was sent."""
        segment, self.pending = self.pending, None
        if segment is None or self._is_sent:
            return
        try:
            self._files.remove(segment.file)
        except OSError as error:
            log.info("file removal deferred: file=%s reason=%s", segment.file, error)


class OpenSegment:
    """The records fetched since the last seal, by partition."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._ranges: dict[TopicPartition, SealedRange] = {}
        self._missing: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, list[pa.RecordBatch]] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._ranges

    def add(self, fetch: Fetch) -> None:
        """Add a fetch; it begins at the partition's end here."""
        (topic, number), known = fetch.partition, self._ranges.get(fetch.partition)
        first = known.first if known else fetch.first
        self._ranges[fetch.partition] = SealedRange(topic, fetch.topic_id, number, first, fetch.next)
        self._batches.setdefault(fetch.partition, []).extend(fetch.batches)
        rows = fetch.rows
        self._missing[fetch.partition] = self._missing.get(fetch.partition, 0) + fetch.next - fetch.first - rows
        self.rows += rows
        self.nbytes += fetch.nbytes

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions, which have no records here, only offsets without one."""
        for partition in partitions:
            for kept in (self._ranges, self._missing, self._batches):
                kept.pop(partition, None)

    @property
    def ranges(self) -> tuple[SealedRange, ...]:
        """The offsets of each partition, in order."""
        return tuple(self._ranges[partition] for partition in sorted(self._ranges))

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The number of offsets without a record, for ranges that have any."""
        return tuple(Missing(*partition, count) for partition, count in sorted(self._missing.items()) if count)

    @property
    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records, grouped by partition."""
        return (batch for partition in sorted(self._batches) for batch in self._batches[partition])

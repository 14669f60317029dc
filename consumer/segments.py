"""Sealing: what was fetched becomes one immutable file, and the file everybody's by the multi that moves the offsets.

Exactly once rests on three rules. A file's segment znode and the offsets of its records are written in one fenced
multi. A file whose multi may have happened is never removed, and tried again only as it is. And the channel is the
truth: a file that does not begin where the channel stands is dropped, and what it held is fetched again from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from coordinator.zk.config import require
from coordinator.zk.errors import IncarnationOver, Refused, Retryable, SessionLost, StoreError
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel
from coordinator.zk.runtime import Runtime
from coordinator.zk.sealed import SEAL_INTERVAL_MS, Segment
from coordinator.zk.store import Create, Operation

from .errors import UnknownMemberId
from .fetcher import Fetch, Fetcher
from .holder import Start
from .metrics import Meter, unread
from .open_segment import OpenSegment
from .out_of_range import Jump
from .segment_files import segment_file

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
REVOKE_TRIES = 3


class Membership(Protocol):
    """What sealing needs of a `Member`."""

    @property
    def channel(self) -> Channel | None: ...
    @property
    def may_fetch(self) -> bool: ...
    @property
    def paths(self) -> GroupPaths: ...
    def advance(
        self, offsets: Mapping[TopicPartition, int], operations: tuple[Operation, ...] = (), sealed: str | None = None
    ) -> None: ...
    def fetched(self, fetched: Sequence[Fetch]) -> None: ...
    def jumped(self, jumps: Mapping[TopicPartition, Jump]) -> None: ...


class Files(Protocol):
    """What sealing needs of a `SegmentFolder`."""

    @property
    def url(self) -> str: ...
    def write(self, file: str, batches: Iterator[pa.RecordBatch]) -> int: ...
    def remove(self, file: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SealConfig:
    """When to seal.

    :ivar seal_interval_ms: milliseconds after the first record of an open segment.
    :ivar seal_bytes: Arrow memory of an open segment, at most, but for what one fetch brings.
    :ivar fetch_max_bytes: bytes of one fetch.
    """

    seal_interval_ms: int = SEAL_INTERVAL_MS
    seal_bytes: int = 32 << 20
    fetch_max_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        require(self.seal_interval_ms >= 1, "seal_interval_ms must be 1 or more")
        require(1 <= self.seal_bytes <= 1 << 30, "seal_bytes must be from 1 to 1073741824")
        require(1 <= self.fetch_max_bytes <= 1 << 30, "fetch_max_bytes must be from 1 to 1073741824")


@dataclass(frozen=True, slots=True)
class SealCounts:
    """What was sealed since the start.

    :ivar refetched: records that were dropped and fetched again.
    :ivar failed: tries that failed: the disk was full, say, or ZooKeeper did not answer.
    """

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    refetched: int = 0
    failed: int = 0


class _Written(NamedTuple):
    """A file that waits for its multi; once `is_sent` the multi may have happened."""

    segment: Segment
    is_sent: bool


class Sealer:
    """The `Holder` of a fetcher whose records are sealed. `bind` gives it the member that it seals for.

    A partition's position is always the channel's offset and what is open of it.

    :ivar problem: why sealing does not go on, None while it does.
    :ivar paused: why nothing is fetched or sealed for now, None when it may be. What is open stays open, so that no
        pause costs more than `seal_bytes` of memory; it is dropped, and fetched again later, when its partitions go.
    """

    def __init__(
        self,
        config: SealConfig,
        consumer: str,
        runtime: Runtime,
        fetcher: Fetcher,
        files: Files,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter or unread()
        self._begun_at = 0.0
        self._config = config
        self._consumer = consumer
        self._runtime = runtime
        self._fetcher = fetcher
        self._files = files
        self._member: Membership | None = None
        self._open = OpenSegment()
        self._opened_at = 0.0
        self._written: _Written | None = None
        self._number = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._not_before = float("-inf")
        self.counts = SealCounts()
        self.problem: str | None = None
        self.paused: str | None = None

    def bind(self, member: Membership) -> None:
        """Seal for `member`."""
        self._member = member

    @property
    def is_open(self) -> bool:
        """Whether there are records that are not sealed."""
        return self._written is not None or self._open.rows > 0

    # ---- the slot's loop

    def fetch(self) -> int:
        """Fetch into the open segment, unless that is full or fetching is paused; how many records came.

        :raises OffsetOutOfRange: when the log does not have an offset, and `auto_offset_reset` is `none`.
        """
        room = self._config.seal_bytes - self._open.nbytes
        if self.paused or not self._membership.may_fetch or self._written is not None or room <= 0:
            return 0
        self._fetcher.out_of_range.refuse(self._fetcher.out_of_range.partitions)
        if self._fetcher.out_of_range.jumps and not self._jump():
            return 0
        fetched = self._fetcher.fetch(2**31, min(room, self._config.fetch_max_bytes))
        if fetched and not self._open.rows:
            self._opened_at = self._runtime.monotonic()
        for fetch in fetched:
            self._open.add(fetch)
        self._membership.fetched(fetched)
        return sum(fetch.rows for fetch in fetched)

    def _jump(self) -> bool:
        """Move the channel over offsets that the log does not have, once what was fetched before is sealed; whether
        that is done. The segments do not join there: queries notice. Offsets without a record right before are gone
        over with the others: no segment has them, and the channel has not moved over them."""
        if self._runtime.monotonic() < self._not_before or (self.is_open and not self.seal()):
            return False
        jumps = self._fetcher.out_of_range.jumps
        try:
            self._open.forget(jumps)
            running = {part: offset for part, offset in self._channel().running.items() if offset is not None}
            jumps = {part: jump._replace(before=running.get(part, jump.before)) for part, jump in jumps.items()}
            self._membership.jumped(jumps)
            self._membership.advance({partition: jump.after for partition, jump in jumps.items()})
        except IncarnationOver:
            return False
        except StoreError as error:
            self._fail(error)
            return False
        self._fetcher.jump()
        return True

    def seal_if_due(self, interval_ms: int | None = None) -> float:
        """Seal when it is time to.

        :param interval_ms: what the coordinator asks for; the longer of this and the configuration's counts.
        :returns: seconds until it will be; infinite while nothing is open, or sealing is paused.
        """
        if not self.is_open or self.paused:
            return float("inf")
        now = self._runtime.monotonic()
        due = self._opened_at + max(interval_ms or 0, self._config.seal_interval_ms) / 1000
        if self._written is not None or self._open.nbytes >= self._config.seal_bytes:
            due = now
        due = max(due, self._not_before)
        if now < due or not self._membership.may_fetch:
            return max(due - now, 0.001)
        self.seal()
        return max(self._not_before - now, 0.001) if self.is_open else float("inf")

    def seal(self) -> bool:
        """Try once to seal what is open; whether nothing is open afterwards. What fails is tried again later."""
        try:
            return self._seal()
        except IncarnationOver:
            return False  # the member hears of it in its next `tend`, and takes everything away
        except (OSError, StoreError, pa.ArrowException) as error:
            self._fail(error)
            return False

    # ---- what the member calls

    def assigned(self, starts: Mapping[TopicPartition, Start]) -> None:
        """See `Holder`."""
        self._fetcher.begin(starts)

    def revoke(self, partitions: PartitionSet) -> None:
        """Seal everything that is open, then fetch `partitions` no more; what cannot be sealed now is dropped.

        While sealing is paused nothing is: a group that is rebalanced again and again would seal over its bounds.

        :raises Retryable: when ZooKeeper did not answer: whether the records were sealed is not known yet.
        :raises IncarnationOver: when the incarnation is over.
        :raises SessionLost: when the session is.
        """
        if self.paused:
            self._hear_of_seal()
        else:
            self._seal_for_revoke()
        self._fetcher.end(partitions)
        if self.is_open or self._open.ranges:
            why = "sealing is paused" if self.paused else "it could not be sealed before its partitions were given up"
            self._start_over(why)

    def lost(self, partitions: PartitionSet) -> None:
        """Drop what is open; what is still held begins again where the channel stands."""
        self._fetcher.end(partitions)
        self._start_over("partitions were lost")

    # ---- sealing

    @property
    def _membership(self) -> Membership:
        if self._member is None:
            raise IncarnationOver("the sealer has no member yet")
        return self._member

    def _seal_for_revoke(self) -> None:
        for _ in range(REVOKE_TRIES):
            try:
                if self._seal():
                    return
            except (Retryable, SessionLost, IncarnationOver):
                raise
            except Refused as refused:
                log.info("seal is tried again: consumer=%s refused=%s", self._consumer, refused)
            except (OSError, StoreError, pa.ArrowException) as error:
                return self._fail(error)

    def _seal(self) -> bool:
        """One try.

        :raises OSError: when the file could not be written.
        :raises StoreError: when the multi was refused, or nobody knows what became of it.
        """
        channel = self._hear_of_seal()
        if not self.is_open:
            return True
        if self._written is None:
            self._written = self._write(channel)
        segment = self._written.segment
        if any(channel.running.get(TopicPartition(r.topic, r.partition)) != r.first for r in segment.ranges):
            self._start_over("the channel stands elsewhere")
            return True
        self._commit(segment)
        return True

    def _hear_of_seal(self) -> Channel:
        """The channel, after what it says of a seal whose reply was lost has been noted."""
        channel = self._channel()
        if self._written is not None and channel.sealed == self._written.segment.file:
            self._sealed(self._written.segment)
        return channel

    def _commit(self, segment: Segment) -> None:
        self._written = _Written(segment, is_sent=True)
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in segment.ranges}
        create = Create(self._membership.paths.segment_prefix, segment.to_bytes(), sequential=True)
        try:
            self._membership.advance(offsets, (create,), sealed=segment.file)
        except Refused:
            # Refused for what it was computed from: an earlier try, whose reply was lost, may have done it.
            if self._channel().sealed != segment.file:
                raise
        self._sealed(segment)

    def _write(self, channel: Channel) -> _Written:
        self._number += 1
        self._begun_at = self._runtime.monotonic()
        file = segment_file(self._membership.paths.group, self._consumer, channel.incarnation, self._number)
        size = self._files.write(file, self._open.batches)
        segment = Segment(
            file=file,
            segments_dir=self._files.url,
            rows=self._open.rows,
            size=size,
            ranges=self._open.ranges,
            consumer=self._consumer,
            incarnation=channel.incarnation,
            generation=channel.generation,
            missing=self._open.missing,
        )
        self._open = OpenSegment()
        return _Written(segment, is_sent=False)

    def _sealed(self, segment: Segment) -> None:
        counts = self.counts
        self.counts = replace(
            counts,
            segments=counts.segments + 1,
            rows=counts.rows + segment.rows,
            bytes=counts.bytes + segment.size,
        )
        self._meter.sealed(self._runtime.monotonic() - self._begun_at, segment.rows, segment.size)
        self._written = None
        self._backoff_s, self._not_before = FIRST_BACKOFF_S, float("-inf")
        if self.problem is not None:
            log.info("sealing goes on: consumer=%s", self._consumer)
            self.problem = None

    def _channel(self) -> Channel:
        channel = self._membership.channel
        if channel is None:
            raise UnknownMemberId("the consumer is not registered")
        return channel

    # ---- when it does not work

    def _fail(self, error: Exception) -> None:
        """Say it once, and wait a little longer each time."""
        self._meter.seal_failed()
        self.counts = replace(self.counts, failed=self.counts.failed + 1)
        self._not_before = self._runtime.monotonic() + self._backoff_s
        self._backoff_s = min(LONGEST_BACKOFF_S, 2 * self._backoff_s)
        if self.problem != str(error):
            self.problem = str(error)
            log.error("not sealed, will try again: consumer=%s reason=%s", self._consumer, error)

    def _start_over(self, reason: str) -> None:
        """Drop what is open, and fetch what is still held again from where the channel stands."""
        written, self._written = self._written, None
        dropped = self._open.rows + (written.segment.rows if written else 0)
        self._open = OpenSegment()
        channel = self._membership.channel
        for partition in self._fetcher.positions:
            offset = channel.running.get(partition) if channel else None
            if offset is not None:
                self._fetcher.rewind(partition, offset)
        if dropped:
            self._meter.dropped(dropped)
            self.counts = replace(self.counts, refetched=self.counts.refetched + dropped)
            log.warning("open segment dropped: consumer=%s records=%d reason=%s", self._consumer, dropped, reason)
        if written is not None and not written.is_sent:
            self._remove(written.segment.file)

    def _remove(self, file: str) -> None:
        try:
            self._files.remove(file)
        except OSError as error:
            log.info("file is left to the sweep: file=%s reason=%s", file, error)

"""From a written file to a sealed segment: a file that waits for its multi, and the rules until then.

A file's segment znode and the offsets of its records are written in one fenced multi. A file whose multi may have
happened is never removed, and is committed again only unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from coordinator.zk.errors import Refused
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Create, Operation
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel
from coordinator.zk.znodes.segments import Segment

from ..errors import UnknownMemberId
from ..types import NO_OFFSETS, Fetch, Jump, Offsets
from .open_segment import OpenSegment
from .segment_files import segment_file

log = logging.getLogger(__name__)


class SealingMember(Protocol):
    """The part of a member that sealing needs."""

    @property
    def channel(self) -> Channel | None: ...
    @property
    def may_fetch(self) -> bool: ...
    @property
    def paths(self) -> GroupPaths: ...
    def advance(
        self, offsets: Offsets, operations: tuple[Operation, ...] = (), sealed: str = "", lost: Offsets = NO_OFFSETS
    ) -> None: ...
    def fetched(self, fetched: Sequence[Fetch], checked: float) -> None: ...
    def jumped(self, jumps: Mapping[TopicPartition, Jump]) -> None: ...


def channel_of(member: SealingMember) -> Channel:
    """
    :raises UnknownMemberId: when the consumer is not registered.
    """
    channel = member.channel
    if channel is None:
        raise UnknownMemberId("the consumer is not registered")
    return channel


class Files(Protocol):
    """The part of a `SegmentFolder` that sealing needs."""

    @property
    def url(self) -> str: ...
    def write(self, file: str, batches: Iterator[pa.RecordBatch]) -> int: ...
    def remove(self, file: str) -> None: ...


class SegmentCommit:
    """The segments of one consumer, one after the other.

    :ivar pending: the segment with a written file and an unconfirmed multi; None without one.
    """

    def __init__(self, consumer: str, runtime: Runtime, files: Files) -> None:
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
        self.pending = Segment(
            file=file,
            segments_dir=self._files.url,
            rows=records.rows,
            size=size,
            ranges=records.ranges,
            consumer=self._consumer,
            incarnation=channel.incarnation,
            generation=channel.generation,
            missing=records.missing,
            discontinuities={part: cause for part, cause in channel.discontinuities.items() if part in records},
        )
        return self.pending

    def commit(self, member: SealingMember, segment: Segment) -> None:
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

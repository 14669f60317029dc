"""Applies the channel's running partitions to a member's holder, by its callbacks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from coordinator.zk.store import Store
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.records import Channel

from ..config import Subscription
from ..types import Position
from .call_guard import MemberContext
from .channel import FencedChannel
from .offsets import Record
from .start_position import Starts

log = logging.getLogger(__name__)


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


class NoPartitions(Holder):
    """The `Holder` of a member of a group that assigns no partitions."""


class OffsetReader(Protocol):
    """Reads the offsets at which running partitions begin.

    :ivar reloads: whether offsets that are known are read again.
    """

    @property
    def reloads(self) -> bool: ...

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`, as far as they are readable."""


class Holding:
    """The partitions of a holder, each with the incarnation that it was assigned to."""

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

    def follow(self, store: Store | None, fenced: FencedChannel) -> None:
        """Make the fetchers equal to the channel: running partitions are held, others dropped."""
        if fenced.channel is self._held_as:
            return
        running = fenced.channel.running
        gone = frozenset(part for part, life in self._held.items() if part not in running or life != fenced.incarnation)
        if gone:
            self._holder.lost(gone)
            self._record_release(gone, "lost")
        unread = {part for part, offset in running.items() if offset is None or self._reader.reloads}
        if unread and store is not None:
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

    def drop(self, reason: str) -> None:
        """The incarnation is over: its partitions may have other owners."""
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

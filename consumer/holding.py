"""What a member's holder holds, made equal to what its channel says that it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.records import Channel
from coordinator.zk.store import Store

from .channel import FencedChannel
from .holder import Holder, Start
from .metrics import Meter
from .offsets import Record
from .trace import Trace

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Where partitions begin that are run.

    :ivar reloads: whether offsets that are known are read again.
    """

    @property
    def reloads(self) -> bool: ...

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`, as far as they can be read."""


class Holding:
    """The partitions that a holder holds, each for the incarnation that it was given to."""

    def __init__(self, consumer: str, holder: Holder, reader: Reader, trace: Trace, meter: Meter) -> None:
        self._consumer = consumer
        self._holder = holder
        self._reader = reader
        self._trace = trace
        self._meter = meter
        self._held: dict[TopicPartition, str] = {}
        self._held_as: Channel | None = None

    def give_up(self, partitions: PartitionSet) -> None:
        """Stop fetching `partitions`, before the multi that says so."""
        held = partitions & frozenset(self._held)
        if held:
            self._held_as = None
            self._holder.revoke(held)
            self._let_go(held, "revoked")

    def follow(self, store: Store | None, fenced: FencedChannel) -> None:
        """Make the fetchers equal to the channel: what runs is held, what does not is dropped."""
        if fenced.channel is self._held_as:
            return
        running = fenced.channel.running
        gone = frozenset(part for part, life in self._held.items() if part not in running or life != fenced.incarnation)
        if gone:
            self._holder.lost(gone)
            self._let_go(gone, "lost")
        unread = {part for part, offset in running.items() if offset is None or self._reader.reloads}
        if unread and store is not None:
            fenced.channel = self._reader.read(store, fenced.channel, unread, fenced.guarded)
        channel = fenced.channel
        starts = {
            part: Start(channel.topics.get(part.topic, ""), offset)
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
        """The incarnation is over: whatever is held is somebody else's."""
        held = frozenset(self._held)
        self._held_as = None
        self._meter.holds(0, 0, 0)
        if held:
            log.warning("partitions lost: consumer=%s count=%d reason=%s", self._consumer, len(held), reason)
            self._let_go(held, "lost")
            self._holder.lost(held)

    def _let_go(self, partitions: PartitionSet, why: str) -> None:
        """Note that the holder holds `partitions` no more."""
        self._trace.halted({partition: self._held.pop(partition) for partition in partitions}, why)

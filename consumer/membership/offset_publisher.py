"""Offsets of running partitions, published in `offsets/` for readers; the consumer's channel has them first."""

from __future__ import annotations

import logging

from coordinator.zk.errors import IncarnationOver, StoreError
from coordinator.zk.store import Store

from .channel import FencedChannel
from .context import MemberContext
from .offsets import CommittedOffsets

log = logging.getLogger(__name__)


class OffsetPublisher:
    """Publishes every `offsets_interval_ms`."""

    def __init__(self, context: MemberContext, offsets: CommittedOffsets) -> None:
        self._context = context
        self._offsets = offsets
        self._published_at = context.runtime.monotonic()

    def publish_if_due(self, store: Store, fenced: FencedChannel, at_once: bool) -> None:
        """Write the offsets that changed since the last time, when the interval is over, or `at_once`."""
        now = self._context.runtime.monotonic()
        if now - self._published_at < self._context.config.offsets_interval_ms / 1000 and not at_once:
            return
        self._published_at = now
        try:
            if operations := self._offsets.publish(store, fenced.channel):
                fenced.guarded(operations)
                self._offsets.published()
        except (IncarnationOver, StoreError) as error:  # the next `tend` handles an incarnation that is over
            log.info("offset publish deferred: consumer=%s reason=%s", self._context.consumer, error)

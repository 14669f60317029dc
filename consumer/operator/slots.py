"""A slot in a consistent region: a drain seals what is open, so that the checkpoint cuts the order of segments.

What was sealed stays: nothing is ever reset, and starts begin where the group's offsets stand. Between its
contribution and the end of the checkpoint a slot seals nothing, so that the segments below the czxid of `completed`
hold exactly what all contributed.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.zk.records import Channel
from coordinator.zk.regions import Contribution, Order
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Store

from ..channel import FencedChannel
from ..config import ConsumerConfig
from .contributor import Contributor

SEAL_AGAIN_S = 0.5


class Sealing(Protocol):
    """What a drain needs of a `Sealer`."""

    def seal(self) -> bool:
        """Try once to seal what is open; whether nothing is open afterwards."""


class SlotRegion(Contributor):
    """The part of one slot, over all its incarnations."""

    def __init__(self, config: ConsumerConfig, runtime: Runtime, sealing: Sealing) -> None:
        super().__init__(config, runtime)
        self._sealing = sealing
        self._seal_at = float("inf")

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """See `Contributor`; also look again at a drain that could not be obeyed."""
        super().tend(store, fenced)
        if self._runtime.monotonic() >= self._seal_at:
            self._seal_at = float("inf")
            self.wake()

    def _may_contribute(self, channel: Channel, order: Order) -> bool:
        return True

    def _contribution(self, fenced: FencedChannel, order: Order) -> Contribution | None:
        """The offsets after all that is sealed; None while something is open, or begins nowhere yet."""
        is_sealed = self._sealing.seal()
        channel = fenced.channel
        offsets = {part: offset for part, offset in channel.running.items() if offset is not None}
        if not is_sealed or len(offsets) < len(channel.running):
            self._seal_at = self._runtime.monotonic() + SEAL_AGAIN_S
            return None
        return Contribution(fenced.incarnation, order.reset, offsets, channel.topics)

    def _completed(self, store: Store, checkpoint: int) -> None:
        """A slot keeps no states, and so no files of them."""

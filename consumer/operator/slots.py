"""A slot in a consistent region: a drain seals open records, so that the checkpoint cuts the order of segments.

Sealed records stay: there is no reset, and starts begin at the group's offsets. Between its contribution and the end of
the checkpoint a slot seals nothing, so that the segments below the czxid of `completed` contain exactly the
contributions.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.zk.store import Store
from coordinator.zk.znodes.records import Channel
from coordinator.zk.znodes.regions import Contribution, Order

from ..membership.channel import FencedChannel
from ..membership.context import MemberContext
from ..membership.contributor import Contributor

SEAL_AGAIN_S = 0.5


class Sealing(Protocol):
    """The part of a `Sealer` that a drain needs."""

    def seal(self) -> bool:
        """Try once to seal the open records; whether none is open afterwards."""


class SlotRegion(Contributor):
    """The part of one slot, over all its incarnations."""

    def __init__(self, context: MemberContext, sealing: Sealing) -> None:
        super().__init__(context)
        self._sealing = sealing
        self._seal_at = float("inf")

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """See `Contributor`; also tries a drain again that could not be applied."""
        super().tend(store, fenced)
        if self._runtime.monotonic() >= self._seal_at:
            self._seal_at = float("inf")
            self._wake.set()

    def _may_contribute(self, channel: Channel, order: Order) -> bool:
        return True

    def _contribution(self, store: Store, fenced: FencedChannel, order: Order) -> Contribution | None:
        """The offsets after the sealed records; None while records are open, or a partition has no start yet."""
        is_sealed = self._sealing.seal()
        channel = fenced.channel
        offsets = {part: offset for part, offset in channel.running.items() if offset is not None}
        if not is_sealed or len(offsets) < len(channel.running):
            self._seal_at = self._runtime.monotonic() + SEAL_AGAIN_S
            return None
        return Contribution(fenced.incarnation, order.reset, offsets, channel.topics)

    def _completed(self, store: Store, checkpoint: int) -> None:
        """A slot has no states, and so no state files."""

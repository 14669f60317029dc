"""The callbacks of a member that consumes partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..config import Subscription
from ..types import Position
from .start_offsets import Starts


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


class NoPartitions:
    """The `Holder` of a member of a group that assigns no partitions."""

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> None: ...
    def revoke(self, partitions: PartitionSet) -> None: ...
    def lost(self, partitions: PartitionSet) -> None: ...

"""Whoever fetches for a member: what it is told, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coordinator.zk.partitions import PartitionSet, TopicPartition


class Start(NamedTuple):
    """Where fetching of a partition begins."""

    topic_id: str
    offset: int


class Holder(Protocol):
    """Whoever fetches: it is told what to hold. All calls come from inside `Member.tend`, `leave` or `close`."""

    def assigned(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Begin to fetch these partitions."""

    def revoke(self, partitions: PartitionSet) -> None:
        """About to be given up: make what was fetched somebody's (commit, seal) or drop it; then hold them no more."""

    def lost(self, partitions: PartitionSet) -> None:
        """Gone already: drop them and whatever was fetched of them."""

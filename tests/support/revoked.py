"""A role that notes the partitions that a member gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zk_group.consumer.membership.roles import Role
from zk_group.coordinator.zk.znodes.partitions import PartitionSet


@dataclass(eq=False)
class Revoked(Role):
    """:ivar note: called with the partitions."""

    note: Callable[[PartitionSet], None]

    def give_up(self, partitions: PartitionSet) -> None:
        self.note(partitions)

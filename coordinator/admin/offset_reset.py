"""Implementation of `groups reset-offsets`: read a group and its log, plan new offsets, write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..zk.errors import CoordinatorError
from ..zk.store import Store
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.records import Topic
from .offsets import committed, inactive, write_offsets
from .reset_offsets import NewOffset, PartitionOffsets, Plan, ResetRequest, checked, chosen, missing, planned


class LogBounds(NamedTuple):
    """A partition's log.

    :ivar earliest: offset of the oldest record.  :ivar latest: offset of the next record to be written.
    :ivar at: offset of the first record at or after a time, where one was requested.
    """

    earliest: int
    latest: int
    at: int | None


BoundsOf = Callable[[Topic, int, int | None], LogBounds]
"""Called with a topic, a partition, and a time in milliseconds since the epoch or None."""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """One reset, of several groups.

    :ivar topics: the existing topics.
    :ivar plans: the file's offsets of each group, None without a file.
    :ivar warn: called with each warning.
    """

    store: Store
    bounds_of: BoundsOf
    topics: Mapping[str, Topic]
    request: ResetRequest
    plans: Mapping[str, Plan] | None
    warn: Callable[[str], None]

    def plan(self, group: str) -> list[NewOffset]:
        """The new offsets of a group.

        :raises CoordinatorError: when the group is in use, or has no offset to shift.
        :raises UsageError: when a partition does not exist.
        """
        inactive(self.store, group)
        plan = self.plans.get(group) if self.plans is not None else None
        if self.plans is not None and plan is None:
            raise CoordinatorError(f"No reset plan for group '{group}' found.")
        to = self.request.to
        new = [planned(to, known, plan) for known in self._known(group, plan)]
        for each in new:
            if each.warning:
                self.warn(each.warning)
        self._warn_of_segments(group, new)
        return new

    def write(self, group: str, new: Sequence[NewOffset]) -> int:
        """Set the offsets of a group; returns their number.

        :raises CoordinatorError: when the group is in use meanwhile, or its offsets have changed.
        """
        write_offsets(self.store, group, new, self.topics)
        return len(new)

    def _known(self, group: str, plan: Plan | None) -> Iterator[PartitionOffsets]:
        offsets, scopes = committed(self.store, GroupPaths(group)), self.request.scopes
        if plan is not None:
            partitions = checked(plan, self.topics)
        elif scopes is not None:
            partitions = chosen(scopes, self.topics)
        else:
            partitions = [partition for partition in sorted(offsets) if self._is_there(partition)]
        timestamp_ms = self.request.to.timestamp_ms
        for partition in partitions:
            topic, offset = self.topics[partition.topic], offsets.get(partition)
            yield PartitionOffsets(
                partition,
                topic.id,
                offset.of(topic.id) if offset is not None else None,
                offset.version if offset is not None else None,
                *self.bounds_of(topic, partition.partition, timestamp_ms),
            )

    def _is_there(self, partition: TopicPartition) -> bool:
        why = missing(partition, self.topics)
        if why is not None:
            self.warn(f"{partition} is left out: {why}")
        return why is None

    def _warn_of_segments(self, group: str, new: Sequence[NewOffset]) -> None:
        """Sealed segments end at the group's offsets: records fetched after the reset do not join them."""
        node = self.store.get(GroupPaths(group).segments)
        moved = any(each.offset != each.known.current for each in new if each.known.current is not None)
        if moved and node is not None and node.stat.children:
            self.warn(
                f"group {group} has sealed segments, and a query that runs during the reset fails where it begins"
                ": stop its queries before, and start them again after it"
            )

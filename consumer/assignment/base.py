"""The interface of a client assignor: what it gets to see of the group and its logs, and what it answers.

The leader builds a `Cluster`, calls `assign` with the metadata of every member, and writes the answer down. A third
party's assignor implements `ClientAssignor`; `registry` says how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.records import Topic

from .metadata import ConsumerMetadata

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one member shall run.

    :ivar threads: thread id (`<consumer>-<n>`, n from 0) -> partitions.
    :ivar member_state: the assignor's own bytes for this member, which get to its `on_assignment`.
    """

    threads: Mapping[str, PartitionSet] = field(default_factory=dict)
    member_state: bytes = b""

    @property
    def partitions(self) -> PartitionSet:
        """The partitions of all threads."""
        return NONE.union(*self.threads.values())


@dataclass(frozen=True, slots=True)
class Held:
    """What one member holds when the leader assigns.

    :ivar running: the partitions that it fetches.
    :ivar generation: in which generation it got them.
    :ivar on_thread: partition -> thread, by the last target; it may not be carried out yet.
    :ivar instance_id: of a static member; empty for a dynamic one.
    """

    running: PartitionSet = NONE
    generation: int = 0
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)
    instance_id: str = ""


class Lookup(Protocol):
    """Where a `Cluster` finds offsets and racks. A partition without an answer is missing; no call raises for it."""

    def committed(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Committed offsets of the group."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset that the next record of each will have."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset of the oldest record of each."""

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        """Racks of the replicas; empty when unknown."""


class Cluster:
    """The group and its logs, as of one call of `assign`; used by one thread.

    Offsets are looked up on first use and kept: within one `assign` a partition has one end.

    :ivar topics: every topic that exists, whether or not a member subscribes to it.
    :ivar members: consumer -> what it holds.
    """

    def __init__(self, topics: Mapping[str, Topic], members: Mapping[str, Held], lookup: Lookup) -> None:
        self.topics: Mapping[str, Topic] = MappingProxyType(dict(topics))
        self.members: Mapping[str, Held] = MappingProxyType(dict(members))
        self._racks = lookup.racks
        self._committed = _Answers(lookup.committed)
        self._ends = _Answers(lookup.end_offsets)
        self._beginnings = _Answers(lookup.beginning_offsets)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the next holder of each partition continues; a partition without a committed offset is missing."""
        return self._committed.of(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each will have; a partition is missing when the log cannot tell."""
        return self._ends.of(partitions)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the oldest record of each; a partition is missing when the log cannot tell."""
        return self._beginnings.of(partitions)

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        """Racks that have a replica of the partition; empty when unknown."""
        return self._racks(partition)


class _Answers:
    """Offsets that a lookup gave, and None for a partition of which it gave none."""

    def __init__(self, look_up: Callable[[Collection[TopicPartition]], Offsets]) -> None:
        self._look_up = look_up
        self._known: dict[TopicPartition, int | None] = {}

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(dict.fromkeys(partitions))
        if missing := [part for part in wanted if part not in self._known]:
            found = self._look_up(missing)
            self._known.update({part: found.get(part) for part in missing})
        return {part: offset for part in wanted if (offset := self._known[part]) is not None}


class ClientAssignor(Protocol):
    """A client-side assignment strategy. A class that inherits from this one need only define `assign`.

    `assign` is deterministic, and the order of its input makes no difference to its answer.

    :ivar name: of the protocol, as members list it.
    :ivar is_cooperative: whether only the partitions that move are stopped (else everything is).
    """

    name: str
    is_cooperative: bool

    def metadata(self, subscription: ConsumerMetadata) -> bytes:
        """What this member tells the leader; an assignor may add its `user_data` by `dataclasses.replace`.

        :raises UsageError: when the metadata is over its limit.
        """
        return subscription.to_bytes()

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        """The assignment of every member, on the leader. A partition or member may be left out.

        :param metadata: consumer -> what its `metadata` returned; from a member of another release, perhaps.
        :raises Exception: any, when no assignment can be made: the ask fails with the error as its reason.
        """

    def on_assignment(self, assignment: Assignment, member_state: bytes, generation: int) -> None:
        """Called on each member with its part of an adopted answer, before its partitions start."""
        return None

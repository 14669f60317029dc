"""The interface of client assignors: their input, the group and its logs, and their output.

The leader builds a `Cluster`, calls `assign` with the metadata of every member, and writes the answer. Third-party
assignors implement `ClientAssignor`; `consumers` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition, united
from zk_group.coordinator.zk.znodes.records import Topic

from .metadata import ConsumerMetadata

if TYPE_CHECKING:  # a package's assignor loads neither logs nor ZooKeeper's client
    from ..logs.base import Offsets
    from .consumers import LeaderLookup


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one member.

    :ivar threads: thread id (`<consumer>-<n>`, n from 0) -> partitions.
    :ivar member_state: the assignor's opaque bytes for this member, passed to its `on_assignment`.
    """

    threads: Mapping[str, PartitionSet] = field(default_factory=dict)
    member_state: bytes = b""

    @property
    def partitions(self) -> PartitionSet:
        """The partitions of all threads."""
        return united(self.threads.values())


@dataclass(frozen=True, slots=True)
class Held:
    """One member's partitions before the assignment.

    :ivar running: its fetched partitions.
    :ivar generation: the generation that assigned them.
    :ivar on_thread: partition -> thread, of the last target; it may not be carried out yet.
    :ivar instance_id: of a static member; empty for a dynamic one.
    """

    running: PartitionSet = NONE
    generation: int = 0
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)
    instance_id: str = ""


class Cluster:
    """The group and its logs during one call of `assign`; used by one thread.

    Offsets are looked up on first use and cached: within one `assign` a partition has one end.

    :ivar topics: every topic that exists, whether or not a member subscribes to it.
    :ivar members: consumer -> its partitions before the assignment.
    """

    def __init__(self, topics: Mapping[str, Topic], members: Mapping[str, Held], lookup: LeaderLookup) -> None:
        self.topics: Mapping[str, Topic] = MappingProxyType(dict(topics))
        self.members: Mapping[str, Held] = MappingProxyType(dict(members))
        self._racks = lookup.racks
        self._committed = _Answers(lookup.committed)
        self._ends = _Answers(lookup.end_offsets)
        self._beginnings = _Answers(lookup.beginning_offsets)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Committed offset of each partition, where its next owner resumes; partitions without one are missing."""
        return self._committed.of(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record of each; partitions whose log is unavailable are missing."""
        return self._ends.of(partitions)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the oldest record of each; partitions whose log is unavailable are missing."""
        return self._beginnings.of(partitions)

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        """Racks of the partition's replicas; empty when unknown."""
        return self._racks(partition)


class _Answers:
    """Cached offsets of a lookup; None for a partition without an answer."""

    def __init__(self, look_up: Callable[[Collection[TopicPartition]], Offsets]) -> None:
        self._look_up = look_up
        self._known: dict[TopicPartition, int | None] = {}

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        requested = list(dict.fromkeys(partitions))
        if missing := [part for part in requested if part not in self._known]:
            found = self._look_up(missing)
            self._known.update({part: found.get(part) for part in missing})
        return {part: offset for part in requested if (offset := self._known[part]) is not None}


class ClientAssignor(Protocol):
    """A client-side assignment strategy. A subclass need only define `assign`.

    `assign` is deterministic and independent of the order of its input.

    :ivar name: of the protocol, as members list it.
    :ivar is_cooperative: whether only moved partitions are revoked (else all).
    """

    name: str
    is_cooperative: bool

    def metadata(self, subscription: ConsumerMetadata) -> bytes:
        """This member's metadata for the leader; an assignor may add `user_data` by `dataclasses.replace`.

        :raises UsageError: when the metadata is over its limit.
        """
        return subscription.to_bytes()

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        """The assignment of every member, on the leader. A partition or member may be left out.

        :param metadata: consumer -> the result of its `metadata`, possibly of another release.
        :raises Exception: any, when no assignment is possible: the ask fails with the error as its reason.
        """

    def on_assignment(self, assignment: Assignment, member_state: bytes, generation: int) -> None:
        """Called on each member with its part of an adopted answer, before its partitions start."""
        return None

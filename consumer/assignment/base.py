"""The interface of client assignors: their input, the group and its logs, and their output.

The leader builds a `Cluster`, calls `assign` with the metadata of every member, and writes the answer. Third-party
assignors implement `ClientAssignor`; `registry` finds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from coordinator.zk.errors import BadData, CoordinatorError
from coordinator.zk.store import Store
from coordinator.zk.znodes.json_fields import Fields, readable
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition, united
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import MAX_TOPIC_BYTES, Channel, OffsetRecord, Topic

from ..logs import Log, TopicIdPartition, ends_of
from ..types import Offsets
from .metadata import ConsumerMetadata


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


class GroupView(NamedTuple):
    """What a leader has read of its group.

    :ivar topics: topic -> what it is now.  :ivar data: topic -> its znode's data: replicas stand there.
    :ivar channels: consumer -> what its channel says: it is ahead of `offsets/`.
    """

    topics: Mapping[str, Topic]
    data: Mapping[str, bytes]
    channels: Mapping[str, Channel]


class LeaderLookup:
    """Of one call of an assignor. Partitions without an answer are missing; only ZooKeeper's errors are raised."""

    def __init__(self, store: Store, paths: GroupPaths, brokers: Brokers, source: Log, view: GroupView) -> None:
        self._store = store
        self._paths = paths
        self._brokers = brokers
        self._log = source
        self._view = view
        self._replicas: dict[str, Mapping[str, Any]] = {}
        self._rack_of: dict[str, str] | None = None

    def committed(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Committed offsets of the group, for the current topics."""
        requested = set(partitions)
        found = {
            part: offset
            for channel in self._view.channels.values()
            for part, offset in channel.running.items()
            if offset is not None and part in requested and channel.topics.get(part.topic) == self._id(part)
        }
        rest = sorted(requested - found.keys())
        paths = [self._paths.offset(*part) for part in rest]
        for part, path, node in zip(rest, paths, self._store.get_many(paths), strict=True):
            record = readable(OffsetRecord.parse, path, node)
            if record is not None and record.topic_id == self._id(part):
                found[part] = record.offset
        return found

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset that the next record of each will have."""
        places = {TopicIdPartition(part.topic, self._id(part), part.partition): part for part in partitions}
        ends = ends_of(self._log, places)
        return {places[place]: end for place, end in ends.items() if isinstance(end, int)}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset of the oldest record of each."""
        found = {}
        for part in partitions:
            try:
                found[part] = self._log.earliest(part.topic, self._id(part), part.partition)
            except (CoordinatorError, OSError):
                continue
        return found

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        """Racks of the replicas, as registered by Kafka's brokers; empty when unknown."""
        if partition.topic not in self._replicas:
            self._replicas[partition.topic] = _mapping(self._view.data.get(partition.topic, b""), "partitions")
        replicas = self._replicas[partition.topic].get(str(partition.partition))
        ids = [str(broker) for broker in replicas] if isinstance(replicas, list) else []
        racks = self._racks() if ids else {}
        return frozenset(racks[broker] for broker in ids if broker in racks)

    def _racks(self) -> Mapping[str, str]:
        """Broker -> rack."""
        if self._rack_of is None:
            listing = self._store.children(self._brokers.ids)
            names = sorted(name for name in (listing.names if listing else ()) if name.isdigit())
            nodes = self._store.get_many([self._brokers.id(name) for name in names])
            texts = {name: _rack(node.data) for name, node in zip(names, nodes, strict=True) if node is not None}
            self._rack_of = {name: rack for name, rack in texts.items() if rack}
        return self._rack_of

    def _id(self, part: TopicPartition) -> str:
        topic = self._view.topics.get(part.topic)
        return topic.id if topic is not None else ""


def _mapping(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        return Fields.parse("a topic", data, most=MAX_TOPIC_BYTES).mapping(name)
    except BadData:
        return {}


def _rack(data: bytes) -> str:
    try:
        rack = json.loads(data).get("rack")
    except (ValueError, AttributeError):
        return ""
    return rack if isinstance(rack, str) else ""


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

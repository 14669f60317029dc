"""A leader's lookups for its assignor: offsets of the group, ends of the logs, racks of replicas."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from coordinator.zk.errors import BadData, CoordinatorError
from coordinator.zk.store import Store
from coordinator.zk.znodes.json_fields import Fields, readable
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import MAX_TOPIC_BYTES, Channel, OffsetRecord, Topic

from ..logs import Log, TopicIdPartition
from ..types import Offsets


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
        ends = self._log.latest_of(places)
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

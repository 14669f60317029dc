"""Which entries of the channels' `running` count, in a group as it was just read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ..planning.grants import uncounted
from ..planning.snapshot import ChannelView
from ..zk.errors import BadData
from ..zk.store import Store
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.records import OwnerRecord, Topic


def with_counted(
    store: Store,
    paths: GroupPaths,
    state: GroupState,
    channels: Mapping[str, ChannelView],
    owned: tuple[PartitionSet, frozenset[str]],
    topics: Mapping[str, Topic],
) -> dict[str, ChannelView]:
    """`channels`, with the entries of `running` that do not count. Owner znodes are read only where grants are unknown.

    :param owned: the partitions that have an owner znode; and the topics that have had a start.
    """
    owners, begun = owned
    numbers = {name: frozenset(topic.partitions) for name, topic in topics.items()} if state.granted is None else {}

    def is_known(partition: TopicPartition) -> bool:
        return partition in owners or partition.partition in numbers.get(partition.topic, ())

    found = {}
    for name, view in channels.items():
        granted = state.granted_to(name, view.channel.incarnation) if view.channel is not None else NONE
        foreign = _foreign(store, paths, view, owners) if granted is None else NONE
        left = uncounted(granted, view, begun, foreign, is_known)
        found[name] = replace(view, uncounted=left) if left else view
    return found


def _foreign(store: Store, paths: GroupPaths, view: ChannelView, owners: PartitionSet) -> PartitionSet:
    """Partitions that it says it runs, and another incarnation owns."""
    known = sorted(view.claimed & owners)
    places = [paths.owner(*partition) for partition in known]
    incarnation = view.channel.incarnation if view.channel is not None else ""
    found = set()
    for partition, path, node in zip(known, places, store.get_many(places) if places else [], strict=True):
        with suppress(BadData):
            if node is not None and OwnerRecord.parse(path, node.data).incarnation != incarnation:
                found.add(partition)
    return frozenset(found)

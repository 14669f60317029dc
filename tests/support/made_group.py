"""A group whose znodes are made by hand, as coordinator and consumers would leave them: no process runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zk_group.coordinator.zk.store import Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import batches, ensure
from zk_group.coordinator.zk.znodes.group_state import EMPTY, GroupState, Target
from zk_group.coordinator.zk.znodes.partitions import TopicPartition, by_topic
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord, OwnerRecord, Registration, Topic


class MadeGroup:
    """A group, Empty in generation 3 unless `state` is given."""

    def __init__(self, store: Store, name: str = "g", state: str | None = EMPTY, **fields: Any) -> None:
        self.store = store
        self.name = name
        self.paths = GroupPaths(name)
        ensure(store, self.paths.skeleton)
        if state is not None:
            self.state(state, **fields)

    def state(self, state: str, **fields: Any) -> None:
        """The coordinator's last write."""
        data = GroupState(state, **{"generation": 3, "strategy": "range", **fields}).to_bytes()
        is_there = self.store.get(self.paths.state) is not None
        self.store.commit([SetData(self.paths.state, data) if is_there else Create(self.paths.state, data)])

    def offsets_at(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Offsets that members have left."""
        ensure(self.store, [self.paths.offsets_of(topic.name)])
        made = [
            [Create(self.paths.offset(topic.name, n), OffsetRecord(offset, topic.id, 2).to_bytes())]
            for n, offset in offsets.items()
        ]
        for some in batches(made):
            self.store.commit(some)

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        """The offsets in `offsets/`."""
        return {place: record.offset for place, record in self.records.items()}

    @property
    def records(self) -> dict[tuple[str, int], OffsetRecord]:
        """The same, whole."""
        found = {}
        topics = self.store.children(self.paths.offsets)
        for topic in topics.names if topics else ():
            numbers = self.store.children(self.paths.offsets_of(topic))
            for number in numbers.names if numbers else ():
                node = self.store.get(self.paths.offset(topic, int(number)))
                assert node is not None
                found[topic, int(number)] = OffsetRecord.parse("", node.data)
        return found

    def member(
        self,
        consumer: str,
        topics: Mapping[str, int],
        running: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        **registration: Any,
    ) -> Target:
        """A consumer that is registered and runs what it shall; its session is this store's. Returns its target."""
        running = running or {}
        made = Registration(f"life-of-{consumer}"[:64], topics, **{"host": "exec-1", **registration})
        channel = Channel(made.incarnation, 1, 3, running=running, topics=topic_ids or {})
        ensure(self.store, [self.paths.owners_of(topic) for topic in by_topic(running)])
        owner = OwnerRecord(f"{consumer}-0", consumer, made.incarnation, 3).to_bytes()
        self.store.commit(
            [
                Create(self.paths.channel(consumer), channel.to_bytes()),
                Create(self.paths.id(consumer), made.to_bytes(), ephemeral=True),
                *(Create(self.paths.owner(*partition), owner, ephemeral=True) for partition in running),
            ]
        )
        return Target(made.incarnation, {f"{consumer}-0": frozenset(running)} if running else {})

    def leaves(self, consumer: str) -> None:
        """The registration goes; the channel stays."""
        self.store.commit([Delete(self.paths.id(consumer))])

    @property
    def exists(self) -> bool:
        return self.store.get(self.paths.root) is not None

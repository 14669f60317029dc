"""A consumer that only the test polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.assignment.base import ClientAssignor
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.logs.base import Log
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition


class HandPolled(Callbacks):
    """A consumer of group `g`, in the thread of the test.

    :ivar found: partition -> the offsets of all records that polls have returned.
    :ivar events: its callbacks, in order.
    :ivar revokes: called inside the callback of a revocation.
    """

    def __init__(
        self,
        world: World,
        name: str = "c1",
        log: Log | None = None,
        topics: tuple[str, ...] = ("t",),
        opener: Callable[[], Store] | None = None,
        assignors: Sequence[ClientAssignor] = (),
        **options: Any,
    ) -> None:
        config = ConsumerConfig(world.zk, "g", name, **{"session_timeout_ms": 4000, **options})
        self.found: dict[TopicPartition, list[int]] = {}
        self.events: list[tuple[str, PartitionSet]] = []
        self.revokes: Callable[[], object] | None = None
        subscription = Subscription(dict.fromkeys(topics, 1))
        self.consumer = Consumer(config, subscription, self, source=log, open_store=opener, assignors=assignors)

    def poll(self, timeout_ms: int = 20, most: int | None = None) -> dict[TopicPartition, list[int]]:
        """The offsets of the records that a poll returns."""
        some = self.consumer.poll(timeout_ms, most)
        found = {partition: [record.offset for record in records] for partition, records in some.items()}
        for partition, offsets in found.items():
            self.found.setdefault(partition, []).extend(offsets)
        return found

    def polls(self, times: int) -> None:
        """Poll until so many polls have returned records."""
        for _ in range(times):
            eventually(self.poll, 15, "records")

    def has(self, records: int) -> None:
        """Poll until so many records were returned in all."""
        eventually(lambda: [self.poll()] and sum(map(len, self.found.values())) >= records, 15, f"{records} records")

    def holds(self, partitions: PartitionSet) -> None:
        """Poll until it has these partitions."""
        eventually(lambda: [self.poll()] and self.consumer.assignment() == partitions, 15, f"it holds {partitions}")

    def is_at(self, end: int) -> None:
        """Poll until every partition that it holds has been read up to `end`."""

        def look() -> bool:
            self.poll()
            held = self.consumer.assignment()
            return bool(held) and all(self.consumer.position(partition) == end for partition in held)

        eventually(look, 15, f"all is read up to {end}")

    @property
    def begun(self) -> dict[TopicPartition, int]:
        """Of each partition the first offset that was returned."""
        return {partition: offsets[0] for partition, offsets in self.found.items()}

    @property
    def returned(self) -> dict[TopicPartition, int]:
        """Of each partition the offset after the last one that was returned."""
        return {partition: offsets[-1] + 1 for partition, offsets in self.found.items()}

    @property
    def store(self) -> Store:
        found = self.consumer.member.store
        assert found is not None
        return found

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.events.append(("revoked", partitions))
        if self.revokes is not None:
            self.revokes()

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self.events.append(("lost", partitions))

    def vanish(self) -> None:
        """End without a word to the group."""
        self.store.close()

    def close(self) -> None:
        self.consumer.close()


Polling = Callable[..., HandPolled]
"""Makes one that ends with the test."""

"""Offsets in ZooKeeper: read when a partition was claimed, written by whoever ends the hold on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.partitions import NONE, TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel, OffsetRecord
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import MAX_OPERATIONS, Delete, Node, Operation, Store

from .ownership import PARTITIONS_A_STEP, offset_operations, release_operations

log = logging.getLogger(__name__)


READ_AGAIN_S = 1.0
"""How often an offset is looked for again that could not be read."""


class Offsets:
    """The offsets of one consumer's partitions.

    What a partition has of znodes is known from its claim: to read that again before each commit would cost more than
    the commit. Whoever is refused because somebody has changed them by hand says so with `doubt`, and it is read.

    :param earliest: the first offset of a partition in the log: (topic, topic id, partition).
    """

    def __init__(self, runtime: Runtime, paths: GroupPaths, earliest: Callable[[str, str, int], int]) -> None:
        self._runtime = runtime
        self._paths = paths
        self._earliest = earliest
        self._published: dict[TopicPartition, int | None] = {}
        self._publishing: dict[TopicPartition, int | None] = {}
        self._complaints: dict[TopicPartition, str] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._has_znode: dict[TopicPartition, bool] = {}
        self._is_in_doubt = False

    def doubt(self, path: str) -> bool:
        """A commit was refused at `path`; whether what is known of znodes is to blame, and another try is worth it."""
        was_in_doubt = self._is_in_doubt
        self._is_in_doubt |= path.startswith((f"{self._paths.owners}/", f"{self._paths.offsets}/"))
        return self._is_in_doubt and not was_in_doubt

    def believe(self) -> None:
        """A commit went through."""
        self._is_in_doubt = False

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition]) -> Channel:
        """`channel` with the offsets of `partitions` filled in.

        Under another topic id, or where none was ever written, fetching starts at the earliest record. An offset that
        cannot be read leaves its partition unfetched, and is said: to begin anew would bring records twice.
        """
        now = self._runtime.monotonic()
        self._forget_others(channel)
        wanted = sorted(part for part in partitions if self._not_before.get(part, now) <= now)
        nodes = store.get_many([self._paths.offset(*partition) for partition in wanted])
        found: dict[TopicPartition, int | None] = {}
        self._has_znode |= {part: node is not None for part, node in zip(wanted, nodes, strict=True)}
        for partition, node in zip(wanted, nodes, strict=True):
            try:
                found[partition] = self._start(partition, channel.topics.get(partition.topic, ""), node)
                self._complaints.pop(partition, None)
            except (CoordinatorError, OSError) as error:
                self._complain(partition, str(error))
                self._not_before[partition] = now + READ_AGAIN_S
        return replace(channel, running={**channel.running, **found})

    def _forget_others(self, channel: Channel) -> None:
        """What is noted of partitions that run no more must not pile up."""
        self._published = {part: offset for part, offset in self._published.items() if part in channel.running}
        self._complaints = {part: why for part, why in self._complaints.items() if part in channel.running}
        self._not_before = {part: at for part, at in self._not_before.items() if part in channel.running}
        self._has_znode = {part: has for part, has in self._has_znode.items() if part in channel.running}

    def _start(self, partition: TopicPartition, topic_id: str, node: Node | None) -> int:
        if node is not None:
            record = OffsetRecord.parse(self._paths.offset(*partition), node.data)
            if record.topic_id == topic_id:
                return record.offset
        return self._earliest(partition.topic, topic_id, partition.partition)

    def _complain(self, partition: TopicPartition, problem: str) -> None:
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition waits for its offset: partition=%s problem=%s", partition, problem)

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that are held but not fetched, each with the reason."""
        return dict(self._complaints)

    def known(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` have an offset znode."""
        wanted = sorted(partitions)
        nodes = store.get_many([self._paths.offset(*partition) for partition in wanted])
        return frozenset(part for part, node in zip(wanted, nodes, strict=True) if node is not None)

    def owned(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` have an owner znode."""
        wanted = sorted(partitions)
        nodes = store.get_many([self._paths.owner(*partition) for partition in wanted])
        return frozenset(part for part, node in zip(wanted, nodes, strict=True) if node is not None)

    def release(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition]) -> list[Operation]:
        """The operations that give `partitions` up: offsets written, owners removed."""
        some = frozenset(partitions)
        if not self._is_in_doubt and all(p in self._has_znode for p in some if channel.running.get(p) is not None):
            known = frozenset(part for part in some if self._has_znode.get(part))
            return release_operations(self._paths, channel, some, known, some)
        return release_operations(self._paths, channel, some, self.known(store, some), self.owned(store, some))

    def in_the_way(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` cannot be claimed, because an owner znode stands there."""
        return self.owned(store, partitions) if self._is_in_doubt else NONE

    def ended(self, store: Store, consumer: str, channel: Channel, reason: str) -> tuple[Channel, list[Operation]]:
        """The channel of an incarnation that ends itself, and what goes with it.

        What does not fit into one multi stays in `running`: the fence has moved, and the coordinator writes it out.
        """
        ids: list[Operation] = [Delete(self._paths.id(consumer))]
        if len(channel.running) > PARTITIONS_A_STEP:
            return replace(channel, ended=reason), ids
        self._is_in_doubt = True  # there is no second try
        released = self.release(store, channel, channel.running)
        return replace(channel, running={}, topics={}, ended=reason, refused=NONE), released + ids

    def publish(self, store: Store, channel: Channel) -> list[Operation]:
        """Operations that write the offsets that moved since they were `published` last into `offsets/`: for people.

        At most one multi's worth; the rest goes with the next call.
        """
        moved = [p for p, o in sorted(channel.running.items()) if o is not None and self._published.get(p) != o]
        some = moved[: MAX_OPERATIONS - 10]
        self._publishing = {partition: channel.running[partition] for partition in some}
        return offset_operations(self._paths, channel, some, self.known(store, some))

    def published(self) -> None:
        """The operations of the last `publish` have been committed."""
        self._published |= self._publishing
        self._has_znode |= dict.fromkeys(self._publishing, True)

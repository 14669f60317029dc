"""The pool's znode: an ephemeral of the driver's session with the number of slots."""

from __future__ import annotations

import logging

from coordinator.zk.errors import BadData, OutcomeUnknown, Refused, SessionLost, StoreError, ZooKeeperUnreachable
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Create, Delete, Node, Operation, SetData, Store, StoreFactory
from coordinator.zk.update import WatchedNode, ensure
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import parsed_channel
from coordinator.zk.znodes.segments import Pool

from ...errors import FencedInstanceId

log = logging.getLogger(__name__)


class PoolPost:
    """Keeps the znode of one run of a pool, over all its sessions. For one thread at a time."""

    def __init__(self, open_store: StoreFactory, runtime: Runtime, group: str, pool: str, run: str) -> None:
        self._open_store = open_store
        self._paths = GroupPaths(group)
        self._path = self._paths.pool(pool)
        self._run = run
        self._store: Store | None = None
        self._watched = WatchedNode(runtime, self._path)
        self._is_posted = False

    @property
    def living(self) -> Store | None:
        """The driver's session, None without one. For any thread."""
        store = self._store
        return store if store is not None and not store.lost else None

    def keep(self, slots: int) -> None:
        """Write `slots` into the znode: slots with lower numbers run. The newest run of a pool owns the name.

        :raises FencedInstanceId: when a newer run has taken it.
        :raises StoreError: when there was no answer; call again.
        :raises ZooKeeperUnreachable: when no server answers.
        """
        store = self.store()
        node = self._watched.read(store)
        is_mine = node is not None and self._is_mine(node)
        if node is not None and not is_mine and self._is_posted:
            raise FencedInstanceId("another driver has taken the pool over")
        data = Pool(slots, self._run).to_bytes()
        if node is not None and is_mine and node.stat.ephemeral_owner == store.session_id and node.data == data:
            self._is_posted = True
            return
        self._write(store, node, data)

    def _is_mine(self, node: Node) -> bool:
        try:
            return Pool.parse(self._path, node.data).run == self._run
        except BadData as error:
            log.warning("unreadable znode replaced: path=%s problem=%s", self._path, error)
            return False

    def _write(self, store: Store, node: Node | None, data: bytes) -> None:
        operations: list[Operation] = [Create(self._path, data, ephemeral=True)]
        if node is not None and node.stat.ephemeral_owner == store.session_id:
            operations = [SetData(self._path, data, node.stat.version)]
        elif node is not None:
            operations.insert(0, Delete(self._path, node.stat.version))
        try:
            ensure(store, self._paths.skeleton)
            store.commit(operations)
            self._is_posted = True
        except (Refused, OutcomeUnknown) as error:
            log.info("pool znode changed: path=%s reason=%s", self._path, error)
            self._watched.forget()
            raise
        self._watched.forget()

    def store(self) -> Store:
        """The driver's session; a new one when the last has ended.

        :raises ZooKeeperUnreachable: when no server answers.
        """
        if self._store is None or self._store.lost:
            self.close()
            self._store = self._open_store()
        return self._store

    def unreleased(self, consumers: list[str]) -> list[str]:
        """Consumers that may still hold partitions: their `ids` exists, or their channel is live.

        :raises StoreError: when there was no answer.
        """
        store = self.store()
        ids = store.get_many([self._paths.id(consumer) for consumer in consumers])
        channels = store.get_many([self._paths.channel(consumer) for consumer in consumers])
        return [
            consumer
            for consumer, member, channel in zip(consumers, ids, channels, strict=True)
            if member is not None or (channel is not None and _is_live(channel))
        ]

    def close(self) -> None:
        """End the session, which removes the znode."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _is_live(node: Node) -> bool:
    try:
        return parsed_channel("a channel", node.data).is_live
    except BadData:
        return False


UNANSWERED = (StoreError, SessionLost, ZooKeeperUnreachable)
"""Errors after which the keeper tries again."""

"""A cached znode, read again when its watch fires and, in case a watch was lost, every `READ_AGAIN_S` seconds."""

from __future__ import annotations

from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Node, Store

READ_AGAIN_S = 10.0


class WatchedNode:
    """One cached znode. For one thread; only the watch callback runs in another."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._runtime = runtime
        self.path = path
        self._store: Store | None = None
        self._is_dirty = True
        self._read_at = float("-inf")
        self.node: Node | None = None

    def read(self, store: Store) -> Node | None:
        """The znode, None when it does not exist; a round trip only when it may have changed.

        :raises ConnectionLost: when there was no answer; `node` keeps the last value read.
        :raises SessionLost: when the session is over.
        """
        now = self._runtime.monotonic()
        if self._is_dirty or store is not self._store or now - self._read_at >= READ_AGAIN_S:
            self._is_dirty = False
            try:
                self.node = store.get(self.path, watch=self._on_change)
            except BaseException:
                self._is_dirty = True
                raise
            self._store, self._read_at = store, now
        return self.node

    def _on_change(self, path: str) -> None:
        self._is_dirty = True

    def forget(self) -> None:
        """Invalidate the cache after a write: the next `read` asks ZooKeeper."""
        self._is_dirty = True

"""A znode that others change now and then, read when its watch fires and, for watches that were lost, now and then."""

from __future__ import annotations

from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Node, Store

READ_AGAIN_S = 10.0


class WatchedNode:
    """One znode. For one thread; only the watch comes from another."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._runtime = runtime
        self.path = path
        self._store: Store | None = None
        self._is_dirty = True
        self._read_at = float("-inf")
        self.node: Node | None = None

    def read(self, store: Store) -> Node | None:
        """The znode, None when it does not exist; a round trip only when it may have changed.

        :raises ConnectionLost: when there was no answer; `node` is still what was read last.
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
        """Read it the next time, whatever the watch says: it was written."""
        self._is_dirty = True

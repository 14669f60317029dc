"""ZooKeeper's own wall clock."""

from __future__ import annotations

from ..zk.runtime import Runtime
from ..zk.store import Store
from ..zk.znodes.paths import COORDINATOR_EPOCH


class ServerClock:
    """ZooKeeper's own wall clock: the write time of this term's epoch, plus the monotonic time since.

    Ages of znodes are their server's times against this clock, never against this host's, which may be days ahead: live
    znodes would look dead. A host that slept counts too little, and collects later.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._began: float | None = None
        self._began_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970; 0, so that nothing is old, while the epoch is unreadable.

        :raises Retryable: when ZooKeeper did not answer.
        """
        if self._began is None:
            self.begin()
        if self._began is None:
            return 0
        return self._began_ms + round(1000 * (self._runtime.monotonic() - self._began))

    def begin(self) -> None:
        """Start counting, right after the election: a later start would make the clock late by the difference.

        :raises Retryable: when ZooKeeper did not answer.
        """
        node = self._store.get(COORDINATOR_EPOCH)
        if node is not None:
            self._began, self._began_ms = self._runtime.monotonic(), node.stat.mtime_ms

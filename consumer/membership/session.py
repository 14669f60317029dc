"""The ZooKeeper sessions of a consumer, one after the other, and the lease that each continues."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.zk.lease import Heard, Lease
from coordinator.zk.runtime import Runtime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import StateListener, Store, StoreFactory

from ..config import ConsumerConfig


def opener_of(config: ConsumerConfig, kind: str) -> StoreFactory:
    """Opens sessions for a consumer, as its configuration has them.

    :param kind: with the consumer's name the client in log lines: `consumer`, `slot`, `member`.
    """
    connect_timeout_s = config.connect_timeout_ms / 1000
    client = f"{kind} {config.consumer}"
    return kazoo_factory(config.zk, config.session_timeout_ms, connect_timeout_s, client, config.access)


class ConsumerSession:
    """The current session. For the poll side.

    :ivar store: None when there is none.
    """

    def __init__(self, open_store: StoreFactory, runtime: Runtime, on_state: StateListener) -> None:
        self._open_store = open_store
        self._runtime = runtime
        self._on_state = on_state
        self._opened_at = float("-inf")
        self._last_lease: Lease | None = None
        self.store: Store | None = None

    def open(self) -> Store:
        """The session, a new one when the last has ended.

        :raises ZooKeeperUnreachable: when no server answers.
        """
        if self.store is not None and not self.store.lost:
            return self.store
        self.close()
        self._opened_at = self._runtime.monotonic()
        self.store = self._open_store()
        self.store.add_listener(self._on_state)
        return self.store

    def lease(self, store: Store, read_fence: Callable[[], None]) -> Lease:
        """A lease for another incarnation on this session, which continues the last one."""
        heard = self._last_lease.heard if self._last_lease else Heard(self._opened_at)
        self._last_lease = Lease(store, self._runtime, read_fence, "consumer", heard)
        return self._last_lease

    def close(self) -> None:
        """End the session."""
        store, self.store, self._last_lease = self.store, None, None
        if store is not None:
            store.close()

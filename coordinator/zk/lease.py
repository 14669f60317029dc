"""The lease: how long a process may act on what ZooKeeper last told it.

A client learns that its session has expired only when a server tells it, and a follower that is cut off from the leader
still answers reads. So both sides count for themselves: 2/3 of the negotiated session timeout, from the moment when the
last `sync` was sent that was answered and followed by a read of the own fence.
"""

from __future__ import annotations

from collections.abc import Callable

from .runtime import Runtime
from .store import Store

LEASE_SHARE = 2 / 3
RENEWALS_A_TIMEOUT = 6


class Lease:
    """A lease on one session.

    :param read_fence: reads the own fence; raises when somebody newer has moved it.
    :param role: whose it is, for the history: `coordinator` or `consumer`.
    """

    def __init__(self, store: Store, runtime: Runtime, read_fence: Callable[[], None], role: str) -> None:
        self._store = store
        self._runtime = runtime
        self._read_fence = read_fence
        self._role = role
        self._renewed_at = float("-inf")

    @property
    def length_s(self) -> float:
        """Seconds that a renewal is good for."""
        return self._store.negotiated_timeout_s * LEASE_SHARE

    @property
    def interval_s(self) -> float:
        """Seconds between renewals."""
        return self._store.negotiated_timeout_s / RENEWALS_A_TIMEOUT

    @property
    def left_s(self) -> float:
        """Seconds until the lease lapses; 0 when it has."""
        return max(0.0, self._renewed_at + self.length_s - self._runtime.monotonic())

    @property
    def is_held(self) -> bool:
        """Whether the process may act."""
        return self.left_s > 0

    def renew(self) -> None:
        """Ask ZooKeeper.

        :raises Retryable: when it did not answer; the lease runs on as it was.
        :raises Fenced: when the fence has moved.
        :raises SessionLost: when the session is over.
        """
        sent_at = self._runtime.monotonic()
        self._store.sync()
        self._read_fence()
        self._renewed_at = max(self._renewed_at, sent_at)
        until = self._renewed_at + self.length_s
        self._runtime.record("lease", role=self._role, session=self._store.session_id, until=until)

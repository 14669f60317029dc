"""The lease: how long a process may act on what ZooKeeper last told it.

A client learns that its session has expired only when a server tells it, and a follower that is cut off from the leader
still answers reads. So both sides count for themselves: 2/3 of the negotiated session timeout, from the moment when the
leader has certainly heard of the session.

That is not yet the moment of the last answered `sync`: a follower passes a sync on, but tells the leader whom it has
heard only when the leader asks, every half tick (measured: a session was silent for 0.85 of its timeout, a sync was
answered, its follower cut off at once; the session expired 0.8 s later). By the time that a later sync is answered the
leader has heard of the one before. So a renewal counts from the sync before it, if that is half a tick older: an eighth
of a session of four ticks or more.
"""

from __future__ import annotations

from collections.abc import Callable

from .runtime import Runtime
from .store import Store

LEASE_SHARE = 2 / 3
RENEWALS_A_TIMEOUT = 6
REPORTED_AFTER_SHARE = 1 / 8
"""Half a tick, in session timeouts."""

CONFIRMED_AFTER_SHARE = 1 / 7
"""How soon a renewal is followed by the one that confirms it, while the lease is not held."""


class Lease:
    """A lease on one session.

    :param read_fence: reads the own fence; raises when somebody newer has moved it.
    :param role: whose it is, for the history: `coordinator` or `consumer`.
    :param heard_at: when the leader has certainly heard of the session, by the monotonic clock: before it was opened,
        since opening it is the leader's own transaction. None for who does not know, and whom other fences hold: its
        first lease counts from its own sync.
    """

    def __init__(
        self, store: Store, runtime: Runtime, read_fence: Callable[[], None], role: str, heard_at: float | None = None
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._read_fence = read_fence
        self._role = role
        self._heard_at = heard_at
        self._synced_at: float | None = None

    @property
    def length_s(self) -> float:
        """Seconds that a renewal is good for."""
        return self._store.negotiated_timeout_s * LEASE_SHARE

    @property
    def interval_s(self) -> float:
        """Seconds between renewals."""
        return self._store.negotiated_timeout_s / RENEWALS_A_TIMEOUT

    @property
    def due_s(self) -> float:
        """Seconds until it is to be renewed again; sooner while it is not held: the next renewal confirms the last."""
        share = 1 / RENEWALS_A_TIMEOUT if self.is_held else CONFIRMED_AFTER_SHARE
        return self._store.negotiated_timeout_s * share

    @property
    def heard_at(self) -> float | None:
        """When the leader has certainly heard of the session; for another lease on it."""
        return self._heard_at

    @property
    def left_s(self) -> float:
        """Seconds until the lease lapses; 0 when it has."""
        if self._synced_at is None or self._heard_at is None:
            return 0.0
        return max(0.0, self._heard_at + self.length_s - self._runtime.monotonic())

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
        reported_after_s = self._store.negotiated_timeout_s * REPORTED_AFTER_SHARE
        before = self._synced_at
        if self._heard_at is None:
            self._heard_at = sent_at
        if before is None or sent_at - before >= reported_after_s:
            self._synced_at = sent_at
            self._heard_at = max(self._heard_at, before) if before is not None else self._heard_at
        until = self._heard_at + self.length_s
        self._runtime.record("lease", role=self._role, session=self._store.session_id, until=until)

"""The lease: how long a process may act after its last renewal.

A client learns of its session's expiry late, and a follower cut off from the leader still answers reads. So both sides
count locally: 2/3 of the negotiated session timeout, from the moment when the leader has certainly heard of the
session.

That moment is earlier than the last answered `sync`: a follower forwards a sync, but reports its live sessions only
when the leader pings, every half tick (measured: a session was silent for 0.85 of its timeout, a sync was answered,
its follower cut off at once; the session expired 0.8 s later). Once a later sync is answered, the leader has heard of
the session at the one before. So a renewal counts from the previous sync, if that is half a tick older: an eighth of a
session of four ticks or more.
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
"""Delay of the confirming renewal while the lease is not held."""


class Lease:
    """A lease on one session.

    :param read_fence: reads the own fence; raises when a newer process has moved it.
    :param role: the owner, for the history: `coordinator` or `consumer`.
    :param heard_at: when the leader has certainly heard of the session, by the monotonic clock: before it was opened,
        since opening is a transaction of the leader. None when unknown, for owners with other fences: the first lease
        then counts from their own sync.
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
        """Length of a lease in seconds."""
        return self._store.negotiated_timeout_s * LEASE_SHARE

    @property
    def due_s(self) -> float:
        """Seconds until the next renewal; fewer while it is not held: the next renewal confirms the last."""
        share = 1 / RENEWALS_A_TIMEOUT if self.is_held else CONFIRMED_AFTER_SHARE
        return self._store.negotiated_timeout_s * share

    @property
    def heard_at(self) -> float | None:
        """When the leader has certainly heard of the session; for another lease on the same session."""
        return self._heard_at

    @property
    def left_s(self) -> float:
        """Seconds until the lease expires; 0 once it has."""
        if self._synced_at is None or self._heard_at is None:
            return 0.0
        return max(0.0, self._heard_at + self.length_s - self._runtime.monotonic())

    @property
    def is_held(self) -> bool:
        """Whether the process may act."""
        return self.left_s > 0

    def renew(self) -> None:
        """Renew the lease.

        :raises Retryable: when ZooKeeper did not answer; the lease keeps its expiry.
        :raises Fenced: when the fence has moved.
        :raises SessionLost: when the session is over.
        """
        sent_at = self._runtime.monotonic()
        self._store.sync()
        self._read_fence()
        reported_after_s = self._store.negotiated_timeout_s * REPORTED_AFTER_SHARE
        before = synced_at = self._synced_at
        heard_at = sent_at if self._heard_at is None else self._heard_at
        if before is None or sent_at - before >= reported_after_s:
            synced_at = sent_at
            heard_at = max(heard_at, before) if before is not None else heard_at
        until = heard_at + self.length_s
        # Recorded before it counts: the history has no act of another thread under a lease that it does not have yet.
        self._runtime.record("lease", role=self._role, session=self._store.session_id, until=until)
        self._synced_at, self._heard_at = synced_at, heard_at

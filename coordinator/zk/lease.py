"""The lease: how long a process may act after its last renewal.

A client learns of its session's expiry late, and a follower cut off from the leader still answers reads. So both sides
count locally: 2/3 of the negotiated session timeout, from the moment when the leader has certainly heard of the
session.

That moment is earlier than the last answered `sync`: a follower forwards a sync, but reports its live sessions only
when the leader pings, every half tick (measured: a session was silent for 0.85 of its timeout, a sync was answered,
its follower cut off at once; the session expired 0.8 s later). Of three syncs, the second sent half a tick after the
answer of the first, the third so long after that of the second, the third is behind the report that the follower has
made since the first: once it is answered, the leader has certainly heard of the session at the first.

So a lease counts from the renewal before, and ends at 11/12 of the timeout from the one before that.
`tests/model/lease.py` searches the interleavings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from .runtime import Runtime
from .store import Store

log = logging.getLogger(__name__)

LEASE_SHARE = 2 / 3
RENEWALS_A_TIMEOUT = 6
REPORTED_AFTER_SHARE = 0.16
"""More than half a tick, in session timeouts of four ticks, and less than the renewal interval."""

CERTAIN_SHARE = 11 / 12
"""A session lasts this part of its timeout, by any clock, from the leader's last report of it."""


class Heard(NamedTuple):
    """When the leader has heard of a session, to its process's knowledge, by the monotonic clock.

    :ivar certain: when it certainly has.
    :ivar before: when the sync of the renewal before the last was sent: a lease counts from it.
    :ivar last: when the sync of the last renewal was sent.  :ivar answered_at: when it was answered.
    """

    certain: float
    before: float | None = None
    last: float | None = None
    answered_at: float = 0.0

    def synced(self, sent_at: float, answered_at: float, timeout_s: float) -> Heard:
        """The same after the reply to another sync."""
        if self.last is not None and sent_at - self.answered_at < timeout_s * REPORTED_AFTER_SHARE:
            return self
        return Heard(self._since, self.last, sent_at, answered_at)

    def until(self, timeout_s: float) -> float:
        """The end of a lease."""
        return min(self._since + timeout_s * LEASE_SHARE, self.certain + timeout_s * CERTAIN_SHARE)

    @property
    def _since(self) -> float:
        return self.certain if self.before is None else self.before


class LeaseLog:
    """The loss of a lease and its return, in the log, over all leases of one owner. For one thread.

    :param owner: for the log, as `consumer c1`.
    """

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._until: float | None = None
        self._is_lost = False

    def look(self, lease: Lease | None) -> None:
        """Log the change since the last call; in between the lease may have lapsed and been renewed."""
        now, left_s = self._runtime.monotonic(), lease.left_s if lease is not None else 0.0
        if left_s > 0:
            if self._is_lost and self._until is not None:
                log.warning("lease returned: owner=%s after_s=%.1f", self._owner, max(0.0, now - self._until))
            self._until, self._is_lost = now + left_s, False
        elif self._until is not None and not self._is_lost:
            self._is_lost = True
            self._until = min(self._until, now)
            log.warning("lease lost: owner=%s consequence=%s", self._owner, "nothing is fetched or written without it")


class Lease:
    """A lease on one session.

    :param read_fence: reads the own fence; raises when a newer process has moved it.
    :param role: the owner, for the history: `coordinator` or `consumer`.
    :param heard: knowledge of the session: its opening (a transaction of the leader), or that of another lease on it.
        None for owners with other fences: the first lease then counts from their own sync.
    """

    def __init__(
        self, store: Store, runtime: Runtime, read_fence: Callable[[], None], role: str, heard: Heard | None = None
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._read_fence = read_fence
        self._role = role
        self.heard = heard
        self._is_renewed = False

    @property
    def due_s(self) -> float:
        """Seconds until the next renewal."""
        return self._store.negotiated_timeout_s / RENEWALS_A_TIMEOUT

    @property
    def left_s(self) -> float:
        """Seconds until the lease expires; 0 once it has."""
        if self.heard is None or not self._is_renewed:
            return 0.0
        return max(0.0, self.heard.until(self._store.negotiated_timeout_s) - self._runtime.monotonic())

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
        timeout_s = self._store.negotiated_timeout_s
        heard = (self.heard or Heard(sent_at)).synced(sent_at, self._runtime.monotonic(), timeout_s)
        self._read_fence()
        # Recorded before it counts: another thread's act under a lease always follows the lease in the history.
        self._runtime.record("lease", role=self._role, session=self._store.session_id, until=heard.until(timeout_s))
        self.heard, self._is_renewed = heard, True

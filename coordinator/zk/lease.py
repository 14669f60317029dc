"""The lease: how long a process may act after its last renewal.

A client learns of its session's expiry late, and a follower cut off from the leader still answers reads. So both sides
count locally: 2/3 of the negotiated session timeout, from the moment when the leader has certainly heard of the
session.

That moment is earlier than the last answered `sync`: a follower forwards a sync, but reports its live sessions only
when the leader pings, every half tick (measured: a session was silent for 0.85 of its timeout, a sync was answered,
its follower cut off at once; the session expired 0.8 s later). Half a tick is an eighth of a session of four ticks or
more. Of three syncs, each sent so long after the answer of the one before, the third is behind the report that the
follower has made since the first: once it is answered, the leader has certainly heard of the session at the first.

So far back a lease would be short. It counts from the second: its session lives when the third is answered, and
lasts its timeout from the first at least, so that the lease is over before, if the second was at most a quarter of the
timeout after the first. If it was later, the lease counts from the first. `tests/model/lease.py` searches the
interleavings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .runtime import Runtime
from .store import Store

LEASE_SHARE = 2 / 3
RENEWALS_A_TIMEOUT = 6
REPORTED_AFTER_SHARE = 1 / 8
"""Half a tick, in session timeouts."""

CONFIRMED_AFTER_SHARE = 1 / 7
"""Delay of the confirming renewal while the lease is not held."""

NEAR_SHARE = 1 / 4
"""Longest distance of two syncs of which the later one starts a lease, in session timeouts."""


class Heard(NamedTuple):
    """When the leader has heard of a session, as far as its process knows, by the monotonic clock.

    :ivar certain: when it has certainly: the sending of the first of three syncs.  :ivar second: of the second one.
    :ivar third: of the last one.  :ivar answered_at: the answer of that.
    """

    certain: float
    second: float | None = None
    third: float | None = None
    answered_at: float = 0.0

    def synced(self, sent_at: float, answered_at: float, timeout_s: float) -> Heard:
        """After the answer of another sync."""
        if self.third is not None and sent_at - self.answered_at < timeout_s * REPORTED_AFTER_SHARE:
            return self
        return Heard(self.certain if self.second is None else self.second, self.third, sent_at, answered_at)

    def lease_since(self, timeout_s: float) -> float:
        """When the lease began."""
        is_near = self.second is not None and self.second - self.certain <= timeout_s * NEAR_SHARE
        return self.second if self.second is not None and is_near else self.certain


class Lease:
    """A lease on one session.

    :param read_fence: reads the own fence; raises when a newer process has moved it.
    :param role: the owner, for the history: `coordinator` or `consumer`.
    :param heard: what is known of the session: that the leader has heard of it before it was opened (opening is a
        transaction of the leader), or what another lease on it has found. None when nothing is, for owners with other
        fences: the first lease then counts from their own sync.
    """

    def __init__(
        self, store: Store, runtime: Runtime, read_fence: Callable[[], None], role: str, heard: Heard | None = None
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._read_fence = read_fence
        self._role = role
        self.heard = heard
        self._until = float("-inf")

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
    def left_s(self) -> float:
        """Seconds until the lease expires; 0 once it has."""
        return max(0.0, self._until - self._runtime.monotonic())

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
        answered_at = self._runtime.monotonic()
        self._read_fence()
        timeout_s = self._store.negotiated_timeout_s
        heard = (self.heard or Heard(sent_at)).synced(sent_at, answered_at, timeout_s)
        until = heard.lease_since(timeout_s) + self.length_s
        # Recorded before it counts: the history has no act of another thread under a lease that it does not have yet.
        self._runtime.record("lease", role=self._role, session=self._store.session_id, until=until)
        self.heard, self._until = heard, until

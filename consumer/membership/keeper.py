"""The only other thread of a consumer: it keeps the lease, and leaves when the application has stopped polling."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from coordinator.zk.errors import IncarnationOver, SessionLost, StoreError
from coordinator.zk.lease import Lease
from coordinator.zk.runtime import Task
from coordinator.zk.store import Store
from coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID

from ..errors import ChannelGone, UnknownMemberId
from .call_guard import MemberContext
from .channel import FencedChannel
from .offsets import CommittedOffsets

log = logging.getLogger(__name__)


FAILING_SHARE = 2 / 3
"""Of `max_poll_interval_ms`; the keeper looks every sixth, and so leaves before an eviction."""


def heartbeat_s(due_s: float, max_poll_interval_ms: int) -> float:
    """Seconds between two looks of the keeper, at most a sixth of `max_poll_interval_ms`.

    A whole number of them makes `due_s`: a renewal that comes a little early does not count, nor does the next one
    until it is due.
    """
    return due_s / math.ceil(due_s / (max_poll_interval_ms / 6000))


class Keeper:
    """Keeps one consumer alive between polls, over all its incarnations.

    :param has_owners: whether running partitions have owner znodes.
    :ivar last_poll: time of the application's last poll.  :ivar last_commit: time of the last channel write.
    :ivar closing: set when the consumer closes.
    """

    def __init__(self, context: MemberContext, offsets: CommittedOffsets, has_owners: bool = True) -> None:
        self._has_owners = has_owners
        self._config = context.config
        self._runtime = context.runtime
        self._wake = context.wake
        self._offsets = offsets
        self._calls = context.calls
        self.closing = context.runtime.event()
        self.last_poll = self.last_commit = self._last_look = context.runtime.monotonic()

    def start(self, store: Store, fenced: FencedChannel, lease: Lease) -> Task:
        """Keep this incarnation until it is over."""
        self.last_commit = self._runtime.monotonic()
        return self._runtime.spawn(lambda: self._keep(store, fenced, lease), f"keeper-{self._config.consumer}")

    def _keep(self, store: Store, fenced: FencedChannel, lease: Lease) -> None:
        """Renew the lease every 1/6 of the session timeout; leave when the application has stopped polling."""
        while fenced.over is None and not store.lost and not self.closing.is_set():
            try:
                lease.renew()
                self._touch_or_leave(store, fenced)
                self._look_again(store)
            except (IncarnationOver, SessionLost) as error:
                log.info("heartbeat stopped: consumer=%s reason=%s", self._config.consumer, error)
                break
            except StoreError as error:
                log.debug("heartbeat failed, retrying: lease_left_s=%.1f reason=%s", lease.left_s, error)
            self.closing.wait(heartbeat_s(lease.due_s, self._config.max_poll_interval_ms))
        if isinstance(fenced.over, ChannelGone):
            store.close()  # removes the owner znodes of running partitions; a hung consumer would not end its session
        self._wake.set()

    def _touch_or_leave(self, store: Store, fenced: FencedChannel) -> None:
        """A heartbeat every third of `max_poll_interval_ms`; leave when no poll came for the whole interval.

        Also when a callback has raised, and no poll has succeeded since, for `FAILING_SHARE` of it: the coordinator,
        which evicts the member after the whole, would give slow polling as the reason, not the callback's exception.

        Heartbeats continue between polls: the coordinator, which waits as long for one, evicts no consumer within its
        time.
        """
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if failing := self._calls.failing(limit_s * FAILING_SHARE):
            self._leave(store, fenced, f"left by itself: {failing}")
        elif now - self.last_poll >= limit_s:
            reason = f"left by itself: poll was not called for {self._config.max_poll_interval_ms} ms"
            self._leave(store, fenced, f"{reason} (raise max_poll_interval_ms, or lower max_poll_records)")
        elif now - self.last_commit >= limit_s / 3:
            fenced.touch()
            self.last_commit = now

    def _look_again(self, store: Store) -> None:
        """Once a session timeout, and before an eviction, the channel is read unconditionally: a watch may be lost."""
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if now - self._last_look >= min(store.negotiated_timeout_s, limit_s / 2):
            self._last_look = now
            self._wake.set()

    def _leave(self, store: Store, fenced: FencedChannel, reason: str) -> None:
        with fenced.lock:  # an application that resumes just now commits before this, or is refused
            after, operations = self._offsets.ended(
                store, self._config.consumer, fenced.channel, reason, UNKNOWN_MEMBER_ID
            )
            if not self._has_owners:
                # No partition was revoked: while the channel has them, the coordinator waits for the lease to expire.
                after = replace(after, ask=fenced.channel.ask)
            fenced.end(after, operations, UnknownMemberId(reason))
        log.warning("left: group=%s consumer=%s reason=%s", self._config.group, self._config.consumer, reason)

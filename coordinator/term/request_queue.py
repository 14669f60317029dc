"""The rebalance request queue: blocking, keyed by group, one handler per group.

Seed 000's `rebalanceRequestQ` and `groupsBeingRebalanced`, without the draft's hole: a request for a group that is
being rebalanced is kept and triggers another turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..zk.runtime import Runtime


class Request(NamedTuple):
    """A group due for a turn, and the reasons in order, without duplicates."""

    group: str
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Pending:
    due: float
    reasons: dict[str, None] = field(default_factory=dict)


class RequestQueue:
    """Requests by group. `take` blocks until a group is due that is not in a handler."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._pending: dict[str, _Pending] = {}
        self._closed = False
        self.groups_being_rebalanced: set[str] = set()

    def request(self, group: str, reason: str, delay_s: float = 0.0) -> None:
        """Request a turn of `group` in `delay_s` seconds; the earliest of several requests counts."""
        with self._changed:
            due = self._runtime.monotonic() + delay_s
            pending = self._pending.setdefault(group, _Pending(due))
            pending.due = min(pending.due, due)
            pending.reasons[reason] = None
            self._changed.notify_all()

    def take(self) -> Request | None:
        """The group that has been due longest, reserved for the caller until `done`; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._runtime.monotonic()
                waiting = [
                    (pending.due, group)
                    for group, pending in self._pending.items()
                    if group not in self.groups_being_rebalanced
                ]
                due, group = min(waiting, default=(None, ""))
                if due is not None and due <= now:
                    self.groups_being_rebalanced.add(group)
                    return Request(group, tuple(self._pending.pop(group).reasons))
                self._changed.wait(None if due is None else due - now)
        return None

    def done(self, group: str) -> None:
        """Release `group`."""
        with self._changed:
            self.groups_being_rebalanced.discard(group)
            self._changed.notify_all()

    def forget(self, group: str) -> None:
        """Drop the requests of a group that is gone."""
        with self._changed:
            self._pending.pop(group, None)

    def close(self) -> None:
        """Make every `take` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def oldest_due_s(self) -> float:
        """Seconds since the oldest due request was due; 0 without one."""
        with self._changed:
            now = self._runtime.monotonic()
            return max((now - pending.due for pending in self._pending.values() if pending.due <= now), default=0.0)

    def __len__(self) -> int:
        with self._changed:
            return len(self._pending)

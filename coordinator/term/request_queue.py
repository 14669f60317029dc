"""The rebalance request queue: blocking, keyed by group, one handler per group, fair between groups.

Seed 000's `rebalanceRequestQ` and `groupsBeingRebalanced`, without the draft's hole: a request for a group that is
being rebalanced is kept and triggers another turn. A group waits behind the others for as long as its own turns have
taken lately: its data can cost the others no more than the turns that are already being taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from ..zk.runtime import Runtime

FREE_S = 0.1
"""Seconds of turns that cost a group nothing: the order of groups that cost little is that of their requests."""
HALF_LIFE_S = 10.0
"""After this time the seconds that a group's turns took count half."""
IDLE = "*"
"""The account that groups without members share: it is no name of a group."""


class Request(NamedTuple):
    """A group due for a turn, and the reasons in order, without duplicates."""

    group: str
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Pending:
    due: float
    reasons: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Cost:
    """Seconds of turns, as they counted at the time `at`."""

    seconds: float = 0.0
    at: float = 0.0

    def left_s(self, now: float) -> float:
        return self.seconds * float(0.5 ** ((now - self.at) / HALF_LIFE_S))


_Entry = tuple[float, str, float]
"""Of a heap of due groups: when its turn is, the group, and when it was due."""


def _top(heap: list[_Entry]) -> float:
    return heap[0][0] if heap else math.inf


def _no_group(group: str) -> bool:
    return False


class RequestQueue:
    """Requests by group. `take` blocks until a group is due that is not in a handler.

    :param handlers: the threads that take requests; the last free one is kept for groups that cost little.
    :param is_idle: whether a group has no members: such groups share one account, whatever their number.
    """

    def __init__(self, runtime: Runtime, handlers: int = 1, is_idle: Callable[[str], bool] = _no_group) -> None:
        self._runtime = runtime
        self._handlers = handlers
        self._is_idle = is_idle
        self._changed = runtime.condition()
        self._pending: dict[str, _Pending] = {}
        self._later: list[tuple[float, str]] = []
        self._cheap: list[_Entry] = []
        self._costly: list[_Entry] = []
        self._costs: dict[str, _Cost] = {}
        self._taken: dict[str, float] = {}
        self._closed = False

    @property
    def groups_being_rebalanced(self) -> set[str]:
        """The groups that are in a handler."""
        return set(self._taken)

    def request(self, group: str, reason: str, delay_s: float = 0.0) -> None:
        """Request a turn of `group` in `delay_s` seconds; the earliest of several requests counts."""
        with self._changed:
            due = self._runtime.monotonic() + delay_s
            pending = self._pending.get(group)
            if pending is None or due < pending.due:
                pending = self._pending[group] = _Pending(due, pending.reasons if pending is not None else {})
                if group not in self._taken:
                    heappush(self._later, (due, group))
            pending.reasons[reason] = None
            self._changed.notify_all()

    def take(self) -> Request | None:
        """The group that has been due longest, reserved for the caller until `done`; None once the queue is closed.

        The time for which the group's turns have taken the handlers lately counts as if it became due later.
        """
        with self._changed:
            while not self._closed:
                now = self._runtime.monotonic()
                if (group := self._next(now)) is not None:
                    self._taken[group] = now
                    return Request(group, tuple(self._pending.pop(group).reasons))
                self._changed.wait(self._later[0][0] - now if self._later else None)
        return None

    def done(self, group: str) -> float:
        """Release `group`.

        :returns: the seconds for which it was reserved.
        """
        with self._changed:
            now = self._runtime.monotonic()
            seconds = now - self._taken.pop(group)
            self._charge(group, now, seconds)
            if (pending := self._pending.get(group)) is not None:
                heappush(self._later, (pending.due, group))
            self._changed.notify_all()
            return seconds

    def forget(self, group: str) -> None:
        """Drop the requests of a group that is gone."""
        with self._changed:
            self._pending.pop(group, None)
            self._costs.pop(group, None)

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

    # ---- called with the lock

    def _next(self, now: float) -> str | None:
        """The due group whose turn is next; None when none is due, or none may have the last free handler."""
        while self._later and self._later[0][0] <= now:
            due, group = heappop(self._later)
            if self._is_current(group, due):
                self._put(group, due, now)
        is_last = self._handlers > 1 and len(self._taken) == self._handlers - 1
        while heap := self._cheap if is_last else min(self._cheap, self._costly, key=_top):
            behind, group, due = heappop(heap)
            if not self._is_current(group, due):
                continue
            if self._turn_at(group, due, now)[0] <= behind:
                return group
            self._put(group, due, now)  # its cost has grown since it was put there
        return None

    def _is_current(self, group: str, due: float) -> bool:
        pending = self._pending.get(group)
        return pending is not None and pending.due == due and group not in self._taken

    def _put(self, group: str, due: float, now: float) -> None:
        at, is_costly = self._turn_at(group, due, now)
        heappush(self._costly if is_costly else self._cheap, (at, group, due))

    def _account(self, group: str) -> str:
        return IDLE if self._is_idle(group) else group

    def _turn_at(self, group: str, due: float, now: float) -> tuple[float, bool]:
        """When a group that is due has its turn, were another due then; and whether that is later than it is due.

        From the end of the last turn of its account on: requests of a thousand groups are not a thousand turns at once.
        """
        cost = self._costs.get(self._account(group))
        waits_s = cost.left_s(now) - FREE_S if cost is not None else 0.0
        return (max(due, cost.at) + waits_s, True) if cost is not None and waits_s > 0 else (due, False)

    def _charge(self, group: str, now: float, seconds: float) -> None:
        account = self._account(group)
        before = self._costs.get(account, _Cost()).left_s(now)
        self._costs[account] = _Cost(before + seconds, now)
        if len(self._costs) > 2 * len(self._pending) + 1000:
            self._costs = {name: cost for name, cost in self._costs.items() if cost.left_s(now) > FREE_S / 100}

"""The rebalance request queue: blocking, keyed by group or region, one handler per key, fair between groups.

`rebalanceRequestQ` and `groupsBeingRebalanced` (sources D6) without hole H1: a request for a group that is
being rebalanced is kept and triggers another turn. A group waits behind the others for as long as its own turns have
taken lately: its data can cost the others no more than the turns that are already being taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..zk.backoff import Backoff
from ..zk.runtime import Runtime

FREE_S = 0.1
"""Seconds of turns without a cost: cheap groups are taken in the order of their requests."""
HALF_LIFE_S = 10.0
"""After this time the seconds that a group's turns took count half."""
LEAST_COSTS = 1000
"""Accounts that are kept before those without a cost are dropped."""


@dataclass(frozen=True, slots=True)
class TurnKey:
    """A key of the queue. Of two that are due at the same time, a group's is before a region's."""

    name: str

    def __lt__(self, other: TurnKey) -> bool:
        return (isinstance(self, RegionTurn), self.name) < (isinstance(other, RegionTurn), other.name)


class GroupTurn(TurnKey):
    """The turns of the group `name`."""

    __slots__ = ()


class RegionTurn(TurnKey):
    """The turns of the consistent region `name`."""

    __slots__ = ()


IDLE = TurnKey("*")
"""The account that groups without members share."""


class Cause(Enum):
    """The cause of a turn: a change, a turn or an acknowledgement before it, or a generation that waits."""

    CHANGE = "change"
    FOLLOW_UP = "follow-up"
    CHECKPOINT = "checkpoint"


class Trigger(NamedTuple):
    """A turn's cause, and its text.

    :ivar text: that of a change is for the group's history, that of a checkpoint for its znode.
    """

    text: str
    cause: Cause = Cause.CHANGE


ACKNOWLEDGED = Trigger("acknowledged", Cause.FOLLOW_UP)
AGAIN = Trigger("again", Cause.FOLLOW_UP)


class Request(NamedTuple):
    """A key due for a turn, and the triggers in order, without duplicates."""

    key: TurnKey
    triggers: tuple[Trigger, ...]

    @property
    def changes(self) -> list[str]:
        """The texts of its changes."""
        return [trigger.text for trigger in self.triggers if trigger.cause is Cause.CHANGE]


@dataclass(slots=True)
class _Pending:
    due: float
    account: TurnKey
    triggers: dict[Trigger, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Cost:
    """Seconds of turns, as they counted at the time `at`."""

    seconds: float = 0.0
    at: float = 0.0

    def left_s(self, now: float) -> float:
        return self.seconds * float(0.5 ** ((now - self.at) / HALF_LIFE_S))


_Entry = tuple[float, TurnKey, float]
"""Of a heap of due keys: when its turn is, the key, and when it was due."""


def _top(heap: list[_Entry]) -> float:
    return heap[0][0] if heap else math.inf


class RequestQueue:
    """Requests by key. `take` blocks until a key is due that is not in a handler.

    :param handlers: the threads that take requests; the last free one is kept for keys that cost little.
    :param is_idle: whether a key is of a group without members: all such groups share one account.
    """

    def __init__(
        self, runtime: Runtime, handlers: int = 1, is_idle: Callable[[TurnKey], bool] = lambda key: False
    ) -> None:
        self._runtime = runtime
        self._handlers = handlers
        self._is_idle = is_idle
        self._changed = runtime.condition()
        self._pending: dict[TurnKey, _Pending] = {}
        self._later: list[tuple[float, TurnKey]] = []
        self._cheap: list[_Entry] = []
        self._costly: list[_Entry] = []
        self._idle: list[tuple[float, TurnKey]] = []  # by due time: their shared cost delays all alike
        self._costs: dict[TurnKey, _Cost] = {}
        self._most_costs = LEAST_COSTS
        self._taken: dict[TurnKey, float] = {}
        self._closed = False

    def request(self, key: TurnKey, trigger: Trigger, delay_s: float = 0.0) -> None:
        """Request a turn of `key` in `delay_s` seconds; the earliest of several requests counts."""
        with self._changed:
            due = self._runtime.monotonic() + delay_s
            pending, account = self._pending.get(key), self._account(key)
            if pending is None or due < pending.due or account != pending.account:
                due = min(due, pending.due) if pending is not None else due
                triggers = pending.triggers if pending is not None else {}
                pending = self._pending[key] = _Pending(due, account, triggers)
                if key not in self._taken:
                    heappush(self._later, (due, key))
            pending.triggers[trigger] = None
            self._changed.notify_all()

    def put_back(self, request: Request, delay_s: float) -> None:
        """Request a turn in `delay_s` seconds for the triggers of a deferred one."""
        for trigger in request.triggers:
            self.request(request.key, trigger, delay_s)

    def take(self) -> Request | None:
        """The key that has been due longest, reserved for the caller until `done`; None once the queue is closed.

        The time for which the key's turns have taken the handlers lately counts as if it became due later.
        """
        with self._changed:
            while not self._closed:
                now = self._runtime.monotonic()
                if (key := self._next(now)) is not None:
                    self._taken[key] = now
                    return Request(key, tuple(self._pending.pop(key).triggers))
                self._changed.wait(self._later[0][0] - now if self._later else None)
        return None

    def done(self, key: TurnKey) -> float:
        """Release `key`.

        :returns: the seconds for which it was reserved.
        """
        with self._changed:
            now = self._runtime.monotonic()
            seconds = now - self._taken.pop(key)
            self._charge(key, now, seconds)
            if (pending := self._pending.get(key)) is not None:
                heappush(self._later, (pending.due, key))
            self._changed.notify_all()
            return seconds

    def forget(self, key: TurnKey) -> None:
        """Drop the requests of a key that is gone."""
        with self._changed:
            self._pending.pop(key, None)
            self._costs.pop(key, None)

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

    def _next(self, now: float) -> TurnKey | None:
        """The due key whose turn is next; None when none is due, or none may have the last free handler."""
        while self._later and self._later[0][0] <= now:
            due, key = heappop(self._later)
            if self._is_current(key, due):
                self._put(key, due, now)
        is_last = self._handlers > 1 and len(self._taken) == self._handlers - 1
        if is_last:
            self._relieve(now)
        while True:
            idle_at = self._idle_at(now, is_last)
            heap = self._cheap if is_last else min(self._cheap, self._costly, key=_top)
            if idle_at < _top(heap):
                return heappop(self._idle)[1]
            if not heap:
                return None
            behind, key, due = heappop(heap)
            if not self._is_current(key, due):
                continue
            if self._turn_at(self._account(key), due, now)[0] <= behind:
                return key
            self._put(key, due, now)  # its cost has grown since it was put there

    def _idle_at(self, now: float, is_last: bool) -> float:
        """When the next group without members has its turn; infinity without one, or when it may not have it."""
        while self._idle and not self._is_current(self._idle[0][1], self._idle[0][0], IDLE):
            heappop(self._idle)
        if not self._idle:
            return math.inf
        due = self._idle[0][0]
        at, is_costly = self._turn_at(IDLE, due, now)
        return math.inf if is_last and is_costly else at

    def _relieve(self, now: float) -> None:
        """Move keys whose cost has decayed to the cheap ones."""
        kept = []
        for entry in self._costly:
            _, key, due = entry
            if self._is_current(key, due):
                if self._turn_at(self._account(key), due, now)[1]:
                    kept.append(entry)
                else:
                    heappush(self._cheap, (due, key, due))
        heapify(kept)
        self._costly = kept

    def _is_current(self, key: TurnKey, due: float, account: TurnKey | None = None) -> bool:
        pending = self._pending.get(key)
        is_due = pending is not None and pending.due == due and key not in self._taken
        return is_due and (account is None or self._pending[key].account == account)

    def _put(self, key: TurnKey, due: float, now: float) -> None:
        account = self._pending[key].account = self._account(key)
        if account == IDLE:
            heappush(self._idle, (due, key))
            return
        at, is_costly = self._turn_at(account, due, now)
        heappush(self._costly if is_costly else self._cheap, (at, key, due))

    def _account(self, key: TurnKey) -> TurnKey:
        return IDLE if self._is_idle(key) else key

    def _turn_at(self, account: TurnKey, due: float, now: float) -> tuple[float, bool]:
        """The time of a due key's turn among others, and whether its cost delays it.

        From the end of the last turn of its account on: requests of a thousand groups are not a thousand turns at once.
        """
        cost = self._costs.get(account)
        waits_s = cost.left_s(now) - FREE_S if cost is not None else 0.0
        return (max(due, cost.at) + waits_s, True) if cost is not None and waits_s > 0 else (due, False)

    def _charge(self, key: TurnKey, now: float, seconds: float) -> None:
        account = self._account(key)
        before = self._costs.get(account, _Cost()).left_s(now)
        self._costs[account] = _Cost(before + seconds, now)
        if len(self._costs) > self._most_costs:
            self._costs = {each: cost for each, cost in self._costs.items() if cost.left_s(now) > FREE_S / 100}
            self._most_costs = max(LEAST_COSTS, len(self._costs) + LEAST_COSTS // 4)


FIRST_PAUSE_S = 0.05


class Pace:
    """Counts turns of one kind that follow each other.

    :param at_once: the number that is taken without a pause.
    :param gap_s: one that comes later after the pause of the last one is the first of its kind again.
    :param longest_s: bound of the growing pause.
    """

    def __init__(self, at_once: int, gap_s: float, longest_s: float) -> None:
        self._at_once = at_once
        self._gap_s = gap_s
        self._longest_s = longest_s
        self.count = 0
        self.until = float("-inf")

    def taken(self, now: float) -> bool:
        """Count one; the next is not to be taken before `until`.

        :returns: whether to log it: the first that is paced, and one of each `at_once` further ones.
        """
        self.count = self.count + 1 if now - self.until < self._gap_s else 1
        beyond = self.count - self._at_once
        self.until = now + (growing(beyond, self._longest_s) if beyond > 0 else 0.0)
        return beyond > 0 and beyond % self._at_once == 1


def growing(nth: int, longest_s: float) -> float:
    """The n-th pause in a row, from 1 on: each is twice as long."""
    return Backoff(FIRST_PAUSE_S, longest_s).after(nth)

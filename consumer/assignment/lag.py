"""Client assignor `lag`: threads get the same number of records to catch up with, and partitions stay where they can.

A partition weighs its records behind, plus 1: so idle partitions are spread by their number. A partition without an
owner goes to the least loaded thread, heaviest first (longest processing time first, Graham 1969); then threads level
out in pairs. Last, the result is compared with that of `sticky`: a bad start can end in a bad optimum.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from math import isfinite
from operator import itemgetter

from coordinator.assignors import Subscriber
from coordinator.assignors.claims import ANY, Claim, Claims, claims_of
from coordinator.assignors.sticky import StickyAssignor
from coordinator.zk.errors import UsageError
from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition

from .adapter import GroupSubscription, Threads, group_subscription, to_assignments
from .base import Assignment, ClientAssignor, Cluster

ROUNDS = 4
"""Most starts from `sticky`: each time that one gains, its result is what the next one starts with."""
MOVES = 8
"""Most moves in one levelling, for each partition. Each lowers the sum of squared loads, so few are made."""
NOWHERE = -1

Shares = dict[str, dict[str, PartitionSet]]
Topics = Mapping[str, Sequence[int]]
Weights = Mapping[TopicPartition, int]
Weighed = tuple[int, int]
"""Weight and number of a partition."""


class LagAssignor(ClientAssignor):
    """Balances threads by records behind: end offset less committed offset.

    - Without a committed offset, all records of a partition are behind. When the log cannot tell its end (or, without
      a committed offset, its beginning), it counts as the mean of those that are known.
    - A partition moves only while two threads could come closer by more than the tolerance.
    - The spread, most less least over the threads of members that share topics, exceeds that of `sticky` by the
      tolerance at most.

    :param tolerance: share of the mean load of a thread. A partition heavier than the mean, and one thread for it, do
        not count in the mean: one hot partition would excuse any distribution of the others.
    :raises UsageError: when the tolerance is negative or no number.
    """

    name = "lag"
    is_cooperative = True

    def __init__(self, tolerance: float = 0.1) -> None:
        if not isfinite(tolerance) or tolerance < 0:
            raise UsageError(f"tolerance of the assignor lag must be 0 or more, not {tolerance}")
        self.tolerance = tolerance

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        """See `ClientAssignor.assign`."""
        group = group_subscription(self.name, cluster, metadata)
        weights = weights_of(cluster, group)
        found: Shares = {}
        for piece in group.pieces():
            found |= self._solved(piece, weights).shares()
        return to_assignments(group, found)

    def _solved(self, group: GroupSubscription, weights: Weights) -> _Board:
        """The better of two starts, what is held and what `sticky` makes of it; the first unless the other gains."""
        threads, held = Threads(group.members, group.topics), claims_of(group.members, group.topics)
        best = _Board(group, threads, weights, self.tolerance).solved(held, held)
        start, members = held, group.members
        for _ in range(ROUNDS):
            if best.spread() <= best.tolerance + best.least_spread:
                break
            other = _Board(group, threads, weights, self.tolerance).solved(_sticky(members, group.topics), held)
            is_better = other.spread() < best.spread() - best.tolerance
            best = other if is_better else best
            reached = best.claims()
            if not is_better and reached == start:
                break
            start, members = reached, _holding(group.members, best.shares())
        return best


def weights_of(cluster: Cluster, group: GroupSubscription) -> dict[TopicPartition, int]:
    """Records behind plus 1, of every partition."""
    parts = group.partitions()
    ends, committed = cluster.end_offsets(parts), cluster.committed(parts)
    fresh = [part for part in parts if part in ends and part not in committed]
    starts = {**(cluster.beginning_offsets(fresh) if fresh else {}), **committed}
    lags = {part: max(0, ends[part] - starts[part]) for part in parts if part in ends and part in starts}
    mean = sum(lags.values()) // len(lags) if lags else 0
    return {part: lags.get(part, mean) + 1 for part in parts}


def _sticky(members: Sequence[Subscriber], topics: Topics) -> Claims:
    """What `sticky` gives, as claims."""
    return claims_of(_holding(members, StickyAssignor().assign(members, topics)), topics)


def _holding(members: Sequence[Subscriber], shares: Mapping[str, Mapping[str, PartitionSet]]) -> list[Subscriber]:
    """The members once they hold these shares."""
    held = {name: {part: thread for thread, has in shares[name].items() for part in has} for name in shares}
    return [replace(member, running=NONE, on_thread=held[member.consumer]) for member in members]


def _mean(weights: Sequence[int], threads: int) -> float:
    """The mean load of a thread, less partitions heavier than it and a thread for each."""
    total = sum(weights)
    for heaviest in sorted(weights, reverse=True):
        if threads == 1 or heaviest * threads <= total:
            break
        total -= heaviest
        threads -= 1
    return total / threads


class _Board:
    """Threads and partitions as numbers, and who has what.

    :ivar loads: thread -> sum of the weights it has.
    :ivar holders: partition -> the thread that has it.
    :ivar tolerance: in records.
    :ivar least_spread: no assignment has less: one thread has the heaviest partition, and one the mean or less.
    """

    def __init__(self, group: GroupSubscription, threads: Threads, weights: Weights, tolerance: float) -> None:
        self.members, self.threads = group.members, threads
        self.parts = group.partitions()
        self.weights = [weights[part] for part in self.parts]
        self.kind_of = [threads.kind_of[part.topic] for part in self.parts]
        self.loads = [0] * len(threads.units)
        self.holders = [NOWHERE] * len(self.parts)
        mean = _mean(self.weights, len(self.loads))
        self.tolerance = tolerance * mean
        self.least_spread = max(0, max(self.weights) - mean)
        self._has: list[dict[int, list[Weighed]]] = [{} for _ in threads.kinds]
        self._by_load = [(0, unit) for unit in range(len(self.loads))]
        self._among = [frozenset(units) for units in threads.kinds]
        self._moves = 0

    def solved(self, start: Claims, homes: Claims) -> _Board:
        """The board itself, balanced from `start`; of equal partitions those stay that are at home."""
        self._place_claims(start)
        self._place_the_rest()
        self._level()
        self._send_home(homes)
        return self

    def spread(self) -> int:
        """Most less least."""
        return max(self.loads) - min(self.loads)

    def shares(self) -> Shares:
        """Consumer -> thread -> partitions."""
        found: dict[str, dict[str, set[TopicPartition]]] = {member.consumer: {} for member in self.members}
        for part, unit in zip(self.parts, self.holders, strict=True):
            consumer = self.members[self.threads.units[unit][1]].consumer
            found[consumer].setdefault(self.threads.ids[unit], set()).add(part)
        return {name: {thread: frozenset(parts) for thread, parts in has.items()} for name, has in found.items()}

    def claims(self) -> Claims:
        """Partition -> the member and thread that has it."""
        units = self.threads.units
        return {part: Claim(units[at][1], units[at][0]) for part, at in zip(self.parts, self.holders, strict=True)}

    # ---- placing

    def _place_claims(self, claims: Claims) -> None:
        """Each partition goes where it is; without a thread, to the least loaded one of its member."""
        loose = []
        for part, name in enumerate(self.parts):
            claim = claims.get(name)
            if claim is not None and claim.thread != ANY:
                self._put(part, self.threads.unit_at[claim.thread, claim.member])
            elif claim is not None:
                loose.append((-self.weights[part], part, claim.member))
        for _, part, member in sorted(loose):
            count = self.members[member].threads[self.parts[part].topic]
            own = [self.threads.unit_at[number, member] for number in range(count)]
            self._put(part, min(own, key=self.loads.__getitem__))

    def _place_the_rest(self) -> None:
        """Heaviest first, each to the least loaded thread; of equal ones first those that few threads may have."""
        left = [part for part, holder in enumerate(self.holders) if holder == NOWHERE]
        for part in sorted(left, key=lambda part: (-self.weights[part], len(self._among[self.kind_of[part]]), part)):
            self._put(part, self._poorest(self.kind_of[part]))

    def _put(self, part: int, unit: int) -> None:
        self.holders[part] = unit
        self._load(unit, self.weights[part])
        insort(self._has[self.kind_of[part]].setdefault(unit, []), (self.weights[part], part))

    def _load(self, unit: int, more: int) -> None:
        del self._by_load[bisect_left(self._by_load, (self.loads[unit], unit))]
        self.loads[unit] += more
        insort(self._by_load, (self.loads[unit], unit))

    def _poorest(self, kind: int) -> int:
        """The least loaded of the threads of a kind; few are compared, many are met soon among all."""
        among = self._among[kind]
        if len(among) ** 2 <= len(self.loads):
            return min(among, key=lambda unit: (self.loads[unit], unit))
        return next(unit for _, unit in self._by_load if unit in among)

    # ---- levelling

    def _level(self) -> None:
        """Until no two threads of a kind could come closer by more than the tolerance."""
        looked_at = [NOWHERE] * len(self.threads.kinds)
        while any(moves != self._moves for moves in looked_at) and self._moves < MOVES * len(self.parts):
            for kind in range(len(looked_at)):
                if looked_at[kind] != self._moves:
                    looked_at[kind] = self._moves  # of before: who was passed over is looked at again after any move
                    self._level_one(kind)

    def _level_one(self, kind: int) -> None:
        """Among the threads of one kind: the richest gives to the poorest. One that cannot is passed over."""
        rich = [(-self.loads[unit], unit) for unit in self._has[kind]]
        heapify(rich)
        while rich and self._moves < MOVES * len(self.parts):
            (most, giver), taker = rich[0], self._poorest(kind)
            if -most != self.loads[giver]:
                heapreplace(rich, (-self.loads[giver], giver))
            elif self.loads[giver] - self.loads[taker] <= self.tolerance:
                break
            elif self._exchange(giver, taker, kind):
                heappush(rich, (-self.loads[taker], taker))
            else:
                heappop(rich)

    def _exchange(self, giver: int, taker: int, kind: int) -> bool:
        """A step that brings two threads closer; False when no series of steps would by more than the tolerance."""
        gap = self.loads[giver] - self.loads[taker]
        mine, theirs = self._has[kind][giver], self._has[kind].get(taker, [])
        step = _given(mine, gap, self.tolerance)
        if step is not None:
            self._move(step, giver, taker)
            return True
        swap = _swapped(mine, theirs, gap, self.tolerance)
        if swap is not None:
            self._move(swap[0], giver, taker)
            self._move(swap[1], taker, giver)
        return swap is not None

    def _move(self, weighed: Weighed, giver: int, taker: int) -> None:
        weight, part = weighed
        mine = self._has[self.kind_of[part]][giver]
        del mine[bisect_left(mine, weighed)]
        self._load(giver, -weight)
        self._moves += 1
        self._put(part, taker)

    # ---- home again

    def _send_home(self, homes: Claims) -> None:
        """Exchange partitions of one kind and weight, which changes no load, so that as many as can are at home."""
        alike: dict[tuple[int, int], list[int]] = {}
        for part, kind in enumerate(self.kind_of):
            alike.setdefault((kind, self.weights[part]), []).append(part)
        for parts in (parts for parts in alike.values() if len(parts) > 1):
            room = Counter(self.holders[part] for part in parts)
            seats = self.threads.seated([self.parts[part] for part in parts], room, homes)
            for part in parts:
                self.holders[part] = seats[self.parts[part]]


def _given(mine: Sequence[Weighed], gap: int, tolerance: float) -> Weighed | None:
    """The first to give of those that together close the gap by more than the tolerance.

    That is the heaviest one of up to half the gap, if those of up to half the gap do; else one that is just over half.
    """
    half = bisect_right(mine, gap // 2, key=itemgetter(0))
    moved = 0
    for at in range(half - 1, -1, -1):
        if moved + mine[at][0] <= gap // 2:
            moved += mine[at][0]
            if 2 * moved > tolerance:
                return mine[half - 1]
    if half < len(mine) and 2 * (gap - mine[half][0]) > tolerance:
        return mine[half]
    return None


def _swapped(
    mine: Sequence[Weighed], theirs: Sequence[Weighed], gap: int, tolerance: float
) -> tuple[Weighed, Weighed] | None:
    """What to exchange so that the gap closes most; None when that is not by more than the tolerance."""
    best, most = None, tolerance
    for weighed in mine:
        near = bisect_left(theirs, weighed[0] - gap // 2, key=itemgetter(0))
        for other in theirs[max(0, near - 1) : near + 1]:
            moved = weighed[0] - other[0]
            if 2 * min(moved, gap - moved) > most:
                best, most = (weighed, other), 2 * min(moved, gap - moved)
    return best

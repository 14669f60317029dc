"""Client assignor `lag`: threads have equal lag (records behind), with minimal moves.

A partition's weight is its lag plus 1, so that idle partitions are spread by number. A partition without an owner goes
to the least loaded thread, heaviest first (longest processing time first, Graham 1969); then pairs of threads level
their loads. Last, the result is compared with that from `sticky`: a bad start can end in a bad optimum.
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
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition

from .adapter import GroupSubscription, Threads, group_subscription, to_assignments
from .base import Assignment, ClientAssignor, Cluster

ROUNDS = 4
"""Maximum number of starts from `sticky`: while one is better, its result is the next start."""
MOVES = 8
"""Maximum number of moves per levelling and partition. Each lowers the sum of squared loads, so few are made."""
NOWHERE = -1

Shares = dict[str, dict[str, PartitionSet]]
Topics = Mapping[str, Sequence[int]]
Weights = Mapping[TopicPartition, int]
Weighed = tuple[int, int]
"""Weight and number of a partition."""


class LagAssignor(ClientAssignor):
    """Balances threads by lag: end offset less committed offset.

    - Without a committed offset, all records of a partition are lag. Without an end (or, without a committed offset, a
      beginning) of the log, it counts as the mean of the known ones.
    - A partition moves only while two threads differ by more than the tolerance.
    - The spread, maximum less minimum over the threads of members that share topics, exceeds that of `sticky` by at
      most the tolerance.

    :param tolerance: share of the mean load of a thread. Partitions above the mean, and one thread each, do not count
        in the mean: one hot partition would excuse any distribution of the others.
    :raises UsageError: when the tolerance is negative or not a number.
    """

    name = "lag"
    is_cooperative = True

    def __init__(self, tolerance: float = 0.1) -> None:
        if not isfinite(tolerance) or tolerance < 0:
            raise UsageError(f"tolerance of the assignor lag must be 0 or more, not {tolerance}")
        self.tolerance = tolerance

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        group = group_subscription(self.name, cluster, metadata)
        weights = weights_of(cluster, group)
        found: Shares = {}
        for piece in group.pieces():
            found |= self._solved(piece, weights).shares()
        return to_assignments(group, found)

    def _solved(self, group: GroupSubscription, weights: Weights) -> _LagBoard:
        """The better of two starts, what is held and what `sticky` makes of it; the first unless the other gains."""
        threads, held = Threads(group.members, group.topics), claims_of(group.members, group.topics)
        best = _LagBoard(group, threads, weights, self.tolerance).solved(held, held)
        start, members = held, group.members
        for _ in range(ROUNDS):
            if best.spread() <= best.tolerance + best.least_spread:
                break
            other = _LagBoard(group, threads, weights, self.tolerance).solved(_sticky(members, group.topics), held)
            is_better = other.spread() < best.spread() - best.tolerance
            best = other if is_better else best
            reached = best.claims()
            if not is_better and reached == start:
                break
            start, members = reached, _holding(group.members, best.shares())
        return best


def weights_of(cluster: Cluster, group: GroupSubscription) -> dict[TopicPartition, int]:
    """Lag plus 1, of every partition."""
    parts = group.partitions()
    ends, committed = cluster.end_offsets(parts), cluster.committed(parts)
    fresh = [part for part in parts if part in ends and part not in committed]
    starts = {**(cluster.beginning_offsets(fresh) if fresh else {}), **committed}
    lags = {part: max(0, ends[part] - starts[part]) for part in parts if part in ends and part in starts}
    mean = sum(lags.values()) // len(lags) if lags else 0
    return {part: lags.get(part, mean) + 1 for part in parts}


def _sticky(members: Sequence[Subscriber], topics: Topics) -> Claims:
    """The result of `sticky`, as claims."""
    return claims_of(_holding(members, StickyAssignor().assign(members, topics)), topics)


def _holding(members: Sequence[Subscriber], shares: Mapping[str, Mapping[str, PartitionSet]]) -> list[Subscriber]:
    """The members as if they ran these shares."""
    held = {name: {part: thread for thread, has in shares[name].items() for part in has} for name in shares}
    return [replace(member, running=NONE, on_thread=held[member.consumer]) for member in members]


def _mean(weights: Sequence[int], threads: int) -> float:
    """The mean load of a thread, without partitions above it and a thread for each."""
    total = sum(weights)
    for heaviest in sorted(weights, reverse=True):
        if threads == 1 or heaviest * threads <= total:
            break
        total -= heaviest
        threads -= 1
    return total / threads


class _LagBoard:
    """Threads and partitions as numbers, and who has what.

    :ivar loads: thread -> sum of its weights.
    :ivar holders: partition -> the thread that has it.
    :ivar tolerance: in records.
    :ivar least_spread: lower bound of the spread: one thread has the heaviest partition, another at most the mean.
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

    def solved(self, start: Claims, homes: Claims) -> _LagBoard:
        """The board itself, balanced from `start`; of equal partitions those stay that are at home."""
        self._place_claims(start)
        self._place_unclaimed()
        self._level()
        self._return_home(homes)
        return self

    def spread(self) -> int:
        """Maximum less minimum load."""
        return max(self.loads) - min(self.loads)

    def shares(self) -> Shares:
        """Consumer -> thread -> partitions."""
        found: dict[str, dict[str, set[TopicPartition]]] = {member.consumer: {} for member in self.members}
        for part, unit in zip(self.parts, self.holders, strict=True):
            consumer = self.members[self.threads.units[unit][1]].consumer
            found[consumer].setdefault(self.threads.ids[unit], set()).add(part)
        return {name: {thread: frozenset(parts) for thread, parts in has.items()} for name, has in found.items()}

    def claims(self) -> Claims:
        """Partition -> its member and thread."""
        units = self.threads.units
        return {part: Claim(units[at][1], units[at][0]) for part, at in zip(self.parts, self.holders, strict=True)}

    # ---- placing

    def _place_claims(self, claims: Claims) -> None:
        """Place each partition at its claimant; without a thread, at the member's least loaded one."""
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

    def _place_unclaimed(self) -> None:
        """Heaviest first, each to the least loaded thread; of equal ones first those with the fewest threads."""
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
        """The least loaded thread of a kind: compared among few, from a heap among many."""
        among = self._among[kind]
        if len(among) ** 2 <= len(self.loads):
            return min(among, key=lambda unit: (self.loads[unit], unit))
        return next(unit for _, unit in self._by_load if unit in among)

    # ---- levelling

    def _level(self) -> None:
        """Level until no two threads of a kind could get closer by more than the tolerance."""
        looked_at = [NOWHERE] * len(self.threads.kinds)
        while any(moves != self._moves for moves in looked_at) and self._moves < MOVES * len(self.parts):
            for kind in range(len(looked_at)):
                if looked_at[kind] != self._moves:
                    looked_at[kind] = self._moves  # as before: skipped threads are tried again after any move
                    self._level_one(kind)

    def _level_one(self, kind: int) -> None:
        """Level threads of one kind: the most loaded gives to the least loaded. One that cannot is skipped."""
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
        """Bring two threads closer by a step; False when no series of steps would by more than the tolerance."""
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

    # ---- back home

    def _return_home(self, homes: Claims) -> None:
        """Exchange partitions of one kind and weight, which changes no load, so that most of them are at home."""
        alike: dict[tuple[int, int], list[int]] = {}
        for part, kind in enumerate(self.kind_of):
            alike.setdefault((kind, self.weights[part]), []).append(part)
        for parts in (parts for parts in alike.values() if len(parts) > 1):
            room = Counter(self.holders[part] for part in parts)
            seats = self.threads.seated([self.parts[part] for part in parts], room, homes)
            for part in parts:
                self.holders[part] = seats[self.parts[part]]


def _given(giver_parts: Sequence[Weighed], gap: int, tolerance: float) -> Weighed | None:
    """The first partition to give of those that together close the gap by more than the tolerance.

    The heaviest of up to half the gap, if those of up to half the gap suffice; else one just above half.
    """
    half = bisect_right(giver_parts, gap // 2, key=itemgetter(0))
    moved = 0
    for at in range(half - 1, -1, -1):
        if moved + giver_parts[at][0] <= gap // 2:
            moved += giver_parts[at][0]
            if 2 * moved > tolerance:
                return giver_parts[half - 1]
    if half < len(giver_parts) and 2 * (gap - giver_parts[half][0]) > tolerance:
        return giver_parts[half]
    return None


def _swapped(
    giver_parts: Sequence[Weighed], taker_parts: Sequence[Weighed], gap: int, tolerance: float
) -> tuple[Weighed, Weighed] | None:
    """The exchange that closes the gap most; None when not by more than the tolerance."""
    best, most = None, tolerance
    for weighed in giver_parts:
        near = bisect_left(taker_parts, weighed[0] - gap // 2, key=itemgetter(0))
        for other in taker_parts[max(0, near - 1) : near + 1]:
            moved = weighed[0] - other[0]
            if 2 * min(moved, gap - moved) > most:
                best, most = (weighed, other), 2 * min(moved, gap - moved)
    return best

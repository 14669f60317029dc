"""Client assignor `lag`: threads have nearly equal lag (records behind), and partitions stay while they do.

A partition's weight is its lag plus 1, so that idle partitions are spread by number. A partition without an owner goes
to the least loaded thread, heaviest first (longest processing time first, Graham 1969); then the most loaded threads
give partitions to the least loaded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import isfinite
from operator import itemgetter

from zk_group.coordinator import assignors
from zk_group.coordinator.assignors.sticky import ANY, Claim, claims_of
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from .adapter import GroupSubscription, Threads, group_subscription, to_assignments
from .base import Assignment, ClientAssignor, Cluster

MOVES = 8
"""Maximum number of moves per partition. Each lowers the sum of squared loads, so few are made."""

Weights = Mapping[TopicPartition, int]
Weighed = tuple[int, TopicPartition]


class LagAssignor(ClientAssignor):
    """Balances threads by lag: end offset less committed offset.

    - Without a committed offset, all records of a partition are lag. Without an end (or, without a committed offset, a
      beginning) of the log, it counts as the mean of the known ones.
    - A partition moves only while two threads differ by more than the tolerance. No exchange of partitions is tried.

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
        found: dict[str, Mapping[str, PartitionSet]] = {}
        for piece in group.pieces():
            found |= _Loads(piece, weights, self.tolerance).shares()
        return to_assignments(group, found)


def weights_of(cluster: Cluster, group: GroupSubscription) -> dict[TopicPartition, int]:
    """Lag plus 1, of every partition."""
    parts = group.partitions()
    ends, committed = cluster.end_offsets(parts), cluster.committed(parts)
    fresh = [part for part in parts if part in ends and part not in committed]
    starts = {**(cluster.beginning_offsets(fresh) if fresh else {}), **committed}
    lags = {part: max(0, ends[part] - starts[part]) for part in parts if part in ends and part in starts}
    mean = sum(lags.values()) // len(lags) if lags else 0
    return {part: lags.get(part, mean) + 1 for part in parts}


def _mean(weights: Sequence[int], threads: int) -> float:
    """The mean load of a thread, without partitions above it and a thread for each."""
    total = sum(weights)
    for heaviest in sorted(weights, reverse=True):
        if threads == 1 or heaviest * threads <= total:
            break
        total -= heaviest
        threads -= 1
    return total / threads


class _Loads:
    """The threads of a group, with the load and the partitions of each."""

    def __init__(self, group: GroupSubscription, weights: Weights, tolerance: float) -> None:
        self._members, self._threads = group.members, Threads(group.members, group.topics)
        kinds = self._threads.kinds
        self._loads = [0] * len(self._threads.units)
        self._has: list[dict[int, list[Weighed]]] = [{} for _ in kinds]
        self._tolerance = tolerance * _mean([weights[part] for part in group.partitions()], len(self._loads))
        self._moves_left = MOVES * len(weights)
        claims = claims_of(group.members, group.topics)
        loose: list[list[TopicPartition]] = [[] for _ in kinds]
        for part in sorted(group.partitions(), key=lambda part: (-weights[part], part)):
            if part in claims:
                self._put((weights[part], part), self._owner(claims[part], part))
            else:
                loose[self._threads.kind_of[part.topic]].append(part)
        for kind in sorted(range(len(kinds)), key=lambda kind: len(kinds[kind])):
            least = [(self._loads[unit], unit) for unit in kinds[kind]]
            heapify(least)
            for part in loose[kind]:
                unit = least[0][1]
                self._put((weights[part], part), unit)
                heapreplace(least, (self._loads[unit], unit))
        while any([self._level(kind, units) for kind, units in enumerate(kinds)]):
            pass  # of several kinds, one may give again after another has moved

    def shares(self) -> assignors.Assignment:
        """A strategy's result."""
        seats = {part: unit for has in self._has for unit, parts in has.items() for _, part in parts}
        return self._threads.shares(self._members, seats)

    def _owner(self, claim: Claim, part: TopicPartition) -> int:
        """The claimed thread; without one, the member's least loaded."""
        if claim.thread != ANY:
            return self._threads.unit_at[claim.thread, claim.member]
        own = range(self._members[claim.member].threads[part.topic])
        return min((self._threads.unit_at[number, claim.member] for number in own), key=self._loads.__getitem__)

    def _put(self, weighed: Weighed, unit: int) -> None:
        self._loads[unit] += weighed[0]
        insort(self._has[self._threads.kind_of[weighed[1].topic]].setdefault(unit, []), weighed)

    def _level(self, kind: int, units: Sequence[int]) -> bool:
        """Move partitions of one kind from the most to the least loaded threads; returns whether any moved."""
        loads, has, has_moved = self._loads, self._has[kind], False
        rich, poor = [(-loads[unit], unit) for unit in has], [(loads[unit], unit) for unit in units]
        heapify(rich)
        heapify(poor)
        while rich and self._moves_left and -rich[0][0] - poor[0][0] > self._tolerance:
            (_, giver), (_, taker) = rich[0], poor[0]
            if -rich[0][0] != loads[giver]:
                heapreplace(rich, (-loads[giver], giver))
            elif poor[0][0] != loads[taker]:
                heapreplace(poor, (loads[taker], taker))
            elif (weighed := _given(has[giver], loads[giver] - loads[taker], self._tolerance)) is None:
                heappop(rich)
            else:
                self._moves_left -= 1
                has_moved = True
                del has[giver][bisect_left(has[giver], weighed)]
                loads[giver] -= weighed[0]
                self._put(weighed, taker)
                heappush(rich, (-loads[taker], taker))
                heappush(poor, (loads[giver], giver))
        return has_moved


def _given(parts: Sequence[Weighed], gap: int, tolerance: float) -> Weighed | None:
    """The partition nearest to half of the gap; one above half has to close the gap by more than the tolerance."""
    half = bisect_right(parts, gap // 2, key=itemgetter(0))
    above = [each for each in parts[half : half + 1] if 2 * (gap - each[0]) > tolerance]
    return min([*parts[max(0, half - 1) : half], *above], key=lambda each: abs(gap - 2 * each[0]), default=None)

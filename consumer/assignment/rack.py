"""Client assignor `rack`: consumers prefer partitions that have a replica in their rack (KIP-881); balance comes first.

`sticky` decides the number of partitions per thread; with equal subscriptions, only how many threads have one more.
Then they are dealt as KIP-881's assignors do: matches first, then the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from zk_group.coordinator.assignors.sticky import StickyAssignor, by_number, claims_of
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from .adapter import Threads, group_subscription, to_assignments
from .base import Assignment, ClientAssignor, Cluster

Seats = dict[TopicPartition, int]
"""Partition -> its thread."""


class RackAssignor(ClientAssignor):
    """Cooperative sticky, with partitions read from a replica in the consumer's rack where one deal finds it.

    Order of criteria: threads differ by as much as with `sticky`, consumers and replicas match, partitions stay.
    Without racks, of members or of replicas, the result is that of `cooperative-sticky`.
    """

    name = "rack"
    is_cooperative = True

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        group = group_subscription(self.name, cluster, metadata)
        found = StickyAssignor().assign(group.members, group.topics)
        if not any(group.racks.values()):
            return to_assignments(group, found)
        threads = Threads(group.members, group.topics)
        unit_of = {thread: unit for unit, thread in enumerate(threads.ids)}
        claims = claims_of(group.members, group.topics)
        homes = {part: threads.unit_at.get((claim.thread, claim.member)) for part, claim in claims.items()}
        racks = {unit: group.racks[group.members[place].consumer] for unit, (_, place) in enumerate(threads.units)}
        by_kind: list[Seats] = [{} for _ in threads.kinds]
        for has in found.values():
            for thread, parts in has.items():
                for part in parts:
                    by_kind[threads.kind_of[part.topic]][part] = unit_of[thread]
        seats: Seats = {}
        for units, before in zip(threads.kinds, by_kind, strict=True):
            sizes = Counter({unit: 0 for unit in units})
            sizes.update(before.values())
            places = dict.fromkeys(units, min(sizes.values())) if len(threads.kinds) == 1 else dict(sizes)
            deal = _Deal(places, len(before) - sum(places.values()))
            seats |= deal.seats(before, homes, racks, {part: cluster.racks(part) - {""} for part in before})
        return to_assignments(group, threads.shares(group.members, seats))


class _Deal:
    """Deals the partitions of one kind to its threads.

    :ivar places: thread -> its free places; -1 for one that has a spare place, too.
    :ivar spare: places for one more, of any threads.
    """

    def __init__(self, places: dict[int, int], spare: int) -> None:
        self._places, self._spare = places, spare
        self._seats: Seats = {}

    def seats(
        self,
        before: Seats,
        homes: Mapping[TopicPartition, int | None],
        racks: Mapping[int, str],
        replicas: Mapping[TopicPartition, frozenset[str]],
    ) -> Seats:
        """Matches of `before`, then other matches, then claimed partitions at home, then the rest."""
        parts = sorted(before, key=by_number)
        for part in parts:
            if racks[before[part]] in replicas[part]:
                self._give(part, [before[part]])
        matched, queues = len(self._seats), dict[str, list[int]]()
        for unit in sorted(self._places, reverse=True):
            queues.setdefault(racks[unit], []).append(unit)
        for part in sorted(self._left(parts), key=lambda part: len(replicas[part] & queues.keys())):
            for rack in sorted(replicas[part] & queues.keys()):
                if part not in self._seats:
                    self._give(part, queues[rack])
        if len(self._seats) == matched:
            return before
        for part in self._left(parts):
            if (home := homes.get(part)) is not None:
                self._give(part, [home])
        anywhere = sorted(self._places, reverse=True)
        for part in self._left(parts):
            self._give(part, anywhere)
        return self._seats

    def _left(self, parts: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [part for part in parts if part not in self._seats]

    def _give(self, part: TopicPartition, queue: list[int]) -> None:
        """Give a partition to the last thread of a queue that has a place; those without are taken from it."""
        while queue and not self._has_place(queue[-1]):
            queue.pop()
        if queue:
            self._spare -= self._places[queue[-1]] == 0
            self._places[queue[-1]] -= 1
            self._seats[part] = queue[-1]

    def _has_place(self, unit: int) -> bool:
        return self._places[unit] > 0 or (self._places[unit] == 0 and self._spare > 0)

"""Client assignor `rack`: consumers prefer partitions that have a replica in their rack (KIP-881); balance comes first.

`sticky` decides the number of partitions per thread. Partitions are then exchanged between racks along cycles that gain
a match each: a maximum flow over racks, so with equal subscriptions no balanced assignment has more matches. With
unequal ones, exchanges stay within topics with the same subscribers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush

from coordinator.assignors.claims import by_number, claims_of
from coordinator.assignors.sticky import StickyAssignor
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from .adapter import GroupSubscription, Threads, group_subscription, to_assignments
from .base import Assignment, ClientAssignor, Cluster

Racks = tuple[str, ...]
"""Racks with both a replica of the partition and a thread for it; in order."""
Step = tuple[str, str, Racks | None]
"""From one rack to another, a partition with replicas in these racks; None: one size grows, the other shrinks."""


class RackAssignor(ClientAssignor):
    """Cooperative sticky, with as many partitions as possible read from a replica in the consumer's rack.

    Order of criteria: threads differ by as much as with `sticky`, consumers and replicas match, partitions stay.
    Without
    racks, of members or of replicas, the result is that of `cooperative-sticky`.
    """

    name = "rack"
    is_cooperative = True

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
        group = group_subscription(self.name, cluster, metadata)
        found = StickyAssignor().assign(group.members, group.topics)
        if not any(group.racks[member.consumer] for member in group.members):
            return to_assignments(group, found)
        replicas = {part: cluster.racks(part) for part in group.partitions()}
        return to_assignments(group, _Exchange(group, found, replicas).shares())


class _Exchange:
    """The assignment of `sticky`, with partitions exchanged between racks.

    :ivar racks: member's place -> its rack, empty when unknown; `rack_of` the same for threads.
    :ivar homes: claims on partitions.
    :ivar seats: partition -> its thread by `sticky`.
    """

    def __init__(
        self,
        group: GroupSubscription,
        found: Mapping[str, Mapping[str, PartitionSet]],
        replicas: Mapping[TopicPartition, frozenset[str]],
    ) -> None:
        self.members, self.replicas = group.members, replicas
        self.threads = Threads(group.members, group.topics)
        self.racks = [group.racks[member.consumer] for member in group.members]
        self.rack_of = [self.racks[place] for _, place in self.threads.units]
        self.homes = claims_of(group.members, group.topics)
        self.seats: dict[TopicPartition, int] = {}
        for unit, (_, place) in enumerate(self.threads.units):
            parts = found[group.members[place].consumer].get(self.threads.ids[unit], ())
            self.seats.update(dict.fromkeys(parts, unit))

    def shares(self) -> dict[str, dict[str, PartitionSet]]:
        """Consumer -> thread -> partitions."""
        parts_of: dict[int, list[TopicPartition]] = {}
        for part in sorted(self.seats, key=by_number):
            parts_of.setdefault(self.threads.kind_of[part.topic], []).append(part)
        found: dict[str, dict[str, set[TopicPartition]]] = {member.consumer: {} for member in self.members}
        for kind, parts in parts_of.items():
            for part, unit in self._seated(kind, parts).items():
                consumer = self.members[self.threads.units[unit][1]].consumer
                found[consumer].setdefault(self.threads.ids[unit], set()).add(part)
        return {name: {thread: frozenset(has) for thread, has in threads.items()} for name, threads in found.items()}

    def _seated(self, kind: int, parts: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Partition -> thread, of one kind."""
        units = self.threads.kinds[kind]
        by_rack: dict[str, list[int]] = {}
        for unit in units:
            by_rack.setdefault(self.rack_of[unit], []).append(unit)
        sizes = Counter({unit: 0 for unit in units})
        sizes.update(self.seats[part] for part in parts)
        flow = self._flow(parts, by_rack, sizes)
        if not flow.run():
            return {part: self.seats[part] for part in parts}
        own: dict[str, list[TopicPartition]] = {rack: [] for rack in by_rack}
        for part in parts:
            own[flow.place[part]].append(part)
        seats: dict[TopicPartition, int] = {}
        for rack, among in by_rack.items():
            room = self._room(own[rack], {unit: sizes[unit] for unit in among})
            seats |= self.threads.seated(own[rack], room, self.homes)
        return seats

    def _flow(self, parts: Sequence[TopicPartition], by_rack: Mapping[str, list[int]], sizes: Counter[int]) -> _Flow:
        """The partitions of a kind by rack; the racks' sizes are fixed, unless the kind has all partitions."""
        least = {rack: sum(sizes[unit] for unit in among) for rack, among in by_rack.items()}
        most = dict(least)
        if len(self.threads.kinds) == 1:
            least = {rack: min(sizes.values()) * len(among) for rack, among in by_rack.items()}
            most = {rack: max(sizes.values()) * len(among) for rack, among in by_rack.items()}
        flow = _Flow(least, most)
        for part in parts:
            claim = self.homes.get(part)
            home = self.racks[claim.member] if claim else None
            racks = tuple(sorted(self.replicas[part] & by_rack.keys() - {""}))
            flow.add(part, self.rack_of[self.seats[part]], racks, home)
        return flow

    def _room(self, parts: Sequence[TopicPartition], sizes: Mapping[int, int]) -> Counter[int]:
        """Thread -> number of a rack's partitions that it gets: its size, while the rack's size is unchanged.

        Else threads differ by one, and those with the most claims get one more.
        """
        if len(parts) == sum(sizes.values()):
            return Counter(sizes)
        quota, extra = divmod(len(parts), len(sizes))
        claimed = Counter(self.threads.unit_at.get((c.thread, c.member)) for p in parts if (c := self.homes.get(p)))
        larger = sorted(sizes, key=lambda unit: (-claimed[unit], -sizes[unit], unit))[:extra]
        return Counter({unit: quota + (unit in larger) for unit in sizes})


class _Flow:
    """Partitions of one kind by the rack of their thread; threads of a rack are equivalent for matches.

    A partition matches when its rack has a replica. It moves freely while it does not match, else between the racks of
    its replicas. Where a partition could match in another rack, a path of such moves from there back to its own rack is
    one match more. On its way one rack may grow and another shrink.

    :ivar place: partition -> rack; the result.
    :ivar counts: rack -> number of partitions; between `least` and `most`.
    """

    def __init__(self, least: Mapping[str, int], most: Mapping[str, int]) -> None:
        self.place: dict[TopicPartition, str] = {}
        self.counts = dict.fromkeys(least, 0)
        self._least, self._most = least, most
        self._homes: dict[TopicPartition, str | None] = {}
        self._having: dict[str, dict[Racks, list[tuple[bool, int, str]]]] = {rack: {} for rack in sorted(least)}
        self._dead: set[str] = set()

    def add(self, part: TopicPartition, rack: str, racks: Racks, home: str | None) -> None:
        """Add a partition, with the racks of its replicas in order.

        :param home: rack of the claiming member. Of partitions with the same racks, unclaimed ones move first.
        """
        self._homes[part] = home
        self._put(part, rack, racks)

    def run(self) -> bool:
        """Gain matches until no more is possible; returns whether any was gained."""
        before = dict(self.place)
        while self._gains():
            pass
        return self.place != before

    def _gains(self) -> bool:
        """One pass over the racks, with the unmatched partitions of each."""
        self._dead = set()
        has_gained = False
        for rack, having in self._having.items():
            for racks in sorted(having):
                while racks and rack not in racks and racks in having and self._gain(rack, racks):
                    has_gained = True
        return has_gained

    def _gain(self, rack: str, racks: Racks) -> bool:
        """Gain one match by moving one of these partitions from its rack."""
        path = self._path(rack, racks)
        moving = [(self._pop(source, has), target, has) for source, target, has in path if has is not None]
        for step in moving:
            self._put(*step)
        return bool(path)

    def _path(self, start: str, racks: Racks) -> list[Step]:
        """The shortest path; empty when there is none: the reached racks are then dead ends for the whole pass."""
        came: dict[str, Step] = {rack: (start, rack, racks) for rack in racks if rack not in self._dead}
        queue = deque(came)
        while queue:
            rack = queue.popleft()
            for source, target, has in self._steps_from(rack, start):
                if target == start:
                    return _way(came, start, (source, target, has))
                if target not in came and target not in self._dead:
                    came[target] = (source, target, has)
                    queue.append(target)
        self._dead |= came.keys()
        return []

    def _steps_from(self, rack: str, start: str) -> Iterator[Step]:
        """Steps without a lost match: of partitions, and a size that grows here while another shrinks."""
        may_grow = self.counts[rack] < self._most[rack]
        if may_grow and self.counts[start] > self._least[start]:
            yield rack, start, None
        for has in self._choices(rack):
            if rack not in has or start in has:
                yield rack, start, has
            yield from ((rack, other, has) for other in has)
        if may_grow:
            yield from ((rack, other, None) for other in self._least if self.counts[other] > self._least[other])

    def _choices(self, rack: str) -> Iterator[Racks]:
        """Racks of movable partitions, those without a claim first."""
        having = self._having[rack]
        for stays in (False, True):
            yield from (racks for racks, parts in having.items() if parts[0][0] == stays)

    def _put(self, part: TopicPartition, rack: str, racks: Racks) -> None:
        self.place[part] = rack
        self.counts[rack] += 1
        heappush(self._having[rack].setdefault(racks, []), (self._homes[part] == rack, part.partition, part.topic))

    def _pop(self, rack: str, racks: Racks) -> TopicPartition:
        parts = self._having[rack][racks]
        _, number, topic = heappop(parts)
        if not parts:
            del self._having[rack][racks]
        self.counts[rack] -= 1
        return TopicPartition(topic, number)


def _way(came: Mapping[str, Step], start: str, last: Step) -> list[Step]:
    """The steps from start to `last`, each by its predecessor."""
    found = [last]
    while found[-1][0] != start:
        found.append(came[found[-1][0]])
    return found[::-1]

"""Unequal subscriptions: keep what is claimed, place the rest, then level out wherever something can move.

Every step lowers the sum of the squares of what the threads have, or leaves that as it is and lowers the number of
partitions that are not where they were: so it ends, and what it has once made is left as it is the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from coordinator.zk.partitions import TopicPartition

from . import Subscriber
from .claims import ANY, Claims, by_number
from .even import Shares

NOWHERE = -1
FREE, AWAY, BACK, HOME = range(4)
"""Pools of what a thread has: nobody's before; another's before; the same by whose it was; its own."""


def balanced(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]], claims: Claims) -> Shares:
    """No partition could go from a thread to one that takes part in its topic and has two or more less."""
    board = _Board(members, topics)
    board.place_claims(claims)
    if len(board.units) > len(members):
        for own in board.units_of_members():
            board.level([[unit for unit in units if unit in own] for units in board.kinds])
        board.settle()
    board.place_the_rest()
    board.level(board.kinds)
    while board.send_home():
        board.level(board.kinds)
    return board.shares()


class _Board:
    """Threads and partitions as numbers. Topics in which the same threads take part are of one kind.

    :ivar units: the threads, (number, member's place).
    :ivar kinds: kind -> its threads.
    :ivar loads: unit -> how many it has.
    :ivar holders: partition -> the unit that has it; `homes`: the one that had it.
    """

    def __init__(self, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> None:
        most = [max(member.threads.values(), default=0) for member in members]
        self.units = sorted((number, place) for place, count in enumerate(most) for number in range(count))
        self.parts = sorted((TopicPartition(t, n) for t, numbers in topics.items() for n in numbers), key=by_number)
        self.kinds: list[list[int]] = []
        known: dict[tuple[int, ...], int] = {}
        self.kind_of_topic: dict[str, int] = {}
        for topic in sorted(topics):
            counts = [member.threads.get(topic, 0) for member in members]
            taking_part = tuple(unit for unit, (number, place) in enumerate(self.units) if number < counts[place])
            self.kind_of_topic[topic] = kind = known.setdefault(taking_part, len(known))
            if kind == len(self.kinds):
                self.kinds.append(list(taking_part))
        self.kind_of = [self.kind_of_topic[part.topic] for part in self.parts]
        self.loads = [0] * len(self.units)
        self.holders = [NOWHERE] * len(self.parts)
        self.homes = [NOWHERE] * len(self.parts)
        self.held: list[dict[int, int]] = [{} for _ in self.kinds]
        self._pools: dict[tuple[int, int, int], list[int]] = {}
        self._moves = 0

    def units_of_members(self) -> list[set[int]]:
        """The threads of each member that has several."""
        found: dict[int, set[int]] = {}
        for unit, (_, place) in enumerate(self.units):
            found.setdefault(place, set()).add(unit)
        return [own for own in found.values() if len(own) > 1]

    def shares(self) -> Shares:
        """What has come of it."""
        shares: Shares = {unit: [] for unit in self.units}
        for part, holder in zip(self.parts, self.holders, strict=True):
            if holder != NOWHERE:
                shares[self.units[holder]].append(part)
        return shares

    # ---- placing

    def place_claims(self, claims: Claims) -> None:
        """Everything goes where it was; of a member's threads to the one that has least, where none was named."""
        at = {unit: number for number, unit in enumerate(self.units)}
        loose = []
        for part, name in enumerate(self.parts):
            claim = claims.get(name)
            if claim is None:
                continue
            if claim.thread == ANY:
                loose.append((part, claim.member))
            else:
                self._settle_at(part, at[claim.thread, claim.member])
        own: dict[tuple[int, int], list[int]] = {}
        for part, place in loose:
            kind = self.kind_of[part]
            if (kind, place) not in own:
                own[kind, place] = [unit for unit in self.kinds[kind] if self.units[unit][1] == place]
            self._settle_at(part, min(own[kind, place], key=self.loads.__getitem__))

    def settle(self) -> None:
        """Where things are now is where they belong: a member's own threads are all the same to it."""
        self._pools.clear()
        self.homes = list(self.holders)
        for part, holder in enumerate(self.holders):
            if holder != NOWHERE:
                self._push(part, holder)

    def place_the_rest(self) -> None:
        """What nobody has goes to whoever has least; topics that only few may have come first."""
        left: dict[str, list[int]] = {}
        for part, holder in enumerate(self.holders):
            if holder == NOWHERE:
                left.setdefault(self.parts[part].topic, []).append(part)
        heap: list[tuple[int, int]] = []
        before = NOWHERE
        for topic in sorted(left, key=lambda topic: (len(self.kinds[self.kind_of_topic[topic]]), topic)):
            kind = self.kind_of_topic[topic]
            if kind != before:
                heap = [(self.loads[unit], unit) for unit in self.kinds[kind]]
                heapify(heap)
                before = kind
            for part in left[topic] if heap else ():
                unit = heap[0][1]
                self._put(part, unit)
                heapreplace(heap, (self.loads[unit], unit))

    def _settle_at(self, part: int, unit: int) -> None:
        self.homes[part] = unit
        self._put(part, unit)

    def _put(self, part: int, unit: int) -> None:
        kind = self.kind_of[part]
        self.holders[part] = unit
        self.loads[unit] += 1
        self.held[kind][unit] = self.held[kind].get(unit, 0) + 1
        self._push(part, unit)

    def _move(self, part: int, unit: int) -> None:
        old = self.holders[part]
        self.loads[old] -= 1
        self.held[self.kind_of[part]][old] -= 1
        self._moves += 1
        self._put(part, unit)

    # ---- levelling

    def level(self, kinds: Sequence[Sequence[int]]) -> None:
        """Move from those that have more to those that have two or more less, until nobody can.

        :param kinds: kind -> the units among which to move.
        """
        looked_at = [NOWHERE] * len(kinds)
        is_level = False
        while not is_level:
            is_level = True
            for kind, units in enumerate(kinds):
                if len(units) > 1 and looked_at[kind] != self._moves:
                    is_level &= not self._level_one(kind, units)
                    looked_at[kind] = self._moves

    def _level_one(self, kind: int, units: Sequence[int]) -> bool:
        """Within one kind; whether anything has moved."""
        loads, held, before = self.loads, self.held[kind], self._moves
        having = [unit for unit in units if held.get(unit)]
        if not having or max(loads[unit] for unit in having) - min(loads[unit] for unit in units) < 2:
            return False
        # Among those that have the same, the one gives that loses nothing it had before.
        rich = [(-loads[unit], not self._has_strangers(unit, kind), unit) for unit in having]
        poor = [(loads[unit], unit) for unit in units]
        heapify(rich)
        heapify(poor)
        while rich:
            load, settled, giver = rich[0]
            if not held[giver]:
                heappop(rich)
            elif -load != loads[giver]:
                heapreplace(rich, (-loads[giver], settled, giver))
            elif poor[0][0] != loads[poor[0][1]]:
                heapreplace(poor, (loads[poor[0][1]], poor[0][1]))
            elif loads[giver] - poor[0][0] < 2:
                break
            else:
                taker = poor[0][1]
                self._move(self._chosen(giver, kind, taker), taker)
                heappush(poor, (loads[giver], giver))  # beside what is in there, which is too high
                if held.get(taker):
                    heappush(rich, (-loads[taker], not self._has_strangers(taker, kind), taker))
        return self._moves != before

    # ---- home again

    def send_home(self) -> bool:
        """Take back moves that balance does not need, as other moves came after them; whether there were any."""
        before = self._moves
        for part in self._away():
            if self.loads[self.holders[part]] > self.loads[self.homes[part]]:
                self._move(part, self.homes[part])
        edges: dict[int, list[tuple[int, int]]] = {}
        for part in self._away():
            edges.setdefault(self.homes[part], []).append((self.holders[part], part))
        for part in _on_cycles(edges):
            self._move(part, self.homes[part])
        self._shorten()
        return self._moves != before

    def _away(self) -> list[int]:
        return [
            part
            for part, (home, holder) in enumerate(zip(self.homes, self.holders, strict=True))
            if home not in (NOWHERE, holder)
        ]

    def _shorten(self) -> None:
        """Where one came from A to B and another went from B to C: the first goes to C if it can, the other stays."""
        came: dict[int, dict[int, list[int]]] = {}
        went: dict[int, dict[int, list[int]]] = {}
        for part in self._away():
            came.setdefault(self.holders[part], {}).setdefault(self.kind_of[part], []).append(part)
            went.setdefault(self.homes[part], {}).setdefault(self.holders[part], []).append(part)
        taking_part = [set(units) for units in self.kinds]
        for unit in sorted(came.keys() & went.keys()):
            for target, gone in sorted(went[unit].items()):
                for kind, here in sorted(came[unit].items()):
                    if target not in taking_part[kind]:
                        continue
                    while gone and here:
                        if self.holders[gone[-1]] != target:
                            gone.pop()
                        elif self.holders[here[-1]] != unit:
                            here.pop()
                        else:
                            self._move(here.pop(), target)
                            self._move(gone.pop(), unit)

    # ---- pools: heaps by unit, kind of claim, and kind of topic or home; what has moved on is passed over

    def _push(self, part: int, unit: int) -> None:
        home, kind = self.homes[part], self.kind_of[part]
        if home == NOWHERE:
            self._push_to((unit, FREE, kind), part)
        elif home == unit:
            self._push_to((unit, HOME, kind), part)
        else:
            self._push_to((unit, AWAY, kind), part)
            self._push_to((unit, BACK, home), part)

    def _push_to(self, pool: tuple[int, int, int], part: int) -> None:
        heappush(self._pools.setdefault(pool, []), -part)  # high numbers move first

    def _first(self, unit: int, pool: int, key: int) -> int | None:
        heap = self._pools.get((unit, pool, key))
        while heap:
            if self.holders[-heap[0]] == unit:
                return -heap[0]
            heappop(heap)
        return None

    def _has_strangers(self, unit: int, kind: int) -> bool:
        return self._first(unit, FREE, kind) is not None or self._first(unit, AWAY, kind) is not None

    def _chosen(self, giver: int, kind: int, taker: int) -> int:
        """What of a kind goes from one to the other: best what the taker had, and last what the giver had."""
        for pool, key in ((BACK, taker), (FREE, kind), (AWAY, kind), (HOME, kind)):
            part = self._first(giver, pool, key)
            if part is not None:
                return part
        raise AssertionError(f"unit {giver} has nothing of kind {kind}")


def _on_cycles(edges: Mapping[int, list[tuple[int, int]]]) -> Iterable[int]:
    """Partitions that went around in circles: each edge leads from a home to (holder, partition)."""
    found: list[int] = []
    for start in sorted(edges):
        trail, parts, at = [start], [NOWHERE], {start: 0}
        while trail:
            ways = edges.get(trail[-1])
            if not ways:
                del at[trail.pop()]
                parts.pop()
                continue
            target, part = ways.pop()
            if target not in at:
                at[target] = len(trail)
                trail.append(target)
                parts.append(part)
                continue
            keep = at[target] + 1
            found += [part, *parts[keep:]]
            for gone in trail[keep:]:
                del at[gone]
            del trail[keep:], parts[keep:]
    return found

"""Sticky: balanced first, then with minimal moves; cooperative sticky: the same, with incremental revocation.

With equal subscriptions every thread gets its quota, and keeps its previous partitions within it. With unequal ones
claimed partitions are kept, the rest is placed, then loads are levelled: every move lowers the sum of the squares of
the threads' loads, or keeps it and lowers the number of moved partitions. So it terminates, and its result is stable
under repetition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from . import Assignment, Subscriber, in_order


class StickyAssignor:
    """Kafka's `StickyAssignor`, over consumer threads.

    With equal subscriptions the threads differ by one partition at most, with minimal moves. Otherwise no partition
    could move to a subscribed thread with two or more fewer, and none has moved that could move back, alone or in a
    cycle.
    """

    name = "sticky"
    is_eager = True

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        members = in_order(subscribers)
        subscribed = [member for member in members if any(member.threads.get(topic, 0) for topic in topics)]
        claims = claims_of(subscribed, topics)
        if all(len({member.threads.get(topic, 0) for topic in topics}) == 1 for member in subscribed):
            threads = [max(member.threads.get(topic, 0) for topic in topics) for member in subscribed]
            partitions = [TopicPartition(topic, n) for topic in sorted(topics) for n in sorted(topics[topic])]
            shares: Shares = evenly(threads, claims, partitions) if subscribed else {}
        else:
            shares = balanced(subscribed, topics, claims)
        assignment: dict[str, dict[str, frozenset[TopicPartition]]] = {member.consumer: {} for member in members}
        for (number, place), parts in shares.items():
            if parts:
                assignment[subscribed[place].consumer][subscribed[place].thread(number)] = frozenset(parts)
        return assignment


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `CooperativeStickyAssignor`. Its rounds are the plan's turns: a moved partition starts once its previous
    owner has stopped it, and unmoved ones are fetched without a break."""

    name = "cooperative-sticky"
    is_eager = False


ANY = -1
"""The thread of a claim for any thread of its member."""


class Claim(NamedTuple):
    """A claim of a member, by its place in the order, and of one of its threads."""

    member: int
    thread: int


Claims = dict[TopicPartition, Claim]


def claims_of(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Claims:
    """Partition -> its claim.

    The last assignment has precedence, though it may not have been carried out yet: the turns of one rebalance come to
    the same result. Any other running partition belongs to the member with the highest generation; a tie voids the
    claim.
    """
    there = {topic: frozenset(numbers) for topic, numbers in topics.items()}
    planned: dict[TopicPartition, Claim | None] = {}
    running: dict[TopicPartition, tuple[int, Claim | None]] = {}
    for place, member in enumerate(members):
        threads = {thread: number for number, thread in enumerate(member.thread_ids())}
        for part, thread in member.on_thread.items():
            if part.partition in there.get(part.topic, ()) and (count := member.threads.get(part.topic, 0)):
                number = threads.get(thread, ANY)
                claim = Claim(place, number if number < count else ANY)
                planned[part] = None if part in planned else claim
        for part in member.running:
            if part.partition in there.get(part.topic, ()) and member.threads.get(part.topic, 0):
                generation = running[part][0] if part in running else None
                if generation is None or member.generation > generation:
                    running[part] = member.generation, Claim(place, ANY)
                elif member.generation == generation:
                    running[part] = generation, None
    found = {part: claim for part, claim in planned.items() if claim is not None}
    for part, (_, ran) in running.items():
        if ran is not None and part not in planned:
            found[part] = ran
    return found


def by_number(part: TopicPartition) -> tuple[int, str]:
    """The order in which partitions are kept under a quota: low numbers of every topic first, as in Kafka."""
    return part.partition, part.topic


Shares = dict[tuple[int, int], list[TopicPartition]]
"""(Thread's number, member's place in the order) -> its partitions; new partitions are assigned in this order."""


def evenly(threads: Sequence[int], claims: Claims, partitions: Sequence[TopicPartition]) -> Shares:
    """n partitions over t threads: n // t each, and one more for n % t of them, with minimal moves.

    Kafka's `ConstrainedAssignmentBuilder`, with quotas of threads: a member keeps up to the sum of its threads' quotas.

    :param threads: number of threads of each member, in the order of members.
    """
    quota, extra = divmod(len(partitions), sum(threads))
    claimed: list[list[TopicPartition]] = [[] for _ in threads]
    for part, claim in claims.items():
        claimed[claim.member].append(part)
    shares: Shares = {}
    for place in reversed(range(len(threads))):
        more = max(0, min(extra, threads[place], len(claimed[place]) - quota * threads[place]))
        extra -= more
        kept = _kept(sorted(claimed[place], key=by_number), claims, threads[place], quota, more)
        shares.update({(number, place): parts for number, parts in enumerate(kept)})
    shares = dict(sorted(shares.items()))
    taken = {part for parts in shares.values() for part in parts}
    _fill(shares, quota, [part for part in partitions if part not in taken])
    return shares


def _kept(
    claimed: Sequence[TopicPartition], claims: Mapping[TopicPartition, Claim], threads: int, quota: int, more: int
) -> list[list[TopicPartition]]:
    """Kept partitions of each thread of a member, `more` threads with one over the quota; on the previous thread if
    possible."""
    if threads == 1:
        return [list(claimed[: quota + more])]
    kept: list[list[TopicPartition]] = [[] for _ in range(threads)]
    loose: list[TopicPartition] = []
    for part in claimed:
        number = claims[part].thread
        (kept[number] if number >= 0 else loose).append(part)
    largest = sorted(range(threads), key=lambda number: -len(kept[number]))[:more]
    for number, parts in enumerate(kept):
        most = quota + (number in largest)
        loose += parts[most:]
        del parts[most:]
    loose.sort(key=by_number, reverse=True)
    for number, parts in enumerate(kept):
        while loose and len(parts) < quota + (number in largest):
            parts.append(loose.pop())
    return kept


def _fill(shares: Shares, quota: int, left: Sequence[TopicPartition]) -> None:
    """Assign `left`: in turn to threads below the quota, then one each to those at it."""
    below = deque(parts for parts in shares.values() if len(parts) < quota)
    ready = deque(parts for parts in shares.values() if len(parts) == quota)
    for part in left:
        parts = (below or ready).popleft()
        parts.append(part)
        if len(parts) <= quota:
            (below if len(parts) < quota else ready).append(parts)


NOWHERE = -1
FREE, AWAY, BACK, HOME = range(4)
"""Pools of a thread's partitions: unclaimed before; claimed by another; the same by claimant; its own."""


def balanced(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]], claims: Claims) -> Shares:
    """Balance loads: no partition could move to a subscribed thread with two or more fewer."""
    board = _Board(members, topics)
    board.place_claims(claims)
    if len(board.units) > len(members):
        for own in board.units_of_members():
            board.level([[unit for unit in units if unit in own] for units in board.kinds])
        board.settle()
    board.place_unclaimed()
    board.level(board.kinds)
    while board.undo_moves():
        board.level(board.kinds)
    return board.shares()


class _Board:
    """Threads and partitions as numbers. Topics with the same subscribed threads are of one kind.

    :ivar units: the threads, (number, member's place).
    :ivar kinds: kind -> its threads.
    :ivar loads: unit -> its number of partitions.
    :ivar holders: partition -> the unit that has it; `homes`: the unit that had it before.
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
        self.holder_loads: list[dict[int, int]] = [{} for _ in self.kinds]
        self._pools: dict[tuple[int, int, int], list[int]] = {}
        self._moves = 0

    def units_of_members(self) -> list[set[int]]:
        """The threads of each member with several."""
        found: dict[int, set[int]] = {}
        for unit, (_, place) in enumerate(self.units):
            found.setdefault(place, set()).add(unit)
        return [own for own in found.values() if len(own) > 1]

    def shares(self) -> Shares:
        """The result."""
        shares: Shares = {unit: [] for unit in self.units}
        for part, holder in zip(self.parts, self.holders, strict=True):
            if holder != NOWHERE:
                shares[self.units[holder]].append(part)
        return shares

    # ---- placing

    def place_claims(self, claims: Claims) -> None:
        """Place every partition at its claimant; without a claimed thread, at the member's least loaded one."""
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
        """Make the current holders homes: a member's threads are interchangeable."""
        self._pools.clear()
        self.homes = list(self.holders)
        for part, holder in enumerate(self.holders):
            if holder != NOWHERE:
                self._push(part, holder)

    def place_unclaimed(self) -> None:
        """Place unclaimed partitions at the least loaded threads, topics with the fewest subscribed threads first."""
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
        self.holder_loads[kind][unit] = self.holder_loads[kind].get(unit, 0) + 1
        self._push(part, unit)

    def _move(self, part: int, unit: int) -> None:
        old = self.holders[part]
        self.loads[old] -= 1
        self.holder_loads[self.kind_of[part]][old] -= 1
        self._moves += 1
        self._put(part, unit)

    # ---- levelling

    def level(self, kinds: Sequence[Sequence[int]]) -> None:
        """Move partitions from threads to those with two or more fewer, until none remains.

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
        """Level one kind; returns whether any partition moved."""
        loads, holder_loads, before = self.loads, self.holder_loads[kind], self._moves
        having = [unit for unit in units if holder_loads.get(unit)]
        if not having or max(loads[unit] for unit in having) - min(loads[unit] for unit in units) < 2:
            return False
        # Among equally loaded threads, the giver is one with a partition to give that was not its own.
        rich = [(-loads[unit], not self._has_strangers(unit, kind), unit) for unit in having]
        poor = [(loads[unit], unit) for unit in units]
        heapify(rich)
        heapify(poor)
        while rich:
            load, settled, giver = rich[0]
            if not holder_loads[giver]:
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
                heappush(poor, (loads[giver], giver))  # beside the stale entry, which is too high
                if holder_loads.get(taker):
                    heappush(rich, (-loads[taker], not self._has_strangers(taker, kind), taker))
        return self._moves != before

    # ---- home again

    def undo_moves(self) -> bool:
        """Undo moves that later moves made unnecessary; returns whether any was undone."""
        before = self._moves
        for part in self._moved():
            if self.loads[self.holders[part]] > self.loads[self.homes[part]]:
                self._move(part, self.homes[part])
        edges: dict[int, list[tuple[int, int]]] = {}
        for part in self._moved():
            edges.setdefault(self.homes[part], []).append((self.holders[part], part))
        for part in _on_cycles(edges):
            self._move(part, self.homes[part])
        self._shorten()
        return self._moves != before

    def _moved(self) -> list[int]:
        return [
            part
            for part, (home, holder) in enumerate(zip(self.homes, self.holders, strict=True))
            if home not in (NOWHERE, holder)
        ]

    def _shorten(self) -> None:
        """Where one moved from A to B and another from B to C: move the first to C if possible, the other stays."""
        came: dict[int, dict[int, list[int]]] = {}
        went: dict[int, dict[int, list[int]]] = {}
        for part in self._moved():
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

    # ---- pools: heaps by unit, kind of claim, and kind of topic or home; stale entries are skipped

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
        """The partition to move: preferably the taker's before, last the giver's."""
        for pool, key in ((BACK, taker), (FREE, kind), (AWAY, kind), (HOME, kind)):
            part = self._first(giver, pool, key)
            if part is not None:
                return part
        raise AssertionError(f"unit {giver} has nothing of kind {kind}")


def _on_cycles(edges: Mapping[int, list[tuple[int, int]]]) -> Iterable[int]:
    """Partitions that moved in a cycle: each edge leads from a home to (holder, partition)."""
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

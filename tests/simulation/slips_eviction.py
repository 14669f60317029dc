"""Slips of evictions, failovers, take-overs of a name, and seats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.membership.channel
import consumer.membership.claims
import consumer.membership.member
import consumer.membership.offsets
import consumer.membership.registration
import coordinator.planning.membership
import coordinator.planning.plan
import coordinator.planning.reconciliation
import coordinator.rebalance.rebalancer
from consumer.errors import FencedInstanceId, UnknownMemberId
from consumer.membership.channel import FencedChannel
from coordinator.rebalance.member_clocks import EvictionClocks
from coordinator.rebalance.rebalancer import Rebalancer
from coordinator.zk.errors import BadData, IncarnationOver
from coordinator.zk.store import Check
from tests.simulation.mutation import Mutation, constant, nothing, of, replaced

# ---- evictions, failovers, and a name that is taken over


def _half_a_mark(original: Any) -> Any:
    def keep_marks(snapshot: Any, found: Any) -> None:
        twice = {mark: 2 * age_s for mark, age_s in snapshot.mark_age_s.items()}
        original(replace(snapshot, mark_age_s=twice), found)

    return keep_marks


def _all_wait(original: Any) -> Any:
    def taken(now: Any) -> Any:
        every: frozenset[Any] = frozenset().union(*(target.partitions for target in now.want.target.values()))
        return original(now) | (every if now.membership.marks else frozenset())

    return taken


def _looks_past(ended: bool, incarnation: bool) -> Any:
    """What the channel shows is this process's, unless it is ended, or another's, of which one is not looked at."""

    def make(original: Any) -> Any:
        def look(self: FencedChannel) -> Any:
            try:
                return original(self)
            except (FencedInstanceId, UnknownMemberId, IncarnationOver):
                node = self._store.get(self._path)
                try:
                    latest = self._parsed(self._path, node.data) if node is not None else None
                except BadData:
                    latest = None
                is_other = latest is None or latest.incarnation != self.incarnation
                if node is None or latest is None or not latest.incarnation:
                    raise
                if (is_other and not incarnation) or (latest.ended is not None and not ended):
                    raise
                self.over = None
                return latest, node.stat.version

        return look

    return make


def _forgets_its_clocks(original: Any) -> Any:
    def decided(self: EvictionClocks, plan: Any) -> None:
        for name, _ in (*plan.withdrawn, *plan.commands):
            if name in self._of:
                self._of[name].since = None
        original(self, plan)

    return decided


def _commands_alone_count(original: Any) -> Any:
    def decided(self: EvictionClocks, plan: Any) -> None:
        original(self, plan)
        for one in self._of.values():
            if one.is_unowned and one.lost_at < self._runtime.monotonic():
                one.since = one.sent = None

    return decided


def _new_after_each_election(original: Any) -> Any:
    def needs(snapshot: Any, *rest: Any) -> bool:
        is_another = bool(snapshot.state.target) and snapshot.state.epoch != snapshot.epoch
        return is_another or bool(original(snapshot, *rest))

    return needs


def _takes_it_back(original: Any) -> Any:
    return lambda store, paths, name, registration, own, *more: original(store, paths, name, registration, None, *more)


# ---- seats


def _seats_away_for(seconds: float) -> Any:
    def make(original: Any) -> Any:
        def seats(snapshot: Any, found: Any) -> None:
            views = {name: replace(view, away_s=seconds) for name, view in snapshot.seats.items()}
            original(replace(snapshot, seats=views), found)

        return seats

    return make


def _given_up_unchecked(original: Any) -> Any:
    return lambda *args: [op for op in original(*args) if not isinstance(op, Check)]


_RECONCILIATION = coordinator.planning.reconciliation
_MEMBERSHIP = coordinator.planning.membership

EVICTION: tuple[Mutation, ...] = (
    Mutation(
        "a mark lasts half of its lease",
        "Eviction 3",
        (replaced(_MEMBERSHIP, "_keep_marks", _half_a_mark),),
        of("S1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "all partitions wait for a mark",
        "Eviction 3",
        (replaced(_RECONCILIATION, "taken_partitions", _all_wait),),
        of("L1", "L3"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "churn postpones evictions",
        "Eviction 1",
        (replaced(EvictionClocks, "decided", _forgets_its_clocks),),
        of("L4"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "who keeps what has lost its owner has no clock",
        "Eviction",
        (replaced(EvictionClocks, "decided", _commands_alone_count),),
        of("L1", "L4"),
        ("large", "aimed"),
    ),
    Mutation(
        "no member is evicted",
        "Eviction 1",
        (constant(_MEMBERSHIP, "_evict", nothing),),
        of("L1", "L4"),
        ("aimed", "sealing"),
    ),
    Mutation(
        "an evicted consumer goes on",
        "Eviction 4",
        (replaced(FencedChannel, "_look", _looks_past(ended=True, incarnation=False)),),
        of("S1", "S3", "L1", "L4"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "an older process of a name goes on",
        "Take-over 2",
        (replaced(FencedChannel, "_look", _looks_past(ended=False, incarnation=True)),),
        of("S1", "S3", "S5", "L1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "the older process takes its name back",
        "Take-over 2",
        (
            replaced(consumer.membership.registration, "register", _takes_it_back),
            constant(consumer.membership.channel, "FencedInstanceId", UnknownMemberId),
        ),
        of("L1", "L4"),
        ("aimed", "storm"),
    ),
    Mutation(
        "stops are sent after every failover",
        "Failover 3",
        (replaced(coordinator.planning.plan, "_needs_new_generation", _new_after_each_election),),
        of("L1", "L4", "S9"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a returning seat is missed",
        "Rebalance 3",
        (constant(Rebalancer, "_missed_a_return", lambda *_: False),),
        of("S2", "S7", "L1", "L2"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a seat is removed unchecked",
        "Rebalance 3",
        (replaced(coordinator.rebalance.rebalancer, "_given_up", _given_up_unchecked),),
        of("S7", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a seat is given up at once",
        "Rebalance 3",
        (replaced(_MEMBERSHIP, "_seats", _seats_away_for(1e9)),),
        of("L1", "L4", "S7"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a seat is never given up",
        "Rebalance 3",
        (replaced(_MEMBERSHIP, "_seats", _seats_away_for(0.0)),),
        of("L1", "L2", "S7"),
        ("storm", "aimed"),
    ),
)

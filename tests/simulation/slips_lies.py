"""Slips in what a coordinator believes of members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import coordinator.planning.membership
import coordinator.rebalance.conduct
import coordinator.rebalance.counted
from coordinator.rebalance.conduct import ASTRAY, Conducts, _Conduct
from coordinator.rebalance.group_reader import GroupReader
from coordinator.zk.znodes.partitions import NONE
from tests.simulation.mutation import Mutation, constant, of, replaced

_WHERE = ("aimed", "storm", "watchful")


def _believes_generations(original: Any) -> Any:
    def state(self: GroupReader, node: Any, channels: Any, *rest: Any) -> Any:
        found = original(self, node, channels, *rest)
        said = max((view.channel.generation for view in channels.values() if view.channel), default=0)
        return replace(found, generation=max(said, found.generation))

    return state


def _believes_leases(original: Any) -> Any:
    def read(self: GroupReader, *rest: Any) -> Any:
        found = original(self, *rest)
        return replace(found, longest_lease_ms=10**9) if found is not None else None

    return read


def _keeps_its_clock(original: Any) -> Any:
    def judge(self: _Conduct, *rest: Any) -> None:
        since = self.since
        original(self, *rest)
        self.since = since if self.is_late else self.since

    return judge


def _forgets_strikes(original: Any) -> Any:
    def decided(self: Conducts, plan: Any) -> None:
        for name, one in self._of.items():
            if name not in plan.unsettled and one.sent is None:
                one.strikes = {kind: n for kind, n in one.strikes.items() if kind == ASTRAY}
        original(self, plan)

    return decided


LIES = (
    Mutation(
        "all that a channel says counts",
        "What counts of running",
        (constant(coordinator.rebalance.counted, "uncounted", lambda *_: NONE),),
        of("S12", "S5"),
        _WHERE,
    ),
    Mutation(
        "a generation in a channel raises the group's",
        "What counts of running",
        (replaced(GroupReader, "_state", _believes_generations),),
        of("S12", "L1"),
        _WHERE,
    ),
    Mutation(
        "a lease of a day is waited for",
        "ids",
        (replaced(GroupReader, "read", _believes_leases),),
        of("L1"),
        _WHERE,
    ),
    Mutation(
        "an acknowledgement is obedience",
        "Eviction 1",
        (
            constant(coordinator.rebalance.conduct, "disobeyed", lambda *_: ""),
            constant(coordinator.rebalance.conduct, "unapplied", lambda *_: ""),
            constant(coordinator.rebalance.conduct, "refused_free", lambda *_: NONE),
        ),
        of("L4", "L1", "L3"),
        _WHERE,
    ),
    Mutation(
        "no number of strikes evicts, and none makes a pause",
        "Eviction 1",
        (
            constant(coordinator.planning.membership, "STRIKES", 10**9),
            constant(coordinator.rebalance.conduct, "pause_after_s", lambda *_: 0.0),
        ),
        of("L4", "L1", "L3"),
        _WHERE,
    ),
    Mutation(
        "what runs without owner znodes is what a member shall run",
        "What obeying is",
        (replaced(Conducts, "decided", _forgets_strikes),),
        of("L4"),
        _WHERE,
    ),
    Mutation(
        "a removed owner znode runs the eviction clock",
        "Eviction 1",
        (replaced(_Conduct, "judge", _keeps_its_clock),),
        of("S7"),
        _WHERE,
    ),
)

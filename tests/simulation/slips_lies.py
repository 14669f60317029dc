"""Slips in what a coordinator believes of members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import coordinator.rebalance.member_clocks
from coordinator.rebalance.group_reader import GroupReader
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


LIES = (
    Mutation(
        "a generation in a channel raises the group's",
        "state",
        (replaced(GroupReader, "_state", _believes_generations),),
        of("S2", "L1", "L4"),
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
        (constant(coordinator.rebalance.member_clocks, "is_carried_out", lambda *_: True),),
        of("L4", "L1", "L3"),
        _WHERE,
    ),
    Mutation(
        "a command that was removed is sent again without a pause",
        "Eviction 1",
        (constant(coordinator.rebalance.member_clocks, "PAUSE_S", 0.0),),
        of("L4"),
        _WHERE,
    ),
)

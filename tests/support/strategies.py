"""Strategies for tests that name one."""

from __future__ import annotations

from zk_group.coordinator.assignors import Assignor, RangeAssignor


def only(assignor: Assignor) -> dict[str, Assignor]:
    """A node that has this strategy and no other."""
    return {assignor.name: assignor}


RANGE = only(RangeAssignor())

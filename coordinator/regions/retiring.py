"""Removing the old checkpoints of a region, and a region without groups: in batches, one in each turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..zk.errors import BadData
from ..zk.store import Check, Delete, Operation, Store
from ..zk.update import ROOM, batches, clear_below
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.paths import GROUPS, GroupPaths, RegionPaths, names_below
from ..zk.znodes.regions import COMPLETED

ZNODES_A_TURN = 2_000
STATES_AT_ONCE = 100
ENDED_KEPT = 20
"""Number of aborted or abandoned checkpoints that are kept, for operators."""

Write = Callable[[Sequence[Operation]], bool]
"""Commits under the coordinator's fence; False when ZooKeeper has refused it."""


def to_retire(
    numbers: Sequence[int], complete: Sequence[int], ended: Sequence[int], stands_on: int, kept: int
) -> list[int]:
    """The checkpoints to remove, oldest first.

    :param numbers: all existing ones.  :param complete: the complete ones, in order.
    :param ended: the aborted or abandoned ones, in order.
    :param stands_on: the region's current one, which is always kept.
    :param kept: number of complete ones to keep.
    """
    oldest = min([*complete[-kept:], stands_on] if stands_on else [*complete[-kept:]], default=0)
    return sorted({*(n for n in numbers if n < oldest), *ended[:-ENDED_KEPT]} - {stands_on})


def retire(store: Store, paths: RegionPaths, old: Collection[int], write: Write) -> bool:
    """Remove checkpoints with their children; whether all are gone."""
    room = ZNODES_A_TURN
    for number in sorted(old):
        below = store.children(paths.checkpoint(number))
        names = below.names if below is not None else []
        units: list[list[Operation]] = [
            # `completed` first: a checkpoint that is removed in part must not be a target of a reset.
            [Delete(f"{paths.checkpoint(number)}/{name}")]
            for name in sorted(names, key=lambda name: (name != COMPLETED, name))[:room]
        ]
        room -= len(names) + 1
        if room >= 0:
            units.append([Delete(paths.checkpoint(number))])
        if not all(write(batch) for batch in batches(units, ROOM)) or room < 0:
            return False
    return True


def is_named(store: Store, region: str) -> bool:
    """Whether a group is bound to the region, or is unreadable: an operator may have emptied the region's list."""
    names = names_below(store, GROUPS)
    for first in range(0, len(names), STATES_AT_ONCE):
        paths = [GroupPaths(name).state for name in names[first : first + STATES_AT_ONCE]]
        for path, node in zip(paths, store.get_many(paths), strict=True):
            try:
                state = GroupState.parse(path, node.data) if node is not None else GroupState()
            except BadData:
                return True
            if state.region is not None and state.region.name == region:
                return True
    return False


def remove_region(store: Store, paths: RegionPaths, version: int, write: Write) -> bool:
    """Remove a region without groups; whether it is gone. A concurrent binding refuses it."""
    unbound = Check(paths.root, version)
    for path in (paths.initial, paths.checkpoints):
        if not clear_below(store, path, lambda batch: write([unbound, *batch]), ZNODES_A_TURN):
            return False
    there = (paths.request, paths.initial, paths.checkpoints)
    found = [path for path, node in zip(there, store.get_many(there), strict=True) if node is not None]
    return write([*(Delete(path) for path in found), Delete(paths.root, version)])

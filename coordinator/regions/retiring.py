"""Removing the checkpoints of a region that are kept no more, and a region that has no group: some in each turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..zk.errors import BadData
from ..zk.fenced import batches
from ..zk.names import is_name
from ..zk.paths import GROUPS, GroupPaths, RegionPaths
from ..zk.regions import COMPLETED
from ..zk.state import GroupState
from ..zk.store import Check, Delete, Operation, Store
from .clearing import ROOM, clear_below

ZNODES_A_TURN = 2_000
STATES_AT_ONCE = 100
ENDED_KEPT = 20
"""Checkpoints that were aborted or abandoned and are kept, for people."""

Write = Callable[[Sequence[Operation]], bool]
"""Commits under the coordinator's fence; False when ZooKeeper has refused it."""


def to_retire(
    numbers: Sequence[int], complete: Sequence[int], ended: Sequence[int], stands_on: int, kept: int
) -> list[int]:
    """The checkpoints that are kept no more, the oldest first.

    :param numbers: of all that there are.  :param complete: of complete ones, in order.
    :param ended: of those that were aborted or abandoned, in order.
    :param stands_on: the one that the region goes back to, which always stays.
    :param kept: so many complete ones stay.
    """
    oldest = min([*complete[-kept:], stands_on] if stands_on else [*complete[-kept:]], default=0)
    return sorted({*(n for n in numbers if n < oldest), *ended[:-ENDED_KEPT]} - {stands_on})


def retire(store: Store, paths: RegionPaths, old: Collection[int], write: Write) -> bool:
    """Remove checkpoints with what stands below them; whether all are gone."""
    room = ZNODES_A_TURN
    for number in sorted(old):
        below = store.children(paths.checkpoint(number))
        names = below.names if below is not None else []
        units: list[list[Operation]] = [
            # `completed` first: what is removed in part is no checkpoint that anybody goes back to.
            [Delete(f"{paths.checkpoint(number)}/{name}")]
            for name in sorted(names, key=lambda name: (name != COMPLETED, name))[:room]
        ]
        room -= len(names) + 1
        if room >= 0:
            units.append([Delete(paths.checkpoint(number))])
        if not all(write(some) for some in batches(units, ROOM)) or room < 0:
            return False
    return True


def is_named(store: Store, region: str) -> bool:
    """Whether a group says that it is bound to the region, or cannot be read: a hand has emptied the region's list."""
    listing = store.children(GROUPS)
    names = sorted(name for name in (listing.names if listing is not None else ()) if is_name(name))
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
    """Remove a region that no group is bound to; whether it is gone. One that binds meanwhile refuses it."""
    unbound = Check(paths.root, version)
    for path in (paths.initial, paths.checkpoints):
        if not clear_below(store, path, lambda some: write([unbound, *some]), ZNODES_A_TURN):
            return False
    there = (paths.request, paths.initial, paths.checkpoints)
    found = [path for path, node in zip(there, store.get_many(there), strict=True) if node is not None]
    return write([*(Delete(path) for path in found), Delete(paths.root, version)])

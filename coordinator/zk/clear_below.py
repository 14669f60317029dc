"""Removes the descendants of a region's znode in bounded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .batching import batches
from .store import MAX_OPERATIONS, Delete, Operation, Store

ROOM = MAX_OPERATIONS - 10
DEEPEST = 100
"""Levels of znodes that are listed; the protocol has four."""


def clear_below(store: Store, root: str, commit: Callable[[Sequence[Operation]], bool], most: int) -> bool:
    """Remove up to `most` descendants of `root`, the deepest first; `root` itself stays.

    :param commit: commits under the caller's fence; returns False when ZooKeeper refused.
    :returns: whether `root` had no descendants.
    """
    parents = [root]
    for _ in range(DEEPEST):
        listings = store.children_many(parents)
        names = [
            f"{path}/{name}" for path, found in zip(parents, listings, strict=True) if found for name in found.names
        ]
        if not names:
            break
        parents = sorted(names)[:most]
    if parents == [root]:
        return True
    units: list[list[Operation]] = [[Delete(path)] for path in parents]
    for batch in batches(units, ROOM):
        if not commit(batch):
            break
    return False

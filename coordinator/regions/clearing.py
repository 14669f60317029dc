"""Removing what stands below a znode of a region, some of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..zk.fenced import batches
from ..zk.store import MAX_OPERATIONS, Delete, Operation, Store

ROOM = MAX_OPERATIONS - 10
DEEPEST = 100
"""Levels of znodes that are looked at; the protocol has four."""


def clear_below(store: Store, root: str, commit: Callable[[Sequence[Operation]], bool], most: int) -> bool:
    """Remove up to `most` znodes below `root`, the deepest first, and never `root` itself.

    :param commit: commits under the caller's fence; False when ZooKeeper has refused it.
    :returns: whether nothing was left below it.
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
    for some in batches(units, ROOM):
        if not commit(some):
            break
    return False

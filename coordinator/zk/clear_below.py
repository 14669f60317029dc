"""Removes the descendants of a region's znode in bounded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .batching import batches
from .errors import RebalanceFailed
from .store import MAX_OPERATIONS, Delete, Operation, Store

ROOM = MAX_OPERATIONS - 10
DEEPEST = 1000
"""Levels of znodes that are listed, one request each; the protocol has four."""


def clear_below(store: Store, root: str, commit: Callable[[Sequence[Operation]], bool], most: int) -> bool:
    """Remove up to `most` descendants of `root`, the deepest first; `root` itself stays.

    :param commit: commits under the caller's fence; returns False when ZooKeeper refused.
    :returns: whether `root` had no descendants.
    :raises RebalanceFailed: when they have more than `DEEPEST` levels.
    """
    found: list[str] = []
    parents = [root]
    for _ in range(DEEPEST):
        listings = store.children_many(parents)
        names = [
            f"{path}/{name}" for path, listed in zip(parents, listings, strict=True) if listed for name in listed.names
        ]
        if not names:
            break
        parents = sorted(names)[:most]
        # Of a level that is cut, the parents keep other children.
        found = parents + (found if len(parents) == len(names) else [])
    else:
        raise RebalanceFailed(f"{root} has more than {DEEPEST} levels of znodes below it: remove them by hand")
    if not found:
        return True
    units: list[list[Operation]] = [[Delete(path)] for path in found[:most]]
    for batch in batches(units, ROOM):
        if not commit(batch):
            break
    return False

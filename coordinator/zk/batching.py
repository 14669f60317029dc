"""Commits: create parent znodes, remove descendants, and split operations into multis within ZooKeeper's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from .errors import RebalanceFailed, Refused
from .store import MAX_COMMIT_BYTES, MAX_OPERATIONS, Create, Delete, Node, Operation, Store, operation_bytes


def ensure(store: Store, paths: Iterable[str], data: bytes = b"", also: Sequence[str] = ()) -> list[Node | None]:
    """Create the persistent znodes that do not exist, in the order given (parents first).

    A znode created concurrently counts as created. A lost reply raises `OutcomeUnknown`: call again.

    :param also: other znodes to read with the same request; only read.
    :returns: those.
    """
    required = list(paths)
    found = store.get_many([*required, *also])
    for path, node in zip(required, found, strict=False):
        if node is not None:
            continue
        try:
            store.commit([Create(path, data)])
        except Refused as refused:
            if refused.reason != "node-exists":
                raise
    return found[len(required) :]


def batches(
    units: Sequence[Sequence[Operation]], room: int = MAX_OPERATIONS, room_bytes: int = MAX_COMMIT_BYTES
) -> Iterator[list[Operation]]:
    """Join `units` in order into as few multis as the limits allow; a unit is never split.

    :param units: operations that must be in one multi.
    :param room: operations that fit beside those that the caller adds to each multi; `room_bytes` likewise.
    """
    batch: list[Operation] = []
    size = 0
    for unit in units:
        unit_size = sum(operation_bytes(operation) for operation in unit)
        if batch and (len(batch) + len(unit) > room or size + unit_size > room_bytes):
            yield batch
            batch, size = [], 0
        batch.extend(unit)
        size += unit_size
    if batch:
        yield batch


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

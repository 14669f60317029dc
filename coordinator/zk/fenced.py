"""Commits: making what must exist, and splitting what is too large for one multi."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .errors import Refused
from .store import MAX_COMMIT_BYTES, MAX_OPERATIONS, Create, Operation, Store, operation_bytes


def ensure(store: Store, paths: Iterable[str], data: bytes = b"") -> None:
    """Create the persistent znodes that do not exist yet, parents first as they come.

    One that somebody else makes at the same moment is as good; a lost reply raises `OutcomeUnknown`: call again.
    """
    wanted = list(paths)
    for path, node in zip(wanted, store.get_many(wanted), strict=True):
        if node is not None:
            continue
        try:
            store.commit([Create(path, data)])
        except Refused as refused:
            if refused.reason != "node-exists":
                raise


def batches(
    units: Sequence[Sequence[Operation]], room: int = MAX_OPERATIONS, room_bytes: int = MAX_COMMIT_BYTES
) -> Iterator[list[Operation]]:
    """`units` in order, joined into as few multis as their limits allow; a unit is never torn apart.

    :param units: operations that belong together.
    :param room: operations that a multi may take besides those that the caller adds to each; `room_bytes` likewise.
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

"""What operators do to the seats of static members: take them away. The elected coordinator carries it out."""

from __future__ import annotations

from collections.abc import Sequence

from .zk.errors import CoordinatorError, OutcomeUnknown, Refused, UsageError
from .zk.fields import changed
from .zk.names import is_name, shown
from .zk.paths import GroupPaths
from .zk.store import SetData, Store

TRIES = 20


def seats_of(store: Store, group: str) -> list[str]:
    """The instance ids that have a seat in `group`, in order."""
    listing = store.children(GroupPaths(group).seats)
    return sorted(name for name in (listing.names if listing else ()) if is_name(name))


def remove_seats(store: Store, group: str, instances: Sequence[str], reason: str) -> None:
    """Mark the seats as removed: the coordinator's next turn evicts whoever is on one, and removes it.

    All are looked at before any is marked.

    :raises UsageError: when one of `instances` has no seat.
    :raises BadData: when one cannot be read.
    """
    known = seats_of(store, group)
    unknown = sorted(set(instances) - set(known))
    if unknown:
        has = f"it has those of {', '.join(known[:10])}" if known else "it has none"
        raise UsageError(f"Consumer group '{group}' has no seat of {shown(unknown[0])}: {has}")
    for instance in instances:
        _remove(store, GroupPaths(group).seat(instance), reason)


def _remove(store: Store, path: str, reason: str) -> None:
    """Compare and set; a seat that is gone by now is what was asked for.

    :raises BadData: when it cannot be read; its member's next registration writes it anew.
    """
    for _ in range(TRIES):
        node = store.get(path)
        if node is None:
            return
        try:
            store.commit([SetData(path, changed(path, node.data, {"removed": reason}), node.stat.version)])
            return
        except Refused:
            continue  # its member has come back to it meanwhile
        except OutcomeUnknown:
            store.sync()
    raise CoordinatorError(f"{path} is changed again and again by others: try again")

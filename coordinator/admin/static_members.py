"""Removal of static members' seats by an operator; the elected coordinator carries it out."""

from __future__ import annotations

from collections.abc import Sequence

from ..zk.errors import UsageError
from ..zk.store import Node, SetData, Store
from ..zk.update import Change, update
from ..zk.znodes.json_fields import changed
from ..zk.znodes.names import names_below, shown
from ..zk.znodes.paths import GroupPaths


def seats_of(store: Store, group: str) -> list[str]:
    """The instance ids that have a seat in `group`, sorted."""
    return names_below(store, GroupPaths(group).seats)


def remove_seats(store: Store, group: str, instances: Sequence[str], reason: str) -> None:
    """Mark the seats as removed: the coordinator's next turn evicts their members, and removes the seats.

    All are checked before the first is marked.

    :raises UsageError: when one of `instances` has no seat.
    :raises BadData: when one is unreadable.
    """
    known = seats_of(store, group)
    unknown = sorted(set(instances) - set(known))
    if unknown:
        has = f"it has those of {', '.join(known[:10])}" if known else "it has none"
        raise UsageError(f"Consumer group '{group}' has no seat of {shown(unknown[0])}: {has}")
    for instance in instances:
        _remove(store, GroupPaths(group).seat(instance), reason)


def _remove(store: Store, path: str, reason: str) -> None:
    """Compare and set; a seat that is already gone counts as removed.

    :raises BadData: when it is unreadable; its member's next registration overwrites it.
    """

    def removed(node: Node | None) -> Change[None]:
        if node is None:
            return Change((), None)
        data = changed(path, node.data, {"removed": reason})
        return Change([SetData(path, data, node.stat.version)], None)

    update(store, path, removed)

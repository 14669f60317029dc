"""Operator requests about members: `groups remove-members` removes static members' seats, `groups lift-mark` ends the
wait for an evicted member's lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..zk.errors import BadData, CoordinatorError, UsageError
from ..zk.runtime import Runtime
from ..zk.store import Node, SetData, Store
from ..zk.update import Change, update
from ..zk.znodes.group_state import GroupState, Mark
from ..zk.znodes.json_fields import changed
from ..zk.znodes.paths import GroupPaths, names_below, shown
from .control import await_turn, checked_request, request_turn
from .groups import Reading, checked_group

# ---- seats


@dataclass(frozen=True, slots=True)
class SeatRemoval:
    """The options of `groups remove-members`.

    :ivar instances: the members' instance ids; empty for every static member.
    :ivar by: the operator.  :ivar timeout_s: time to wait for the coordinator's turn.
    """

    group: str
    instances: tuple[str, ...]
    by: str
    reason: str | None
    timeout_s: float


def remove_members(store: Store, runtime: Runtime, asked: SeatRemoval) -> tuple[str, ...]:
    """Mark seats as removed, and wait for the turn that removes them; returns the members' instance ids.

    :raises UsageError: when there is no such group or seat, the group is paused, or the reason is too long.
    :raises CoordinatorError: when no coordinator is elected, or no turn has succeeded in time.
    """
    group = asked.group
    checked_group(Reading(store), group)
    checked_request(store, group, asked.reason)  # before anything is marked
    chosen = tuple(dict.fromkeys(asked.instances)) or tuple(names_below(store, GroupPaths(group).seats))
    remove_seats(store, group, chosen, asked.reason or f"by {asked.by}")
    request_turn(store, group, asked.by, runtime.wall_ms(), asked.reason)
    if not await_turn(store, runtime, group, asked.timeout_s):
        raise CoordinatorError(
            f"no turn of group '{group}' has succeeded within {asked.timeout_s:g} s: the seats are marked as removed, "
            "and the next successful turn removes them (see `status --check`)"
        )
    return chosen


def remove_seats(store: Store, group: str, instances: Sequence[str], reason: str) -> None:
    """Mark the seats as removed: the coordinator's next turn evicts their members, and removes the seats.

    All are checked before the first is marked.

    :raises UsageError: when one of `instances` has no seat.
    :raises BadData: when one is unreadable.
    """
    known = names_below(store, GroupPaths(group).seats)
    unknown = sorted(set(instances) - set(known))
    if unknown:
        has = f"it has those of {', '.join(known[:10])}" if known else "it has none"
        raise UsageError(f"Consumer group '{group}' has no seat of {shown(unknown[0])}: {has}")
    for path in map(GroupPaths(group).seat, instances):
        update(store, path, partial(_removed, path, reason))


def _removed(path: str, reason: str, node: Node | None) -> Change[None]:
    """A seat that is already gone counts as removed; an unreadable one its member's next registration overwrites."""
    if node is None:
        return Change((), None)
    return Change([SetData(path, changed(path, node.data, {"removed": reason}), node.stat.version)], None)


# ---- marks


@dataclass(frozen=True, slots=True)
class Lift:
    """The options of `groups lift-mark`.

    :ivar consumer: whose marks.  :ivar incarnation: only that of this incarnation; empty for all of the consumer.
    :ivar by: the operator.
    """

    group: str
    consumer: str
    incarnation: str
    by: str
    reason: str | None


def marks_of(store: Store, asked: Lift) -> tuple[Mark, ...]:
    """The marks that would be lifted.

    :raises UsageError: when there is no such group or mark.
    :raises CoordinatorError: when the group's state cannot be read.
    """
    checked_group(Reading(store), asked.group)
    return _chosen(asked, _state(asked, store.get(GroupPaths(asked.group).state)))


def lift(store: Store, runtime: Runtime, asked: Lift) -> tuple[Mark, ...]:
    """Remove the marks from the state by its version, and request a turn; returns the marks that were removed.

    All other fields of the state stay as they are. A turn that has read the state before is refused.

    :raises UsageError: when there is no such group or mark, the group is paused, or the reason is too long.
    :raises CoordinatorError: when the state cannot be read, or no coordinator is elected.
    """
    checked_group(Reading(store), asked.group)
    checked_request(store, asked.group, asked.reason)  # before anything is lifted
    path = GroupPaths(asked.group).state

    def without(node: Node | None) -> Change[tuple[Mark, ...]]:
        state = _state(asked, node)
        lifted = _chosen(asked, state)
        if node is None:
            return Change([], ())
        left = [mark.to_json() for mark in state.marks if mark not in lifted]
        return Change([SetData(path, changed(path, node.data, {"marks": left}), node.stat.version)], lifted)

    lifted = update(store, path, without)
    request_turn(store, asked.group, asked.by, runtime.wall_ms(), asked.reason)
    return lifted


def _state(asked: Lift, node: Node | None) -> GroupState:
    path = GroupPaths(asked.group).state
    try:
        return GroupState.parse(path, node.data) if node is not None else GroupState()
    except BadData as error:
        raise CoordinatorError(f"{error}: a coordinator that reads it makes a mark on everything") from error


def _chosen(asked: Lift, state: GroupState) -> tuple[Mark, ...]:
    found = tuple(
        mark for mark in state.marks if mark.consumer == asked.consumer and asked.incarnation in ("", mark.incarnation)
    )
    if found:
        return found
    known = ", ".join(sorted({mark.consumer for mark in state.marks}))
    others = f": it has those of {known}" if known else ""
    raise UsageError(f"group '{asked.group}' has no mark of '{asked.consumer}'{others}")

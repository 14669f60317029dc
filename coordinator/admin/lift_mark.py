"""Implementation of `groups lift-mark`: an operator ends the wait for an evicted member's lease."""

from __future__ import annotations

from dataclasses import dataclass

from ..zk.errors import BadData, CoordinatorError, UsageError
from ..zk.runtime import Runtime
from ..zk.store import Node, SetData, Store
from ..zk.update import Change, update
from ..zk.znodes.group_state import GroupState, Mark
from ..zk.znodes.json_fields import changed
from ..zk.znodes.paths import GroupPaths
from .control import checked_request, request_turn
from .groups import Reading, checked_group


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

"""Implementation of `groups remove-members`: mark seats, request a turn, and wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..zk.errors import CoordinatorError
from ..zk.runtime import Runtime
from ..zk.store import Store
from .control import await_turn, checked_request, request_turn
from .groups import Reading, checked_group
from .static_members import remove_seats, seats_of


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
    chosen = tuple(dict.fromkeys(asked.instances)) or tuple(seats_of(store, group))
    remove_seats(store, group, chosen, asked.reason or f"by {asked.by}")
    request_turn(store, group, asked.by, runtime.wall_ms(), asked.reason)
    if not await_turn(store, runtime, group, asked.timeout_s):
        raise CoordinatorError(
            f"no turn of group '{group}' has succeeded within {asked.timeout_s:g} s: the seats are marked as removed, "
            "and the next successful turn removes them (see `status --check`)"
        )
    return chosen

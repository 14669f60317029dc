"""All client assignors: built-in ones, coordinator-side strategies, and those of installed packages.

A package offers one by an entry point in the group `zk_group_coordinator.client_assignors` on the members' hosts, with
the assignor's name, that leads to a `ClientAssignor` or to a class of one. An unusable one is ignored with the reason,
and affects only consumers that list it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from types import MappingProxyType

from coordinator.assignors.registry import BUILT_IN, NAME_RULE, Kind, Unusable, assignors, complete, load_offered
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.paths import is_name, shown

from ..config import CLIENT_SIDE, COORDINATOR_SIDE
from ..logs import Log
from ..membership.call_guard import MemberContext
from ..membership.client_assignment import ClientAssignment
from .adapter import CoordinatorStrategy
from .base import ClientAssignor
from .consumers import ConsumerRole
from .lag import LagAssignor
from .rack import RackAssignor

log = logging.getLogger(__name__)

ENTRY_POINTS = "zk_group_coordinator.client_assignors"
RESERVED = frozenset({*BUILT_IN, LagAssignor.name, RackAssignor.name})
"""Names that no package can override."""
METHODS = ("metadata", "assign", "on_assignment")
SEVERAL = "several packages offer this name ({})"
CLIENT_ASSIGNORS = Kind(ENTRY_POINTS, RESERVED, "is_cooperative", METHODS, SEVERAL)


def client_assignors(offered: Iterable[EntryPoint] | None = None) -> Mapping[str, ClientAssignor]:
    """Name -> assignor, of all usable ones; the others are logged. Runs the code of installed packages: call once.

    A package's client assignor has precedence over its coordinator-side strategy of the same name.

    :param offered: entry points of client assignors; None for those of the installed packages.
    """
    found: dict[str, ClientAssignor] = {name: CoordinatorStrategy(each) for name, each in assignors().items()}
    usable, unusable = load_offered(CLIENT_ASSIGNORS, offered)
    found |= {LagAssignor.name: LagAssignor(), RackAssignor.name: RackAssignor(), **usable}
    for name, (where, reason) in unusable.items():
        log.warning("ignoring unusable strategy: strategy=%s entry_point=%s reason=%s", shown(name), where, reason)
    return MappingProxyType(found)


def named(names: Sequence[str], given: Sequence[ClientAssignor] = ()) -> tuple[ClientAssignor, ...]:
    """The assignors with these names, in their order; a repeated name counts once.

    :param given: assignors of the application, with precedence over installed ones.
    :raises UsageError: when one is not installed, or a given one is incomplete or has a duplicate name.
    """
    for assignor in given:
        name = getattr(assignor, "name", None)
        if not isinstance(name, str) or not is_name(name):
            raise UsageError(f"{shown(name)} is no name for a client assignor: {NAME_RULE}")
        try:
            complete(CLIENT_ASSIGNORS, name, assignor)
        except Unusable as reason:
            raise UsageError(f"client assignor {name} cannot be used: {reason}") from reason
    found = {assignor.name: assignor for assignor in given}
    if len(found) < len(given):
        raise UsageError("two of the given client assignors have the same name")
    if missing := [name for name in names if name not in found]:
        found = {**client_assignors(), **found}
        missing = [name for name in missing if name not in found]
    if missing:
        raise UsageError(
            f"client assignor not installed: {', '.join(map(shown, missing))}; installed: {', '.join(sorted(found))}"
        )
    return tuple(found[name] for name in dict.fromkeys(names))


def client_assignment(
    context: MemberContext, source: Log, given: Sequence[ClientAssignor] = ()
) -> ClientAssignment | None:
    """None for a consumer under the coordinator's strategies.

    :param given: client assignors besides the installed ones; when not empty, the only ones, in this order.
    :raises UsageError: when a protocol is not installed, or assignors are given without client-side assignment.
    """
    config = context.config
    if CLIENT_SIDE not in config.sides:
        if given:
            raise UsageError("assignors are for client-side assignment: add assignment='client'")
        return None
    names = [each.name for each in given] or list(config.protocols)
    if COORDINATOR_SIDE in config.sides and not given:
        installed = client_assignors()
        names = [name for name in names if name in installed] or names
    return ClientAssignment(context, ConsumerRole(context, source, named(names, given)))

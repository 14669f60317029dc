"""A consumer's part in client-side assignment, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.zk.errors import UsageError

from ..config import CLIENT_SIDE, COORDINATOR_SIDE
from ..logs import Log
from ..membership.client_assignment import ClientAssignment
from ..membership.context import MemberContext
from .base import ClientAssignor
from .consumers import ConsumerRole
from .registry import client_assignors, named


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

"""A consumer's part in client-side assignment, made from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.zk.errors import UsageError
from coordinator.zk.paths import GroupPaths
from coordinator.zk.runtime import Runtime

from ..config import CLIENT_SIDE, COORDINATOR_SIDE, ConsumerConfig
from ..logs import Log
from .base import ClientAssignor
from .client import ClientAssignment
from .consumers import ConsumerRole
from .registry import client_assignors, named


def client_assignment(
    config: ConsumerConfig,
    runtime: Runtime,
    source: Log,
    wake: Callable[[], None],
    given: Sequence[ClientAssignor] = (),
) -> ClientAssignment | None:
    """None for a consumer that leaves assignment to the coordinator.

    :param given: client assignors besides those that are installed; the only ones, in this order, when there are some.
    :raises UsageError: when a protocol is not installed, or assignors are given to a consumer that does not use them.
    """
    if CLIENT_SIDE not in config.sides:
        if given:
            raise UsageError("assignors are for client-side assignment: add assignment='client'")
        return None
    names = [each.name for each in given] or list(config.protocols)
    if COORDINATOR_SIDE in config.sides and not given:
        installed = client_assignors()
        names = [name for name in names if name in installed] or names
    role = ConsumerRole(config, runtime, source, named(names, given), wake)
    return ClientAssignment(GroupPaths(config.group), config.consumer, role)

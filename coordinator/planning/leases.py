"""How long a member that is gone may still run what has no owner znode. Pure."""

from __future__ import annotations

from ..snapshot import Snapshot
from ..zk.sync import CONSUMER

UNKNOWN_LEASE_MS = 40_000
"""Of a member whose ask is gone: 2/3 of the longest session that ZooKeeper grants by default (60 s)."""


def is_exclusive(snapshot: Snapshot) -> bool:
    """Whether what the group runs has no owners; where `state` does not tell, its members do."""
    client = snapshot.state.client
    if client is not None:
        return client.protocol_type != CONSUMER
    registrations = [member.registration for member in snapshot.members.values() if member.registration is not None]
    return any(registration.protocol_type != CONSUMER for registration in registrations)


def lease_ms(snapshot: Snapshot, consumer: str) -> int:
    """How long a member that is gone may still go on: as the adopted ask has it, else the longest that may be."""
    client = snapshot.state.client
    for view in snapshot.asks:
        if client is not None and view.name == client.ask and view.ask is not None and consumer in view.ask.members:
            asked = view.ask.members[consumer]
            # A seat may have had a later life than the one that was asked, with another lease.
            return asked.lease_ms if asked.lease_ms and not asked.is_seat else UNKNOWN_LEASE_MS
    return UNKNOWN_LEASE_MS

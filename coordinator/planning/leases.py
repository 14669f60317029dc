"""The lease of a departed member of a group without owner znodes. Pure."""

from __future__ import annotations

from ..zk.znodes.sync import CONSUMER
from .snapshot import Snapshot

LONGEST_LEASE_MS = 40_000
"""Of a member that nothing is known of by default:
2/3 of the longest session (60 s) of an ensemble with ticks of 3 s."""


def is_exclusive(snapshot: Snapshot) -> bool:
    """Whether the group's resources have no owners, by `state`, else by its members."""
    client = snapshot.state.client
    if client is not None:
        return client.protocol_type != CONSUMER
    registrations = [member.registration for member in snapshot.members.values() if member.registration is not None]
    return any(registration.protocol_type != CONSUMER for registration in registrations)


def lease_ms(snapshot: Snapshot, consumer: str) -> int:
    """How long a departed member may continue: as in the adopted ask, else the maximum."""
    client = snapshot.state.client
    for view in snapshot.asks:
        if client is not None and view.name == client.ask and view.ask is not None and consumer in view.ask.members:
            asked = view.ask.members[consumer]
            # A seat may have had a later incarnation than the one in the ask, with another lease.
            return asked.lease_ms if asked.lease_ms and not asked.is_seat else snapshot.longest_lease_ms
    return snapshot.longest_lease_ms

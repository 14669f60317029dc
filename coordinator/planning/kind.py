"""A group's kind: its assignment policy, its members' protocol and its region's guard, chosen here only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..assignors import Assignor
from ..zk.znodes.regions import CONSUMERS
from .asking import unreadable
from .barrier import BarrierProtocol
from .membership import GroupRules, Membership
from .partitions import PartitionProtocol
from .policy import AssignmentPolicy, LeaderAssigned, Revocation, ServerAssigned
from .reconciliation import MemberProtocol
from .regional import Guarded, NoRegion, RegionGuard, SealingRegion, StatefulRegion
from .snapshot import Snapshot

PROTOCOLS: Mapping[Revocation, MemberProtocol] = {
    Revocation.ALL: PartitionProtocol(is_eager=True),
    Revocation.MOVED: PartitionProtocol(is_eager=False),
    Revocation.BARRIER: BarrierProtocol(),
}


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A group's kind in one turn."""

    policy: AssignmentPolicy
    guard: RegionGuard

    def protocol(self, guarded: Guarded) -> MemberProtocol:
        """The protocol of its members."""
        return self.guard.protocol(guarded.step) or PROTOCOLS[guarded.decision.revocation]


def kind_of(
    snapshot: Snapshot, members: Membership, assignors: Mapping[str, Assignor], trigger: str, rules: GroupRules
) -> GroupKind:
    """The kind of a group with these members."""
    policy: AssignmentPolicy = ServerAssigned(snapshot, assignors)
    if members.agreed.is_client_side or unreadable(snapshot.state, snapshot.members, members):
        policy = LeaderAssigned(snapshot, assignors, trigger, rules.assignment_timeout_s)
    region, view = members.agreed.region, snapshot.region
    if region is None or view is None:
        return GroupKind(policy, NoRegion(snapshot.state.region))
    of_region = StatefulRegion if region.kind == CONSUMERS else SealingRegion
    return GroupKind(policy, of_region(snapshot, view, region))

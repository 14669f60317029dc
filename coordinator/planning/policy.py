"""Assignment policies: they decide a group's target, and whether it is a new generation. Pure.

The coordinator assigns by an installed strategy, or the group's leader assigns on request (`asking.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Protocol

from ..assignors import Assignor
from ..zk.znodes.group_state import GroupState, Target
from ..zk.znodes.partitions import NONE, PartitionSet
from .asking import Asking, asking, group_of, postponed
from .membership import Membership
from .partitions import has_settled
from .snapshot import MemberFacts, PartitionFacts, Snapshot
from .target import TargetAssignment, target_assignment


class Revocation(Enum):
    """The partitions that a new generation revokes first."""

    ALL = auto()
    """All partitions: an eager strategy."""
    MOVED = auto()
    """The partitions that move: a cooperative one."""
    BARRIER = auto()
    """All resources of every member, before any is started."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The target of a turn.

    :ivar strategy: of the target.
    :ivar asking: the changes of assignment requests.
    """

    assignment: TargetAssignment
    is_new: bool
    revocation: Revocation
    strategy: str
    asking: Asking


class AssignmentPolicy(Protocol):
    """Decides a group's target."""

    def decide(self, members: Membership) -> Decision:
        """The target for these members.

        :raises RebalanceFailed: when there is none.
        """

    def hold(self, decision: Decision, members: Membership) -> Decision:
        """The same turn without its new generation: the group's region takes a checkpoint first."""


@dataclass(frozen=True, slots=True)
class ServerAssigned:
    """The coordinator assigns, by a strategy that is installed on its node.

    :ivar assignors: strategy -> assignor.
    """

    snapshot: Snapshot
    assignors: Mapping[str, Assignor]

    def decide(self, members: Membership) -> Decision:
        assignor = self.assignors.get(members.agreed.strategy)
        assignment = TargetAssignment()
        if assignor is not None and members.everybody:
            assignment = target_assignment(self.snapshot, members.everybody, assignor, members.holds)
        is_eager = assignor is None or assignor.is_eager
        is_new = differs(self.snapshot.state, assignment, members)
        is_new = is_new or has_lost_owners(self.snapshot, members, is_eager)
        requests = self.snapshot.requests
        asking = Asking(assignment, obsolete=requests.asks, answered=requests.sync_request)
        revocation = Revocation.ALL if is_eager else Revocation.MOVED
        return Decision(assignment, is_new, revocation, members.agreed.strategy, asking)

    def hold(self, decision: Decision, members: Membership) -> Decision:
        state = self.snapshot.state
        assignment = TargetAssignment(state.target, state.topics, state.left_out)
        return replace(decision, assignment=assignment, is_new=False, strategy=state.strategy)


@dataclass(frozen=True, slots=True)
class LeaderAssigned:
    """The group's leader assigns, on request.

    :ivar assignors: as of `ServerAssigned`.  :ivar trigger: the turn's.
    :ivar timeout_s: seconds that a leader has to answer.
    """

    snapshot: Snapshot
    assignors: Mapping[str, Assignor]
    trigger: str
    timeout_s: float

    def decide(self, members: Membership) -> Decision:
        """See `AssignmentPolicy`. Only an adopted answer changes the target, and the end of the last member."""
        group = group_of(self.snapshot, members, self.trigger, self.timeout_s)
        changes = asking(group)
        is_led = members.agreed.is_client_side and changes.client is not None
        is_eager = self._is_eager(members, changes)
        is_new = changes.is_adopted or (not is_led and differs(self.snapshot.state, changes.assignment, members))
        is_new = is_new or has_lost_owners(self.snapshot, members, is_eager)
        revocation = Revocation.ALL if is_eager else Revocation.MOVED
        revocation = Revocation.BARRIER if changes.assignment.needs_barrier else revocation
        is_by_leader = members.agreed.is_client_side and bool(members.everybody)
        strategy = changes.strategy if is_by_leader else members.agreed.strategy
        return Decision(changes.assignment, is_new, revocation, strategy, changes)

    def hold(self, decision: Decision, members: Membership) -> Decision:
        changes = postponed(group_of(self.snapshot, members, self.trigger, self.timeout_s), decision.asking)
        return replace(decision, assignment=changes.assignment, is_new=False, strategy=changes.strategy, asking=changes)

    def _is_eager(self, members: Membership, changes: Asking) -> bool:
        if changes.client is not None and changes.client.ask:
            return not changes.client.is_cooperative
        assignor = self.assignors.get(changes.strategy or members.agreed.strategy)
        # Before its first answer a led group stays as its strategy left it, installed here or not.
        return assignor.is_eager if assignor is not None else changes.client is None


# ---- the generation


def differs(state: GroupState, assignment: TargetAssignment, members: Membership) -> bool:
    """Whether a target needs a new generation (sources D24); no generation has two strategies."""
    is_other = assignment.topics != state.topics or (bool(state.strategy) and members.agreed.strategy != state.strategy)
    is_moved = _by_seat(assignment.target, members) != _by_seat(state.target, members)
    return (bool(assignment.target) and is_other) or is_moved


def _by_seat(target: Mapping[str, Target], members: Membership) -> dict[str, Target]:
    """A target by seats: each incarnation of a static member has the same partitions."""
    everybody = members.everybody
    static = {name for name, registration in everybody.items() if registration.instance_id}
    return {name: replace(one, incarnation="") if name in static else one for name, one in target.items()}


def has_lost_owners(snapshot: Snapshot, members: Membership, is_eager: bool) -> bool:
    """Whether a member runs partitions of the current generation without owner znodes (manually removed)."""
    facts, partitions, state = snapshot.members, snapshot.partitions, snapshot.state
    return any(_lost_owners(facts, partitions, state, name, is_eager) for name in members.live)


def _lost_owners(
    members: MemberFacts, partitions: PartitionFacts, state: GroupState, name: str, is_eager: bool
) -> PartitionSet:
    view, target = members.channels[name], state.target.get(name)
    assigned = target.partitions if target is not None else NONE
    settled = has_settled(view, assigned, state.generation, is_eager)
    is_due = not view.commands and view.compliance.loss_pause_s <= 0
    return view.running - partitions.owners if settled and is_due else NONE

"""A group of a consistent region in one turn: resets, and generations that wait for a checkpoint. Pure.

Sources R12: a member with new partitions, and a new process, begins from the last complete cut, and so do all other
members of the region. A model of it (`tests/model/region.py`) tests each rule by its absence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..zk.errors import RebalanceFailed
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.json_fields import MAX_CONTINUED, MAX_COUNT
from ..zk.znodes.regions import FAILED, RESETTING, RUNNING, GroupRegion, Region, RegionMembership
from .membership import Membership
from .policy import AssignmentPolicy, Decision
from .reconciliation import MemberProtocol, Reconciliation, Round
from .snapshot import RegionView, SentCommand, Snapshot
from .stateful import StatefulProtocol, drain_of, progress_of
from .target import TargetAssignment

SET_LOWER = "set a lower number in its znode by hand"
"""The remedy for an exhausted number of a region."""
MAX_GROUPS = 300
"""Maximum groups of one region: its znode is in multis with others, and each reset concerns all groups."""
LONGEST_HOLD_S = 120.0
"""Maximum seconds for which a generation waits for a checkpoint."""


@dataclass(frozen=True, slots=True)
class RegionStep:
    """A group's actions on its region in one turn.

    :ivar name: of the region.
    :ivar before: as read, None without one.  :ivar after: as written with the turn.
    :ivar aborted: the checkpoint that it aborts; 0 for none.
    :ivar open_s: seconds since its begin, by the wall clocks of the coordinators; known when it is written.
    :ivar held_for: the checkpoint that a new generation waits for; 0 for none.
    :ivar is_touched: whether the region's version is bumped without a change: no checkpoint begins meanwhile.
    """

    name: str
    before: Region | None
    after: Region
    aborted: int = 0
    open_s: float = 0.0
    held_for: int = 0
    is_touched: bool = False

    @property
    def is_reset(self) -> bool:
        return self.before is None or self.after.reset != self.before.reset


@dataclass(frozen=True, slots=True)
class Guarded:
    """A decision that the group's region lets through, with its members.

    :ivar step: the change of the region.
    """

    decision: Decision
    members: Membership
    step: RegionStep | None = None


class RegionGuard:
    """Guards a turn by the group's consistent region; this one lets every decision proceed."""

    def guard(self, decision: Decision, members: Membership, policy: AssignmentPolicy) -> Guarded:
        """Let a decision proceed, hold its generation back, or reset the region.

        :raises RebalanceFailed: when the region cannot be read, or has no room.
        """
        return Guarded(decision, members)

    def protocol(self, step: RegionStep | None) -> MemberProtocol | None:
        """The members' protocol, None for that of a group without a region."""
        return None

    def overlay(self, now: Round, found: Reconciliation, step: RegionStep | None) -> Reconciliation:
        """The steps with those of the region's checkpoint."""
        return found

    def binding(self, now: Round, step: RegionStep | None) -> GroupRegion | None:
        """The group's region, as `state` has it: a group stays bound to one, also without members."""
        return None


@dataclass(frozen=True, slots=True)
class NoRegion(RegionGuard):
    """A group without a region, or whose region is not read: it stays bound to it."""

    bound: GroupRegion | None

    def binding(self, now: Round, step: RegionStep | None) -> GroupRegion | None:
        return self.bound


@dataclass(frozen=True, slots=True)
class BoundRegion(RegionGuard):
    """The region of a group that is, or will be, bound to one.

    :ivar member_of: the region that the members register for.
    """

    snapshot: Snapshot
    view: RegionView
    member_of: RegionMembership

    def bound(self, first_state: str) -> RegionStep:
        """The region with the group bound to it.

        :param first_state: of a region that does not exist yet.
        :raises RebalanceFailed: when the region cannot be read, or has no room.
        """
        snapshot, view = self.snapshot, self.view
        if view.is_unreadable:
            raise RebalanceFailed(f"consistent region {view.name} cannot be read: see its znode")
        if view.refusal:
            raise RebalanceFailed(view.refusal)
        # The region's znode may have been lost: a new one must not reuse the reset of any member.
        resets = [progress_of(each).reset for each in snapshot.members.channels.values()]
        reset, now_ms = 1 + min(max(resets, default=0), MAX_CONTINUED), snapshot.coordinator.now_ms
        known = view.record or Region(self.member_of.kind, first_state, reset=reset, since_ms=now_ms)
        bound = known.including(snapshot.group, is_new=snapshot.state.region is None)
        if len(bound.groups) > MAX_GROUPS:
            raise RebalanceFailed(f"consistent region {view.name} has {MAX_GROUPS} groups, as many as it may have")
        return RegionStep(view.name, view.record, bound)


class SealingRegion(BoundRegion):
    """A region of slots: sealed segments stay, so that a new generation voids the open checkpoint only."""

    def guard(self, decision: Decision, members: Membership, policy: AssignmentPolicy) -> Guarded:
        step = self.bound(RUNNING)
        if decision.is_new or _has_bounced(self.snapshot.state, decision.assignment):
            step = replace(step, after=replace(step.after, open=0), aborted=step.after.open, is_touched=True)
        return Guarded(decision, members, step)

    def overlay(self, now: Round, found: Reconciliation, step: RegionStep | None) -> Reconciliation:
        """Add the drains of the open checkpoint.

        A new generation or incarnation ends the checkpoint before its first command is sent: a contributor seals
        nothing between that and the end of the checkpoint, and no other member has its partitions.
        """
        if step is None:
            return found
        desired = {name: command for name in found.steps if (command := drain_of(now, name, step.after)) is not None}
        draining: dict[str, SentCommand] = {}
        withdrawn = []
        for name, sent in found.withdrawn:
            if sent.command is not None and sent.command == desired.get(name) and name not in draining:
                draining[name] = sent
            else:
                withdrawn.append((name, sent))
        drains = tuple((name, command) for name, command in desired.items() if name not in draining)
        return replace(found, withdrawn=tuple(withdrawn), drains=drains, draining=draining)

    def binding(self, now: Round, step: RegionStep | None) -> GroupRegion | None:
        return GroupRegion(self.view.name, 0, _away(now))


class StatefulRegion(BoundRegion):
    """A region of consumers: a new generation is a reset to the last complete cut, after a checkpoint if one can be."""

    def guard(self, decision: Decision, members: Membership, policy: AssignmentPolicy) -> Guarded:
        snapshot, view, step = self.snapshot, self.view, self.bound(RESETTING)
        if decision.is_new and _may_wait(snapshot, members, step.after) and (held_for := _waits_for(view, step.after)):
            step = replace(step, held_for=held_for)
            decision = policy.hold(decision, members)
        elif decision.is_new or _has_bounced(snapshot.state, decision.assignment):
            after = after_reset(step.after, step.after.sequence, snapshot.coordinator.now_ms)
            step = replace(step, after=after, aborted=step.after.open)
        if not decision.is_new:
            # No checkpoint can start while the target lists a member that is neither live nor away.
            members = members.keeping_seats(snapshot.state.target)
        return Guarded(decision, members, step)

    def protocol(self, step: RegionStep | None) -> StatefulProtocol | None:
        if step is None:
            return None
        return StatefulProtocol(step.after, self.view.cut, step.after.cut_of(self.snapshot.group))

    def overlay(self, now: Round, found: Reconciliation, step: RegionStep | None) -> Reconciliation:
        if step is None or not step.held_for or now.assignment.target:
            return found
        return replace(found, blocked_by=f"waits for checkpoint {step.held_for} of consistent region {step.name}")

    def binding(self, now: Round, step: RegionStep | None) -> GroupRegion | None:
        protocol = self.protocol(step)
        is_ready = step is not None and protocol is not None and protocol.has_settled(now) and not step.is_reset
        return GroupRegion(self.view.name, step.after.reset if is_ready and step is not None else 0, _away(now))


def _away(now: Round) -> tuple[str, ...]:
    return tuple(sorted(now.assignment.target.keys() & now.membership.away.keys()))


def after_reset(region: Region, sequence: int, now_ms: int) -> Region:
    """The region after the begin of a reset to a cut. A failed one stays failed until an operator resets it.

    :raises RebalanceFailed: when its number of resets leaves no room for another.
    """
    if region.reset >= MAX_COUNT:
        raise RebalanceFailed(f"reset {region.reset} is the last that a region may have: {SET_LOWER}")
    state = FAILED if region.state == FAILED else RESETTING
    reason = region.reason if region.state == FAILED else None
    return replace(
        region, state=state, sequence=sequence, open=0, reset=region.reset + 1, reason=reason, since_ms=now_ms
    )


def _has_bounced(state: GroupState, assignment: TargetAssignment) -> bool:
    """Whether a static member was restarted: its incarnation belongs to no generation. It may have left again.

    A member outside the target, such as a later incarnation of a dynamic member under client-side assignment, belongs
    to the next generation.
    """
    before = state.target
    return any(
        name in before and before[name].incarnation != target.incarnation for name, target in assignment.target.items()
    )


def _may_wait(snapshot: Snapshot, membership: Membership, region: Region) -> bool:
    """Whether every member of the target is present with its state: then a checkpoint saves its progress.

    An absent static member has nothing to save, nor has one whose seat is given up: it has left before. A new group
    has nothing either, and would cost the other groups of its region their progress.
    """
    state = snapshot.state
    may_begin = region.state == RUNNING and region.reason is None
    if not state.target:
        return may_begin and any(group != snapshot.group for group in region.groups)
    lives = {name: registration.incarnation for name, registration in membership.live.items()}
    absent = membership.away.keys() | {view.instance for view in membership.given_up}
    present = [(name, target) for name, target in state.target.items() if name not in absent]
    is_whole = bool(present) and all(lives.get(name) == target.incarnation for name, target in present)
    ready = state.region.ready if state.region is not None else 0
    return is_whole and may_begin and ready == region.reset


def _waits_for(view: RegionView, region: Region) -> int:
    """The checkpoint to wait for: the open one, else the next; 0 once it has ended, or is overdue."""
    needed = view.held_for or region.open or region.next_sequence
    has_ended = region.sequence >= needed or (region.next_sequence > needed and region.open != needed)
    return 0 if has_ended or view.held_s >= LONGEST_HOLD_S else needed

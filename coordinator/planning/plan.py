"""One turn's decision, pure: from a group's snapshot to the writes.

Same snapshot, same plan, for any order of the input. Who is in the group, and by which strategy, is decided in
`membership.py`, what must stop and may start in `reconciliation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..assignors import Assignor
from ..zk.errors import RebalanceFailed
from ..zk.values import first_names
from ..zk.znodes.group_state import COMPLETING, EMPTY, FAILED, PREPARING, STABLE, GroupState, Rebalance, Target, bounded
from ..zk.znodes.json_fields import MAX_COUNT
from ..zk.znodes.partitions import NONE, PartitionSet
from ..zk.znodes.records import Command
from ..zk.znodes.regions import CONSUMERS, GroupRegion
from .asking import Asking, asking, unreadable, without_asks
from .membership import End, GroupRules, Membership, keep_seats, membership, unusable
from .rebalance_history import history_of, replaced_of
from .reconciliation import (
    STRAGGLER_AFTER_S,
    Moves,
    Round,
    exclusive_moves,
    has_settled,
    mark_replaced,
    moves,
    with_pauses,
    with_sent,
)
from .regional import RegionStep, region_step, regional_moves, sealing_moves
from .snapshot import AskView, SeatView, SentCommand, Snapshot
from .target import BEYOND, Wanted, wanted

WAITING_LOOK_S = 1.0
"""Polling interval for changes without a watch: an owner znode that is in the way."""

ASK_ZNODES_A_TURN = 2_000
"""Znodes of asks that one turn removes, so that other groups need not wait for it."""

HISTORY_KEPT = 20
NO_RULES = GroupRules()
NO_ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Plan:
    """A turn's writes, in this order: ends, withdrawals and state, an ask with its command, stops, starts.

    :ivar state: the group's next state.
    :ivar given_up: seats of static members to remove, beside those removed with an end.
    :ivar drains: commands to contribute to a checkpoint; `draining` are the members that have one afterwards.
    :ivar region: the change of the group's consistent region.
    :ivar rebalance: the history record to write, None to leave it.
    :ivar replaced: the record of the unfinished rebalance that this one replaces.
    :ivar again_s: seconds until the next turn, None when only a change triggers one.
    :ivar forgotten: generations with history to remove.
    :ivar outstanding: consumers with an unacknowledged command afterwards.
    :ivar asking: actions on asks of leaders.
    :ivar deferred: members whose next command waits for its pace.
    """

    state: GroupState
    is_new_generation: bool = False
    ends: tuple[End, ...] = ()
    given_up: tuple[SeatView, ...] = ()
    withdrawn: tuple[tuple[str, SentCommand], ...] = ()
    stops: tuple[tuple[str, Command], ...] = ()
    starts: tuple[tuple[str, Command], ...] = ()
    drains: tuple[tuple[str, Command], ...] = ()
    draining: frozenset[str] = frozenset()
    region: RegionStep | None = None
    rebalance: Rebalance | None = None
    replaced: Rebalance | None = None
    forgotten: tuple[int, ...] = ()
    again_s: float | None = None
    outstanding: frozenset[str] = frozenset()
    asking: Asking = NO_ASKING
    deferred: frozenset[str] = frozenset()

    def changes(self, before: GroupState) -> bool:
        """Whether there is anything to write."""
        written = (self.ends, self.given_up, self.withdrawn, self.commands, self.rebalance, self.removed_asks)
        is_moved = self.region is not None and self.region.after != self.region.before
        is_answered = self.asking.answered is not None
        state = replace(self.state, epoch=before.epoch)
        return any(written) or is_answered or is_moved or state != before

    @property
    def commands(self) -> tuple[tuple[str, Command], ...]:
        """Every command to send, with its consumer."""
        asks = (self.asking.assign,) if self.asking.assign is not None else ()
        return (*asks, *self.stops, *self.starts, *self.drains, *self.asking.notices)

    @property
    def removed_asks(self) -> tuple[AskView, ...]:
        """Unneeded asks; those that a start may name are removed once every member has its command."""
        is_settled = self.state.state in (STABLE, EMPTY)
        return self.asking.unneeded + (self.asking.superseded if is_settled else ())


def plan(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], trigger: str = "", rules: GroupRules = NO_RULES
) -> Plan:
    """Decide one turn of a group (seed 000, `rebalance` 1 to 4).

    :param assignors: strategy -> assignor, as installed on this node.
    :param trigger: the turn's trigger, for the history.
    :raises RebalanceFailed: when members share no strategy, or the assignor breaks its contract.
    """
    members = membership(snapshot, assignors, rules)
    asks = _asking(snapshot, assignors, members, trigger, rules)
    assignment = asks.assignment
    is_eager = _is_eager(assignors, members, asks)
    is_new = asks.is_adopted or _needs_new_generation(snapshot, assignment, members, is_eager, asks)
    step = region_step(snapshot, members, assignment, is_new)
    is_held = step is not None and bool(step.held_for)
    if is_held:
        asks, is_new = _held(snapshot, members, asks, trigger, rules), False
        assignment = asks.assignment
    if step is not None and step.after.kind == CONSUMERS and not is_new:
        keep_seats(snapshot, members)  # no checkpoint could begin, of a target with a member that is not away
    generation = snapshot.state.generation + is_new
    if generation > MAX_COUNT:
        raise RebalanceFailed(f"generation {snapshot.state.generation} is the last that a group may have")
    mark_replaced(snapshot, members)
    now, is_ready = Round(snapshot, members, assignment, generation, is_eager), False
    if step is not None and step.after.kind == CONSUMERS:
        reconciliation, is_ready = regional_moves(now, step.after)
    elif assignment.is_exclusive:
        reconciliation = exclusive_moves(now)
    else:
        reconciliation = moves(now)
        reconciliation = sealing_moves(now, reconciliation, step.after) if step is not None else reconciliation
    reconciliation = with_pauses(now, reconciliation)
    if step is not None and step.held_for and not assignment.target:
        waits = f"waits for checkpoint {step.held_for} of consistent region {step.name}"
        reconciliation = replace(reconciliation, blocked_by=waits)
    state = GroupState(
        state=_state_name(members, reconciliation, asks),
        generation=generation,
        epoch=snapshot.coordinator.epoch,
        strategy=asks.strategy if is_held or (members.is_client_side and members.everybody) else members.strategy,
        target=with_sent(snapshot, assignment.target, reconciliation.starts)
        if assignment.is_exclusive
        else assignment.target,
        topics=assignment.topics,
        marks=tuple(members.marks),
        reason=_reason(members, reconciliation, asks),
        left_out=bounded({**unusable(snapshot, members), **assignment.left_out}, BEYOND),
        client=asks.client,
        region=_group_region(snapshot, step, is_ready, tuple(sorted(assignment.target.keys() & members.away.keys()))),
    )
    gone = _gone(snapshot, members)
    record = history_of(
        snapshot, state, is_new, reconciliation.are_stopping, asks.reason or trigger, gone, members.ends
    )
    return Plan(
        state=state,
        is_new_generation=is_new,
        ends=tuple(members.ends),
        given_up=tuple(members.given_up),
        withdrawn=reconciliation.withdrawn,
        stops=reconciliation.stops,
        starts=reconciliation.starts,
        drains=reconciliation.drains,
        draining=frozenset(reconciliation.draining).union(consumer for consumer, _ in reconciliation.drains),
        region=step,
        rebalance=record,
        replaced=replaced_of(snapshot, generation) if is_new else None,
        forgotten=tuple(n for n in snapshot.history.generations if n != generation)[: -(HISTORY_KEPT - 1)]
        if is_new
        else (),
        again_s=_again_s(snapshot, members, reconciliation, asks, is_held),
        outstanding=frozenset(reconciliation.kept).union(
            (consumer for consumer, _ in (*reconciliation.stops, *reconciliation.starts, *reconciliation.drains)),
            reconciliation.draining,
            (consumer for consumer, _ in assignment.kept),
            (asks.assign[0],) if asks.assign is not None else (),
        ),
        asking=asks,
        deferred=reconciliation.deferred,
    )


def _gone(snapshot: Snapshot, members: Membership) -> list[str]:
    """Members of the target before this turn whose incarnation there is over."""
    return [
        name
        for name, target in snapshot.state.target.items()
        if name not in members.away
        and (name not in members.live or members.live[name].incarnation != target.incarnation)
    ]


def _asking(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], members: Membership, trigger: str, rules: GroupRules
) -> Asking:
    """The target, decided by a leader, which is asked for it, or by this node."""
    if members.is_client_side or unreadable(snapshot, members):
        return asking(snapshot, members, trigger, rules.assignment_timeout_s)
    assignor = assignors.get(members.strategy)
    if assignor is None or not members.everybody:
        return without_asks(snapshot, Wanted())
    return without_asks(snapshot, wanted(snapshot, members.everybody, assignor, members.marks))


def _held(snapshot: Snapshot, members: Membership, asks: Asking, trigger: str, rules: GroupRules) -> Asking:
    """Keep everything until the region has a checkpoint: then a new generation loses no progress."""
    if asks.client is not None:
        return asking(snapshot, members, trigger, rules.assignment_timeout_s, is_held=True)
    state = snapshot.state
    return replace(asks, assignment=Wanted(state.target, state.topics, state.left_out), strategy=state.strategy)


def _group_region(
    snapshot: Snapshot, step: RegionStep | None, is_ready: bool, away: tuple[str, ...]
) -> GroupRegion | None:
    """A group stays bound to its region, also without members."""
    if step is None:
        return snapshot.state.region
    return GroupRegion(step.name, step.after.reset if is_ready and not step.is_reset else 0, away)


def _is_eager(assignors: Mapping[str, Assignor], members: Membership, asks: Asking) -> bool:
    if asks.client is not None and asks.client.ask:
        return not asks.client.is_cooperative
    assignor = assignors.get(asks.strategy or members.strategy)
    # Before its first answer a led group stays as its strategy left it, installed here or not.
    return assignor.is_eager if assignor is not None else asks.client is None


# ---- the generation


def _needs_new_generation(
    snapshot: Snapshot, assignment: Wanted, members: Membership, is_eager: bool, asks: Asking
) -> bool:
    """Seed 000, `rebalance` 3.1 to 3.5; and a changed strategy, so that no generation has two.

    Under client-side assignment only an adopted answer changes the target, and the end of the last member.
    """
    state = snapshot.state
    if members.is_client_side and asks.client is not None:
        return any(_lost_owners(snapshot, name, is_eager) for name in members.live)
    if assignment.target and (
        assignment.topics != state.topics or (state.strategy and members.strategy != state.strategy)
    ):
        return True
    if _by_seat(assignment.target, members) != _by_seat(state.target, members):
        return True
    return any(_lost_owners(snapshot, name, is_eager) for name in members.live)


def _by_seat(target: Mapping[str, Target], members: Membership) -> dict[str, Target]:
    """A target by seats: a static member is the same in every incarnation, and comes back to its part."""
    everybody = members.everybody
    static = {name for name, registration in everybody.items() if registration.instance_id}
    return {name: replace(one, incarnation="") if name in static else one for name, one in target.items()}


def _lost_owners(snapshot: Snapshot, name: str, is_eager: bool) -> PartitionSet:
    """Partitions that a member runs in the current generation without an owner znode (manually removed)."""
    view, target = snapshot.members.channels[name], snapshot.state.target.get(name)
    assigned = target.partitions if target is not None else NONE
    settled = has_settled(view, assigned, snapshot.state.generation, is_eager)
    is_due = not view.commands and view.loss_pause_s <= 0
    return view.running - snapshot.partitions.owners if settled and is_due else NONE


# ---- the state, and the next turn


def _state_name(members: Membership, reconciliation: Moves, asks: Asking) -> str:
    if members.forming:
        return PREPARING
    if not members.everybody:
        return EMPTY
    if asks.has_failed:
        return FAILED
    if reconciliation.are_stopping:
        return PREPARING
    return COMPLETING if reconciliation.are_starting or asks.waits else STABLE


def _reason(members: Membership, reconciliation: Moves, asks: Asking) -> str | None:
    """The member or event that the group waits for, after a delay."""
    if members.forming:
        return "waits for more members before its first generation (group_initial_rebalance_delay_ms)"
    if asks.waits or reconciliation.blocked_by:
        return asks.waits or reconciliation.blocked_by
    late = sorted(name for name, sent in reconciliation.kept.items() if sent.age_s >= STRAGGLER_AFTER_S)
    if late:
        option = reconciliation.kept[late[0]].option or "command"
        others = f" (nor have {len(late) - 1} others theirs)" if len(late) > 1 else ""
        return f"{late[0]} has not acknowledged its {option}{others}"
    if not reconciliation.waiting:
        return None
    name, partitions = min(reconciliation.waiting.items())
    return f"{name} waits for {first_names([*map(str, sorted(partitions))])} to become free"


def _again_s(
    snapshot: Snapshot, members: Membership, reconciliation: Moves, asks: Asking, is_held: bool
) -> float | None:
    timers = [*members.timers, *reconciliation.timers, *asks.timers]
    if is_held:
        timers.append(WAITING_LOOK_S)
    if reconciliation.withdrawn or members.ends or members.given_up:
        timers.append(0.0)
    timers += [pause_s for name in members.live if (pause_s := snapshot.members.channels[name].loss_pause_s) > 0]
    if reconciliation.waiting or reconciliation.blocked_by:
        timers.append(WAITING_LOOK_S)
    if sum(len(view.children) + 1 for view in asks.unneeded) > ASK_ZNODES_A_TURN:
        timers.append(0.0)
    return min(timers, default=None)

"""What a turn shows: the group's state and its reason, its history, and when the next turn is due. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from ..zk.values import first_names
from ..zk.znodes.group_state import COMPLETING, EMPTY, FAILED, PREPARING, STABLE, GroupState, Rebalance, Target, bounded
from ..zk.znodes.regions import GroupRegion
from .asking import Asking
from .membership import Membership, unusable
from .partitions import STRAGGLER_AFTER_S
from .rebalance_history import history_of, replaced_of
from .reconciliation import Moves
from .regional import Guarded
from .snapshot import Snapshot
from .target import BEYOND

WAITING_LOOK_S = 1.0
"""Polling interval for changes without a watch: an owner znode that is in the way."""

ASK_ZNODES_A_TURN = 2_000
"""Znodes of assignment requests that one turn removes, so that other groups need not wait for it."""

HISTORY_KEPT = 20


def state_of(
    snapshot: Snapshot, guarded: Guarded, moves: Moves, target: Mapping[str, Target], region: GroupRegion | None
) -> GroupState:
    """The group's next state.

    :param target: as `state` has it.  :param region: the group's binding.
    """
    decision, members = guarded.decision, guarded.members
    assignment, asks = decision.assignment, decision.asking
    return GroupState(
        state=_state_name(members, moves, asks),
        generation=snapshot.state.generation + decision.is_new,
        epoch=snapshot.coordinator.epoch,
        strategy=decision.strategy,
        target=target,
        topics=assignment.topics,
        marks=members.marks,
        reason=_reason(members, moves, asks),
        left_out=bounded({**unusable(snapshot, members), **assignment.left_out}, BEYOND),
        client=asks.client,
        region=region,
    )


def history_of_turn(
    snapshot: Snapshot, guarded: Guarded, moves: Moves, state: GroupState, trigger: str
) -> tuple[Rebalance | None, Rebalance | None, tuple[int, ...]]:
    """The record of the generation, that of the unfinished one which it replaces, and generations to forget."""
    members, is_new = guarded.members, guarded.decision.is_new
    reason, gone = guarded.decision.asking.reason or trigger, _gone(snapshot, members)
    record = history_of(snapshot, state, is_new, moves.are_stopping, reason, gone, members.ends)
    if not is_new:
        return record, None, ()
    others = tuple(number for number in snapshot.history.generations if number != state.generation)
    return record, replaced_of(snapshot, state.generation), others[: -(HISTORY_KEPT - 1)]


def _gone(snapshot: Snapshot, members: Membership) -> list[str]:
    """Members of the target before this turn whose incarnation there is over."""
    return [
        name
        for name, target in snapshot.state.target.items()
        if name not in members.away
        and (name not in members.live or members.live[name].incarnation != target.incarnation)
    ]


def _state_name(members: Membership, moves: Moves, asks: Asking) -> str:
    if members.forming:
        return PREPARING
    if not members.everybody:
        return EMPTY
    if asks.has_failed:
        return FAILED
    if moves.are_stopping:
        return PREPARING
    return COMPLETING if moves.are_starting or asks.waits else STABLE


def _reason(members: Membership, moves: Moves, asks: Asking) -> str | None:
    """The member or event that the group waits for, after a delay."""
    if members.forming:
        return "waits for more members before its first generation (group_initial_rebalance_delay_ms)"
    if asks.waits or moves.blocked_by:
        return asks.waits or moves.blocked_by
    late = sorted(name for name, sent in moves.kept.items() if sent.age_s >= STRAGGLER_AFTER_S)
    if late:
        option = moves.kept[late[0]].option or "command"
        others = f" (nor have {len(late) - 1} others theirs)" if len(late) > 1 else ""
        return f"{late[0]} has not acknowledged its {option}{others}"
    if not moves.waiting:
        return None
    name, partitions = min(moves.waiting.items())
    return f"{name} waits for {first_names([*map(str, sorted(partitions))])} to become free"


def again_s(snapshot: Snapshot, guarded: Guarded, moves: Moves) -> float | None:
    """Seconds until the next turn, None when only a change triggers one."""
    members, asks, step = guarded.members, guarded.decision.asking, guarded.step
    timers = [*members.timers, *moves.timers, *asks.timers]
    if step is not None and step.held_for:
        timers.append(WAITING_LOOK_S)
    if moves.withdrawn or members.ends or members.given_up:
        timers.append(0.0)
    channels = snapshot.members.channels
    timers += [pause_s for name in members.live if (pause_s := channels[name].loss_pause_s) > 0]
    if moves.waiting or moves.blocked_by:
        timers.append(WAITING_LOOK_S)
    if sum(len(view.children) + 1 for view in asks.unneeded) > ASK_ZNODES_A_TURN:
        timers.append(0.0)
    return min(timers, default=None)

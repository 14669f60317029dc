"""Reports a turn: the group's state with its reason, its history, and the delay of the next turn. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..zk.values import first_names
from ..zk.znodes.group_state import (
    COMPLETING,
    EMPTY,
    FAILED,
    PREPARING,
    STABLE,
    Ask,
    Evicted,
    GroupState,
    Rebalance,
    Target,
    bounded,
)
from ..zk.znodes.json_fields import shortened
from ..zk.znodes.regions import GroupRegion
from .asking import Asking
from .membership import Membership, Termination, unusable
from .partitions import STRAGGLER_AFTER_S
from .rebalance_history import changes_of
from .reconciliation import Reconciliation
from .regional import Guarded
from .snapshot import HistoryFacts, Snapshot
from .target import BEYOND

WAITING_LOOK_S = 1.0
"""Polling interval for changes without a watch: the removal of an owner znode."""

ASK_ZNODES_A_TURN = 2_000
"""Znodes of assignment requests that one turn removes, so that other groups need not wait for it."""

HISTORY_KEPT = 20
LONGEST_TRIGGER = 1000
"""Bytes of a trigger: many members may have left, or joined, in one turn."""
LONGEST_WHY = 300
MOST_EVICTED = 20


def state_of(
    snapshot: Snapshot,
    guarded: Guarded,
    steps: Reconciliation,
    target: Mapping[str, Target],
    region: GroupRegion | None,
) -> GroupState:
    """The group's next state.

    :param target: as `state` has it.  :param region: the group's binding.
    """
    decision, members = guarded.decision, guarded.members
    assignment, asks = decision.assignment, decision.asking
    return GroupState(
        state=_state_name(members, steps, asks),
        generation=snapshot.state.generation + decision.is_new,
        epoch=snapshot.coordinator.epoch,
        strategy=decision.strategy,
        target=target,
        topics=assignment.topics,
        marks=members.holds,
        reason=_reason(members, steps, asks),
        left_out=bounded({**unusable(snapshot.members, members), **assignment.left_out}, BEYOND),
        client=asks.client,
        region=region,
    )


def _state_name(members: Membership, steps: Reconciliation, asks: Asking) -> str:
    if members.forming:
        return PREPARING
    if not members.everybody:
        return EMPTY
    if asks.has_failed:
        return FAILED
    if steps.are_stopping:
        return PREPARING
    return COMPLETING if steps.are_starting or asks.waits else STABLE


def _reason(members: Membership, steps: Reconciliation, asks: Asking) -> str | None:
    """The member or event that the group waits for, after a delay."""
    if members.forming:
        return "waits for more members before its first generation (group_initial_rebalance_delay_ms)"
    if asks.waits or steps.blocked_by:
        return asks.waits or steps.blocked_by
    late = sorted(name for name, sent in steps.retained.items() if sent.age_s >= STRAGGLER_AFTER_S)
    if late:
        option = steps.retained[late[0]].option or "command"
        others = f" (nor have {len(late) - 1} others theirs)" if len(late) > 1 else ""
        return f"{late[0]} has not acknowledged its {option}{others}"
    if not steps.waiting:
        return None
    name, partitions = min(steps.waiting.items())
    return f"{name} waits for {first_names([*map(str, sorted(partitions))])} to become free"


def again_s(snapshot: Snapshot, guarded: Guarded, steps: Reconciliation) -> float | None:
    """Seconds until the next turn, None when only a change triggers one."""
    members, asks, step = guarded.members, guarded.decision.asking, guarded.step
    timers = [*members.timers, *steps.timers, *asks.timers]
    if step is not None and step.held_for:
        timers.append(WAITING_LOOK_S)
    if steps.withdrawn or members.terminations or members.given_up:
        timers.append(0.0)
    channels = snapshot.members.channels
    timers += [pause_s for name in members.live if (pause_s := channels[name].compliance.loss_pause_s) > 0]
    if steps.waiting or steps.blocked_by:
        timers.append(WAITING_LOOK_S)
    if sum(len(view.children) + 1 for view in asks.obsolete) > ASK_ZNODES_A_TURN:
        timers.append(0.0)
    return min(timers, default=None)


# ---- the record in the history, one a generation


def history_of_turn(
    snapshot: Snapshot, guarded: Guarded, steps: Reconciliation, state: GroupState, trigger: str
) -> tuple[Rebalance | None, Rebalance | None, tuple[int, ...]]:
    """The record of the generation, that of the unfinished one which it replaces, and generations to forget."""
    members, is_new = guarded.members, guarded.decision.is_new
    reason, gone = guarded.decision.asking.reason or trigger, _gone(snapshot, members)
    record = history_of(snapshot, state, is_new, steps.are_stopping, reason, gone, members.terminations)
    if not is_new:
        return record, None, ()
    others = tuple(number for number in snapshot.history.generations if number != state.generation)
    return record, replaced_of(snapshot, state.generation), others[: -(HISTORY_KEPT - 1)]


def _gone(snapshot: Snapshot, members: Membership) -> list[str]:
    """Members of the previous target whose incarnation there is over."""
    lives = {name: registration.incarnation for name, registration in members.live.items()}
    others = [(name, one) for name, one in snapshot.state.target.items() if name not in members.away]
    return [name for name, one in others if lives.get(name) != one.incarnation]


def history_of(
    snapshot: Snapshot,
    state: GroupState,
    is_new: bool,
    stopping: bool,
    trigger: str,
    gone: Iterable[str] = (),
    terminations: Sequence[Termination] = (),
) -> Rebalance | None:
    """The record of the generation of `state`: new, or with the times known now; None to leave it.

    :param gone: members of the previous target whose incarnation there is over.
    :param terminations: of this turn.
    """
    before, record, now_ms = snapshot.state, snapshot.history.last, snapshot.coordinator.now_ms
    finished_ms = now_ms if state.state in (STABLE, EMPTY) else None
    standing_since_ms, silent_since_ms = _standing_since(snapshot.history, now_ms, gone, stopping)
    if is_new:
        ask = adopted_ask(snapshot, state)
        joined, left = sorted(_lives(state) - _lives(before)), sorted(_lives(before) - _lives(state))
        return Rebalance(
            generation=state.generation,
            epoch=snapshot.coordinator.epoch,
            trigger=shortened(trigger or changes_of(joined, left) or "topics or owners changed", LONGEST_TRIGGER),
            started_ms=now_ms,
            joined=tuple(joined),
            left=tuple(left),
            moved=_moved(before, state),
            stopped_ms=None if stopping else now_ms,
            finished_ms=finished_ms,
            standing_since_ms=standing_since_ms,
            silent_since_ms=silent_since_ms,
            assignment_ms=max(0, now_ms - ask.since_ms) if ask is not None else None,
            attempts=ask.attempt if ask is not None else None,
            evicted=_evicted(state, left, terminations),
        )
    if record is None or record.generation != state.generation:
        return None
    if record.finished_ms is not None:
        return _with_return(snapshot.history, now_ms, state, record)
    stopped_ms = record.stopped_ms or (None if stopping else now_ms)
    updated = replace(record, stopped_ms=stopped_ms, finished_ms=finished_ms, standing_since_ms=standing_since_ms)
    if updated == record:
        return None  # another member's last activity is written with the next of these
    since_ms = min((ms for ms in (standing_since_ms, silent_since_ms) if ms is not None), default=None)
    downtime_ms = max(0, now_ms - since_ms) if since_ms is not None and state.state == STABLE else None
    return replace(updated, silent_since_ms=silent_since_ms, standstill_ms=downtime_ms)


def _standing_since(
    history: HistoryFacts, now_ms: int, gone: Iterable[str], are_stopping: bool
) -> tuple[int | None, int | None]:
    """`standing_since_ms` and `silent_since_ms` of the rebalance that a turn begins or continues.

    A rebalance that replaces an unfinished one continues its downtime: the partitions still wait.
    """
    record, silences = history.last, history.silences
    is_open = record is not None and record.finished_ms is None
    standing_ms, silent_ms = (record.standing_since_ms, record.silent_since_ms) if record and is_open else (None, None)
    last_ms = [silences[name] for name in gone if name in silences] + [*history.returned.values()]
    since = [max(0, now_ms - silence) for silence in last_ms] + ([silent_ms] if silent_ms is not None else [])
    return standing_ms if standing_ms is not None or not are_stopping else now_ms, min(since, default=None)


def _with_return(history: HistoryFacts, now_ms: int, state: GroupState, record: Rebalance) -> Rebalance | None:
    """A static member that comes back begins no generation: a longer downtime becomes that of the last one."""
    longest_ms = max(history.returned.values(), default=0)
    if state.state != STABLE or longest_ms <= (record.standstill_ms or 0):
        return None
    return replace(record, silent_since_ms=max(0, now_ms - longest_ms), standstill_ms=longest_ms)


def adopted_ask(snapshot: Snapshot, state: GroupState) -> Ask | None:
    """The ask whose answer becomes the target with `state`; None without one."""
    before = snapshot.state.client.ask if snapshot.state.client is not None else ""
    name = state.client.ask if state.client is not None else ""
    return next((view.ask for view in snapshot.requests.asks if name not in ("", before) and view.name == name), None)


def replaced_of(snapshot: Snapshot, generation: int) -> Rebalance | None:
    """The record of the unfinished rebalance that the new `generation` replaces."""
    record = snapshot.history.last
    if record is None or record.finished_ms is not None or record.generation >= generation:
        return None
    return replace(record, replaced_by=generation)


def _evicted(state: GroupState, left: Sequence[str], terminations: Sequence[Termination]) -> tuple[Evicted, ...]:
    """Why members that left were evicted: in this turn, or since the last generation, by their holds."""
    found: dict[str, tuple[str, int | None]] = {}
    for hold in state.marks:
        if hold.since_ms is not None:  # others may be of members that have left
            found[f"{hold.consumer}/{hold.incarnation[:8]}"] = hold.reason, hold.since_ms
    for end in terminations:
        if end.evicted and end.view.channel is not None:
            found[f"{end.view.consumer}/{end.view.channel.incarnation[:8]}"] = end.reason, end.since_ms
    known = [(member, *found[member]) for member in left if member in found]
    return tuple(Evicted(member, shortened(why, LONGEST_WHY), since) for member, why, since in known[:MOST_EVICTED])


def _lives(state: GroupState) -> set[str]:
    return {f"{name}/{target.incarnation[:8]}" for name, target in state.target.items()}


def _moved(before: GroupState, after: GroupState) -> int:
    """Partitions that move to another incarnation."""
    old = {part: (name, target.incarnation) for name, target in before.target.items() for part in target.partitions}
    new = {part: (name, target.incarnation) for name, target in after.target.items() for part in target.partitions}
    return sum(1 for part, holder in new.items() if part in old and old[part] != holder)

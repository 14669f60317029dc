"""One turn's decision, pure: from what was read of a group to what shall be written.

Same snapshot, same plan, whatever the order of the input. Who is in the group is decided in `membership.py`, by which
strategy in `strategy.py`, what must stop and may start in `moves.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .assignors import Assignor
from .history import history_of, replaced_of
from .membership import End, GroupRules, Membership, membership, unusable
from .moves import STRAGGLER_AFTER_S, Moves, has_settled, moves
from .planning.asking import asking, without_asks
from .planning.exclusive import exclusive_moves, mark_the_replaced, with_sent
from .planning.group import Asking
from .planning.kept import unreadable
from .planning.regional import RegionStep, region_step, regional_moves, sealing_moves
from .snapshot import AskView, SeatView, SentCommand, Snapshot
from .target import Wanted, wanted
from .zk.commands import Command
from .zk.partitions import NONE, PartitionSet
from .zk.records import Channel
from .zk.regions import CONSUMERS, GroupRegion
from .zk.state import COMPLETING, EMPTY, FAILED, PREPARING, STABLE, GroupState, Rebalance, Target

WAITING_LOOK_S = 1.0
"""How often to look again for what nothing tells of: an owner znode in the way that goes."""

ASK_ZNODES_A_TURN = 2_000
"""Znodes of asks that one turn removes: however many stand there, no other group waits for it."""

HISTORY_KEPT = 20
NO_RULES = GroupRules()
NO_ASKING = Asking(Wanted({}, {}, {}))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn writes, in this order: ends, withdrawals and state, an ask with its command, stops, starts.

    :ivar state: the group's state afterwards.
    :ivar given_up: seats of static members to remove, beside those that go with an end.
    :ivar drains: commands to contribute to a checkpoint; `draining` is who has one afterwards.
    :ivar region: what becomes of the group's consistent region.
    :ivar rebalance: the history record to write, None to leave it.
    :ivar replaced: the record of the rebalance that this one replaces before it was through.
    :ivar again_s: seconds until the next turn is due, None when only a change asks for one.
    :ivar forgotten: generations whose history is removed.
    :ivar outstanding: consumers that have a command to acknowledge afterwards.
    :ivar asking: what is done about asks of leaders.
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

    def changes(self, before: GroupState) -> bool:
        """Whether there is anything to write."""
        written = (self.ends, self.given_up, self.withdrawn, self.commands, self.rebalance, self.removed_asks)
        is_moved = self.region is not None and self.region.after != self.region.before
        is_answered = self.asking.answered is not None
        return any(written) or is_answered or is_moved or replace(self.state, epoch=before.epoch) != before

    @property
    def commands(self) -> tuple[tuple[str, Command], ...]:
        """Every command that is sent, with its consumer."""
        asked = (self.asking.assign,) if self.asking.assign is not None else ()
        return (*asked, *self.stops, *self.starts, *self.drains, *self.asking.notices)

    @property
    def removed_asks(self) -> tuple[AskView, ...]:
        """Asks that nobody needs; those that a start may name go when every member has been told."""
        is_settled = self.state.state in (STABLE, EMPTY)
        return self.asking.unneeded + (self.asking.superseded if is_settled else ())


def plan(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], trigger: str = "", rules: GroupRules = NO_RULES
) -> Plan:
    """Decide one turn of a group (seed 000, `rebalance` 1 to 4).

    :param assignors: strategy -> assignor, as this node has them.
    :param trigger: what asked for the turn, for the history.
    :raises RebalanceFailed: when members share no strategy, or the assignor does not keep its promise.
    """
    who = membership(snapshot, assignors, rules)
    asked = _asking(snapshot, assignors, who, trigger, rules)
    want = asked.want
    is_eager = _is_eager(assignors, who, asked)
    is_new = asked.is_adopted or _needs_new_generation(snapshot, want, who, is_eager, asked)
    step = region_step(snapshot, who, want, is_new)
    if step is not None and step.held_for:
        asked, is_new = _held(snapshot, who, asked, trigger, rules), False
        want = asked.want
    generation = snapshot.state.generation + is_new
    mark_the_replaced(snapshot, who, want)
    is_ready = False
    if step is not None and step.after.kind == CONSUMERS:
        due, is_ready = regional_moves(snapshot, who, want, generation, step.after)
    elif want.is_exclusive:
        due = exclusive_moves(snapshot, who, want, generation)
    else:
        due = moves(snapshot, who, want, generation, is_eager)
        due = sealing_moves(due, step.after) if step is not None else due
    if step is not None and step.held_for and not want.target:
        due.blocked_by = f"waits for checkpoint {step.held_for} of consistent region {step.name}"
    state = GroupState(
        state=_state_name(who, due, asked),
        generation=generation,
        epoch=snapshot.epoch,
        strategy=asked.strategy if who.is_client_side and who.everybody else who.strategy,
        target=with_sent(snapshot, want.target, due.starts) if want.is_exclusive else want.target,
        topics=want.topics,
        marks=tuple(who.marks),
        reason=_reason(who, due, asked),
        left_out=dict(sorted({**unusable(snapshot, who), **want.left_out}.items())),
        client=asked.client,
        region=_group_region(snapshot, step, is_ready, tuple(sorted(want.target.keys() & who.away.keys()))),
    )
    return Plan(
        state=state,
        is_new_generation=is_new,
        ends=tuple(who.ends),
        given_up=tuple(who.given_up),
        withdrawn=tuple(due.withdrawn),
        stops=tuple(due.stops),
        starts=tuple(due.starts),
        drains=tuple(due.drains),
        draining=frozenset(due.draining).union(consumer for consumer, _ in due.drains),
        region=step,
        rebalance=history_of(snapshot, state, is_new, due.are_stopping, asked.reason or trigger),
        replaced=replaced_of(snapshot, generation) if is_new else None,
        forgotten=tuple(n for n in snapshot.history if n != generation)[: -(HISTORY_KEPT - 1)] if is_new else (),
        again_s=_again_s(who, due, asked, is_held=step is not None and bool(step.held_for)),
        outstanding=frozenset(due.kept).union(
            (consumer for consumer, _ in (*due.stops, *due.starts, *due.drains)),
            due.draining,
            (consumer for consumer, _ in want.kept),
            (asked.assign[0],) if asked.assign is not None else (),
        ),
        asking=asked,
    )


def _asking(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], who: Membership, trigger: str, rules: GroupRules
) -> Asking:
    """The target, by whom it is decided: a leader, which is asked for it, or this node."""
    if who.is_client_side or unreadable(snapshot, who):
        return asking(snapshot, who, trigger, rules.assignment_timeout_s)
    assignor = assignors.get(who.strategy)
    if assignor is None or not who.everybody:
        return without_asks(snapshot, Wanted({}, {}, {}))
    return without_asks(snapshot, wanted(snapshot, who.everybody, assignor))


def _held(snapshot: Snapshot, who: Membership, asked: Asking, trigger: str, rules: GroupRules) -> Asking:
    """Everything as it is, until the region has a checkpoint: then another generation costs nobody its work."""
    if asked.client is not None:
        return asking(snapshot, who, trigger, rules.assignment_timeout_s, is_held=True)
    state = snapshot.state
    return replace(asked, want=Wanted(state.target, state.topics, state.left_out), strategy=state.strategy)


def _group_region(
    snapshot: Snapshot, step: RegionStep | None, is_ready: bool, away: tuple[str, ...]
) -> GroupRegion | None:
    """A group stays bound to its region, also when nobody is in it."""
    if step is None:
        return snapshot.state.region
    return GroupRegion(step.name, step.after.reset if is_ready and not step.is_reset else 0, away)


def _is_eager(assignors: Mapping[str, Assignor], who: Membership, asked: Asking) -> bool:
    if asked.client is not None and asked.client.ask:
        return not asked.client.is_cooperative
    assignor = assignors.get(asked.strategy or who.strategy)
    # Before its first answer a led group stays as its strategy left it, installed here or not.
    return assignor.is_eager if assignor is not None else asked.client is None


def ended(channel: Channel, reason: str, error: str) -> Channel:
    """The channel of an incarnation whose hold is over."""
    return replace(channel, running={}, topics={}, ended=reason, error=error, refused=NONE, ask="")


# ---- which generation


def _needs_new_generation(snapshot: Snapshot, want: Wanted, who: Membership, is_eager: bool, asked: Asking) -> bool:
    """Seed 000, `rebalance` 3.1 to 3.5; and another strategy, so that no generation has two.

    Under client-side assignment only an answer that is adopted brings another target, and the end of the last member.
    """
    state = snapshot.state
    if who.is_client_side and asked.client is not None:
        return any(_lost_owners(snapshot, name, is_eager) for name in who.live)
    if want.target and (want.topics != state.topics or (state.strategy and who.strategy != state.strategy)):
        return True
    if _seats_and_lives(want.target, who) != _seats_and_lives(state.target, who):
        return True
    return any(_lost_owners(snapshot, name, is_eager) for name in who.live)


def _seats_and_lives(target: Mapping[str, Target], who: Membership) -> dict[str, Target]:
    """A target in which a static member is the same whichever life it is in: it comes back to what it had."""
    everybody = who.everybody
    static = {name for name, registration in everybody.items() if registration.instance_id}
    return {name: replace(one, incarnation="") if name in static else one for name, one in target.items()}


def _lost_owners(snapshot: Snapshot, name: str, is_eager: bool) -> PartitionSet:
    """Partitions that a member runs in the current generation though their owner znode is gone (removed by hand)."""
    view, target = snapshot.channels[name], snapshot.state.target.get(name)
    told = target.partitions if target is not None else NONE
    settled = has_settled(view, told, snapshot.state.generation, is_eager)
    return view.running - snapshot.owners if settled and not view.commands else NONE


# ---- the state, and when to look again


def _state_name(who: Membership, due: Moves, asked: Asking) -> str:
    if who.forming:
        return PREPARING
    if not who.everybody:
        return EMPTY
    if asked.has_failed:
        return FAILED
    if due.are_stopping:
        return PREPARING
    return COMPLETING if due.are_starting or asked.waits else STABLE


def _reason(who: Membership, due: Moves, asked: Asking) -> str | None:
    """Whom or what the group waits for, once it has waited for a while."""
    if who.forming:
        return "waits for more members before its first generation (group_initial_rebalance_delay_ms)"
    if asked.waits or due.blocked_by:
        return asked.waits or due.blocked_by
    late = sorted(name for name, sent in due.kept.items() if sent.age_s >= STRAGGLER_AFTER_S)
    if late:
        command = due.kept[late[0]].command
        others = f" (nor have {len(late) - 1} others theirs)" if len(late) > 1 else ""
        return f"{late[0]} has not acknowledged its {command.option if command else 'command'}{others}"
    if not due.waiting:
        return None
    name, partitions = min(due.waiting.items())
    shown = ", ".join(str(part) for part in sorted(partitions)[:3])
    more = f" and {len(partitions) - 3} more" if len(partitions) > 3 else ""
    return f"{name} waits for {shown}{more} to become free"


def _again_s(who: Membership, due: Moves, asked: Asking, is_held: bool) -> float | None:
    timers = [*who.timers, *due.timers, *asked.timers]
    if is_held:
        timers.append(WAITING_LOOK_S)
    if due.withdrawn or who.ends or who.given_up:
        timers.append(0.0)
    if due.waiting or due.blocked_by:
        timers.append(WAITING_LOOK_S)
    if sum(len(view.children) + 1 for view in asked.unneeded) > ASK_ZNODES_A_TURN:
        timers.append(0.0)
    return min(timers, default=None)

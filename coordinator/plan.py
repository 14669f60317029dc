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
from .snapshot import SeatView, SentCommand, Snapshot
from .target import Wanted, wanted
from .zk.commands import Command
from .zk.partitions import NONE, PartitionSet
from .zk.records import Channel
from .zk.state import COMPLETING, EMPTY, PREPARING, STABLE, GroupState, Rebalance, Target

WAITING_LOOK_S = 1.0
"""How often to look again for what nothing tells of: an owner znode in the way that goes."""

HISTORY_KEPT = 20
NO_RULES = GroupRules()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn writes, in this order: ends, withdrawals and state, stops, starts.

    :ivar state: the group's state afterwards.
    :ivar given_up: seats of static members to remove, beside those that go with an end.
    :ivar rebalance: the history record to write, None to leave it.
    :ivar replaced: the record of the rebalance that this one replaces before it was through.
    :ivar again_s: seconds until the next turn is due, None when only a change asks for one.
    :ivar forgotten: generations whose history is removed.
    :ivar outstanding: consumers that have a command to acknowledge afterwards.
    """

    state: GroupState
    is_new_generation: bool = False
    ends: tuple[End, ...] = ()
    given_up: tuple[SeatView, ...] = ()
    withdrawn: tuple[tuple[str, SentCommand], ...] = ()
    stops: tuple[tuple[str, Command], ...] = ()
    starts: tuple[tuple[str, Command], ...] = ()
    rebalance: Rebalance | None = None
    replaced: Rebalance | None = None
    forgotten: tuple[int, ...] = ()
    again_s: float | None = None
    outstanding: frozenset[str] = frozenset()

    def changes(self, before: GroupState) -> bool:
        """Whether there is anything to write."""
        written = self.ends or self.given_up or self.withdrawn or self.stops or self.starts or self.rebalance
        return bool(written) or replace(self.state, epoch=before.epoch) != before


def plan(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], trigger: str = "", rules: GroupRules = NO_RULES
) -> Plan:
    """Decide one turn of a group (seed 000, `rebalance` 1 to 4).

    :param assignors: strategy -> assignor, as this node has them.
    :param trigger: what asked for the turn, for the history.
    :raises RebalanceFailed: when members share no strategy, or the assignor does not keep its promise.
    """
    who = membership(snapshot, assignors, rules)
    assignor = assignors.get(who.strategy)
    want = Wanted({}, {}, {})
    if assignor is not None and who.everybody:
        want = wanted(snapshot, who.everybody, assignor)
    is_eager = assignor is None or assignor.is_eager
    is_new = _needs_new_generation(snapshot, want, who, is_eager)
    generation = snapshot.state.generation + is_new
    due = moves(snapshot, who, want, generation, is_eager)
    state = GroupState(
        state=_state_name(who, due),
        generation=generation,
        epoch=snapshot.epoch,
        strategy=who.strategy,
        target=want.target,
        topics=want.topics,
        marks=tuple(who.marks),
        reason=_reason(who, due),
        left_out=dict(sorted({**unusable(snapshot, who), **want.left_out}.items())),
    )
    return Plan(
        state=state,
        is_new_generation=is_new,
        ends=tuple(who.ends),
        given_up=tuple(who.given_up),
        withdrawn=tuple(due.withdrawn),
        stops=tuple(due.stops),
        starts=tuple(due.starts),
        rebalance=history_of(snapshot, state, is_new, due.are_stopping, trigger),
        replaced=replaced_of(snapshot, generation) if is_new else None,
        forgotten=tuple(n for n in snapshot.history if n != generation)[: -(HISTORY_KEPT - 1)] if is_new else (),
        again_s=_again_s(who, due),
        outstanding=frozenset(due.kept).union(consumer for consumer, _ in (*due.stops, *due.starts)),
    )


def ended(channel: Channel, reason: str, error: str) -> Channel:
    """The channel of an incarnation whose hold is over."""
    return replace(channel, running={}, topics={}, ended=reason, error=error, refused=NONE)


# ---- which generation


def _needs_new_generation(snapshot: Snapshot, want: Wanted, who: Membership, is_eager: bool) -> bool:
    """Seed 000, `rebalance` 3.1 to 3.5; and another strategy, so that no generation has two."""
    state = snapshot.state
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


def _state_name(who: Membership, due: Moves) -> str:
    if who.forming:
        return PREPARING
    if not who.everybody:
        return EMPTY
    if due.are_stopping:
        return PREPARING
    return COMPLETING if due.are_starting else STABLE


def _reason(who: Membership, due: Moves) -> str | None:
    """Whom or what the group waits for, once it has waited for a while."""
    if who.forming:
        return "waits for more members before its first generation (group_initial_rebalance_delay_ms)"
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


def _again_s(who: Membership, due: Moves) -> float | None:
    timers = [*who.timers, *due.timers]
    if due.withdrawn or who.ends or who.given_up:
        timers.append(0.0)
    if due.waiting:
        timers.append(WAITING_LOOK_S)
    return min(timers, default=None)

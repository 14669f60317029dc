"""One turn's decision, pure: from a group's snapshot to the writes.

The same snapshot gives the same plan, for any order of the input. `membership.py` decides members and strategy,
`policy.py` the target, `reconciliation.py` the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..assignors import Assignor
from ..zk.errors import RebalanceFailed
from ..zk.znodes.group_state import EMPTY, STABLE, GroupState, Rebalance
from ..zk.znodes.json_fields import MAX_COUNT
from ..zk.znodes.records import Command
from .asking import Asking
from .kind import kind_of
from .membership import GroupRules, Termination, membership
from .reconciliation import Reconciliation, Round, reconcile, with_pauses
from .regional import Guarded, RegionStep
from .report import again_s, history_of_turn, state_of
from .snapshot import RequestView, SeatView, SentCommand, Snapshot

NO_RULES = GroupRules()
NO_ASKING = Asking()


@dataclass(frozen=True, slots=True)
class Plan:
    """A turn's writes, in this order: terminations, withdrawals and state, an ask with its command, stops, starts.

    :ivar state: the group's next state.
    :ivar given_up: seats of static members to remove, beside those removed with an end.
    :ivar drains: commands to contribute to a checkpoint; `draining` are the members that have one afterwards.
    :ivar region: the change of the group's consistent region.
    :ivar rebalance: the history record to write, None to leave it.
    :ivar replaced: the record of the unfinished rebalance that this one replaces.
    :ivar again_s: seconds until the next turn, None when only a change triggers one.
    :ivar forgotten: generations with history to remove.
    :ivar outstanding: consumers with an unacknowledged command afterwards.
    :ivar asking: changes to assignment requests.
    :ivar deferred: members whose next command waits for its pace.
    """

    state: GroupState
    is_new_generation: bool = False
    terminations: tuple[Termination, ...] = ()
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
        """Whether the plan writes anything."""
        written = (self.terminations, self.given_up, self.withdrawn, self.commands, self.rebalance, self.removed_asks)
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
    def removed_asks(self) -> tuple[RequestView, ...]:
        """Obsolete requests; those that a start may name are removed once every member has its command."""
        is_settled = self.state.state in (STABLE, EMPTY)
        return self.asking.obsolete + (self.asking.superseded if is_settled else ())


def plan(
    snapshot: Snapshot, assignors: Mapping[str, Assignor], trigger: str = "", rules: GroupRules = NO_RULES
) -> Plan:
    """Decide one turn of a group (sources D22 to D26).

    :param assignors: strategy -> assignor, as installed on this node.
    :param trigger: the turn's trigger, for the history.
    :raises RebalanceFailed: when members share no strategy, or the assignor breaks its contract.
    """
    members = membership(snapshot, assignors, rules)
    kind = kind_of(snapshot, members, assignors, trigger, rules)
    guarded = kind.guard.guard(kind.policy.decide(members), members, kind.policy)
    now = _round(snapshot, guarded)
    protocol = kind.protocol(guarded)
    steps = kind.guard.overlay(now, with_pauses(now, reconcile(now, protocol)), guarded.step)
    recorded = protocol.recorded(now, steps.starts)
    state = state_of(snapshot, guarded, steps, recorded, kind.guard.binding(now, guarded.step))
    return _written(snapshot, guarded, steps, state, trigger)


def _round(snapshot: Snapshot, guarded: Guarded) -> Round:
    """The input of the turn's reconciliation.

    :raises RebalanceFailed: when there is no room for another generation.
    """
    decision, before = guarded.decision, snapshot.state.generation
    if decision.is_new and before >= MAX_COUNT:
        raise RebalanceFailed(f"generation {before} is the last that a group may have")
    epoch, generation = snapshot.coordinator.epoch, before + decision.is_new
    return Round(epoch, generation, decision.assignment, guarded.members, snapshot.members, snapshot.partitions)


def _written(snapshot: Snapshot, guarded: Guarded, steps: Reconciliation, state: GroupState, trigger: str) -> Plan:
    """The plan that writes `state`."""
    decision, members, asking = guarded.decision, guarded.members, guarded.decision.asking
    rebalance, replaced, forgotten = history_of_turn(snapshot, guarded, steps, state, trigger)
    sent = (*steps.stops, *steps.starts, *steps.drains, *((asking.assign,) if asking.assign is not None else ()))
    return Plan(
        state=state,
        is_new_generation=decision.is_new,
        terminations=members.terminations,
        given_up=members.given_up,
        withdrawn=steps.withdrawn,
        stops=steps.stops,
        starts=steps.starts,
        drains=steps.drains,
        draining=frozenset(steps.draining).union(consumer for consumer, _ in steps.drains),
        region=guarded.step,
        rebalance=rebalance,
        replaced=replaced,
        forgotten=forgotten,
        again_s=again_s(snapshot, guarded, steps),
        outstanding=frozenset(steps.retained).union(
            steps.draining,
            (consumer for consumer, _ in sent),
            (consumer for consumer, _ in decision.assignment.retained),
        ),
        asking=asking,
        deferred=steps.deferred,
    )

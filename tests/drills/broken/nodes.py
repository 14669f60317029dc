"""Ways to break a coordinator in the processes that a drill starts. Each lasts as long as the process."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import zk_group.coordinator.planning.asking
import zk_group.coordinator.planning.plan
import zk_group.coordinator.planning.policy
import zk_group.coordinator.planning.reconciliation
import zk_group.coordinator.planning.report
import zk_group.coordinator.rebalance.observation
import zk_group.coordinator.regions.plan
from tests.simulation.mutation import apply, constant, replaced
from tests.simulation.mutations import slip
from zk_group.coordinator.listeners.listeners import Listeners
from zk_group.coordinator.listeners.topics import TopicListener
from zk_group.coordinator.planning.asking import unchanged
from zk_group.coordinator.planning.reconciliation import Step
from zk_group.coordinator.rebalance.rebalancer import Rebalancer
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.store import SetData
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, Command

STARTS_LATE_S = 6.0
SWEEPS_OVERLOOKED = 5

PLANS_ARE_NOT_CHECKED = replaced(Rebalancer, "_check", lambda original: lambda *given: None)
"""What would stop a mistake of the planner before it reaches ZooKeeper."""

stable_before_it_is = slip("a group is Stable while members start", PLANS_ARE_NOT_CHECKED)
removed_commands_are_sent_again_at_once = slip("a command that was removed is sent again without a pause")
failed_leader_is_asked_again = slip("failed leaders are not remembered")
handler_waits_for_acknowledgements = slip("a handler waits for acknowledgements")


def ends_at_once() -> None:
    """A coordinator ends before it has begun."""
    sys.exit(1)


def last_commit_is_sent_again() -> None:
    """A node's last write is sent again on its next session, without a fence, as from kazoo's queue."""
    sent: list[SetData] = []

    def noting(original: Any) -> Any:
        def write(self: Rebalancer, operations: Any) -> Any:
            sent[:] = [
                replace(op, version=-1) for op in operations if isinstance(op, SetData) and op.path.endswith("/state")
            ]
            return original(self, operations)

        return write

    def resending(original: Any) -> Any:
        def handle_new_session(self: CoordinatorService) -> Any:
            store = original(self)
            if store is not None and sent:
                store.commit(sent)
            return store

        return handle_new_session

    apply(replaced(Rebalancer, "_write", noting), replaced(CoordinatorService, "_handle_new_session", resending))


def commands_of_the_dead_stay() -> None:
    """Departed members get stop commands, which are not withdrawn."""

    def telling(original: Any) -> Any:
        def reconcile(*given: Any) -> Any:
            found, now = original(*given), given[0]
            stops = {
                end.view.consumer: Step(Command(STOP_FETCHER, now.epoch, now.generation, end.view.channel.incarnation))
                for end in now.membership.terminations
            }
            return replace(found, steps={**found.steps, **stops})

        return reconcile

    def leaving(original: Any) -> Any:
        def sorted_commands(*given: Any) -> Any:
            retained, withdrawn = original(*given)
            return retained, tuple((name, sent) for name, sent in withdrawn if name in given[0].membership.live)

        return sorted_commands

    apply(
        replaced(zk_group.coordinator.planning.plan, "reconcile", telling),
        replaced(zk_group.coordinator.planning.reconciliation, "_sorted_commands", leaving),
        PLANS_ARE_NOT_CHECKED,
    )


def starts_are_late() -> None:
    """A coordinator takes its time before it lets anybody start."""
    since: dict[tuple[Any, ...], float] = {}

    def is_early(name: str, command: Command) -> bool:
        due = command.generation, name, command.incarnation  # a static member returns within a generation
        return time.monotonic() - since.setdefault(due, time.monotonic()) < STARTS_LATE_S

    def late(original: Any) -> Any:
        def reconcile(*given: Any) -> Any:
            found = original(*given)
            early = {name: Step(blocked=command.started) for name, command in found.starts if is_early(name, command)}
            return replace(found, steps={**found.steps, **early})

        return reconcile

    apply(replaced(zk_group.coordinator.planning.plan, "reconcile", late))


def region_does_not_look_back() -> None:
    """A region is Running before its members have their state, and a checkpoint does not say which one it follows."""
    plan = zk_group.coordinator.regions.plan

    def follows_nothing(original: Any) -> Any:
        def following(snapshot: Any, rules: Any) -> Any:
            found = original(snapshot, rules)
            return replace(found, begun=replace(found.begun, base=0)) if found.begun is not None else found

        return following

    is_there = constant(plan.RegionGroups, "are_ready", lambda groups, region: bool(groups.participants))
    apply(is_there, replaced(plan, "_next", follows_nothing))


def region_that_went_back_stays_resetting() -> None:
    """A region that was reset to an earlier cut than its last is never Running again."""
    newest = [0]

    def waiting(original: Any) -> Any:
        def are_ready(groups: Any, region: Any) -> bool:
            newest[0] = max(newest[0], region.sequence)
            return region.sequence == newest[0] and bool(original(groups, region))

        return are_ready

    apply(replaced(zk_group.coordinator.regions.plan.RegionGroups, "are_ready", waiting))


def new_partitions_are_overlooked() -> None:
    """A topic's watch events are lost, and the next sweeps skip the topic for a while."""
    left: dict[str, int] = {}

    def deaf(original: Any) -> Any:
        def handle(self: Listeners, event: Any) -> None:
            if event.kind == "topic":
                left[event.name] = SWEEPS_OVERLOOKED
            else:
                original(self, event)

        return handle

    def blind(original: Any) -> Any:
        def topic_partition_change(self: TopicListener, names: Any) -> None:
            some = list(names)
            original(self, [name for name in some if left.get(name, 0) == 0])
            left.update({name: left[name] - 1 for name in some if left.get(name, 0) > 0})

        return topic_partition_change

    apply(replaced(Listeners, "_handle", deaf), replaced(TopicListener, "topic_partition_change", blind))


def hung_leader_is_waited_for() -> None:
    """A leader has an hour to answer; `assignment_timeout_ms` is ignored."""

    def patient(original: Any) -> Any:
        return lambda snapshot, who, trigger, timeout_s: original(snapshot, who, trigger, 3600.0)

    apply(replaced(zk_group.coordinator.planning.policy, "group_of", patient))


def dead_leader_is_waited_for() -> None:
    """An ask whose leader has gone is out until its time is over."""

    def waiting(original: Any) -> Any:
        def about(group: Any) -> Any:
            view = group.out
            if view is None or view.ask is None or view.is_answered or view.ask.leader in group.membership.live:
                return original(group)
            left_s = group.timeout_s - view.age_s
            waits = f"{view.ask.leader} is asked for an assignment"
            found = replace(unchanged(group, group.before), waits=waits, timers=(left_s,))
            return found if left_s > 0 else None

        return about

    apply(replaced(zk_group.coordinator.planning.asking, "_pending_ask", waiting))


def failures_are_not_told() -> None:
    """Only the first member is notified of a failed assignment."""

    apply(
        replaced(zk_group.coordinator.planning.asking, "_notices", lambda original: lambda *given: original(*given)[:1])
    )


def asks_of_another_are_made_anew() -> None:
    """A coordinator continues only its own asks."""
    made: set[str] = set()

    def noting(original: Any) -> Any:
        def asked(*given: Any) -> Any:
            found = original(*given)
            made.add(found.made[0])
            return found

        return asked

    def strange(original: Any) -> Any:
        def about(group: Any) -> Any:
            return original(group) if group.out is not None and group.out.name in made else None

        return about

    apply(
        replaced(zk_group.coordinator.planning.asking, "_asked", noting),
        replaced(zk_group.coordinator.planning.asking, "_pending_ask", strange),
    )


def another_share_than_the_answer() -> None:
    """Two members get what the leader has given to the other one."""

    def exchanged(original: Any) -> Any:
        def adopted(*given: Any) -> Any:
            found = original(*given)
            target = dict(found.assignment.target)
            if len(target) >= 2:
                one, other = sorted(target)[:2]
                shares = {one: target[other].partitions, other: target[one].partitions}
                for name, share in shares.items():
                    target[name] = replace(target[name], threads={f"{name}-0": share} if share else {})
            return replace(found, assignment=replace(found.assignment, target=target))

        return adopted

    apply(replaced(zk_group.coordinator.planning.asking, "_adopted", exchanged))

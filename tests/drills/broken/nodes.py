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
from tests.simulation.mutation import Patch, constant, replaced
from zk_group.coordinator.listeners.listeners import Listeners
from zk_group.coordinator.listeners.topics import TopicListener
from zk_group.coordinator.planning.asking import unchanged
from zk_group.coordinator.planning.reconciliation import Step
from zk_group.coordinator.rebalance.handlers import Handlers
from zk_group.coordinator.rebalance.rebalancer import Rebalancer
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.store import SetData
from zk_group.coordinator.zk.znodes.group_state import EMPTY, STABLE
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, Command

STARTS_LATE_S = 6.0
SWEEPS_OVERLOOKED = 5
LONGEST_WAIT_S = 8.5

PLANS_ARE_NOT_CHECKED = replaced(Rebalancer, "_check", lambda original: lambda *given: None)
"""What would stop a mistake of the planner before it reaches ZooKeeper."""


def _apply(*patches: Patch) -> None:
    for patch in patches:
        patch().start()


def ends_at_once() -> None:
    """A coordinator ends before it has begun."""
    sys.exit(1)


def stable_before_it_is() -> None:
    """A group is called Stable as soon as it is known what it shall look like."""

    def named_too_early(original: Any) -> Any:
        return lambda who, due, asked: STABLE if who.everybody else EMPTY

    _apply(replaced(zk_group.coordinator.planning.report, "_state_name", named_too_early), PLANS_ARE_NOT_CHECKED)


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

    _apply(replaced(Rebalancer, "_write", noting), replaced(CoordinatorService, "_handle_new_session", resending))


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

    _apply(
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

    _apply(replaced(zk_group.coordinator.planning.plan, "reconcile", late))


def removed_commands_are_sent_again_at_once() -> None:
    """A command that its member has removed, and not carried out, is sent again without a pause."""
    _apply(constant(zk_group.coordinator.rebalance.observation, "PAUSE_S", 0.0))


def region_does_not_look_back() -> None:
    """A region is Running before its members have their state, and a checkpoint does not say which one it follows."""
    plan = zk_group.coordinator.regions.plan

    def follows_nothing(original: Any) -> Any:
        def following(snapshot: Any, rules: Any) -> Any:
            found = original(snapshot, rules)
            return replace(found, begun=replace(found.begun, base=0)) if found.begun is not None else found

        return following

    is_there = constant(plan.RegionGroups, "are_ready", lambda groups, region: bool(groups.participants))
    _apply(is_there, replaced(plan, "_next", follows_nothing))


def region_that_went_back_stays_resetting() -> None:
    """A region that was reset to an earlier cut than its last is never Running again."""
    newest = [0]

    def waiting(original: Any) -> Any:
        def are_ready(groups: Any, region: Any) -> bool:
            newest[0] = max(newest[0], region.sequence)
            return region.sequence == newest[0] and bool(original(groups, region))

        return are_ready

    _apply(replaced(zk_group.coordinator.regions.plan.RegionGroups, "are_ready", waiting))


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

    _apply(replaced(Listeners, "_handle", deaf), replaced(TopicListener, "topic_partition_change", blind))


def handler_waits_for_acknowledgements() -> None:
    """A turn lasts until every command that it sent has gone from its channel, or for a long time."""

    def waiting(original: Any) -> Any:
        def take_turn(self: Handlers, request: Any) -> None:
            original(self, request)
            paths, until = GroupPaths(request.key.name), time.monotonic() + LONGEST_WAIT_S
            store = self._term.store
            listing = store.children(paths.channels)
            channels = [paths.channel(name) for name in (listing.names if listing is not None else ())]
            while time.monotonic() < until and any(each and each.names for each in store.children_many(channels)):
                self._runtime.sleep(0.05)

        return take_turn

    _apply(replaced(Handlers, "_take_turn", waiting))


def hung_leader_is_waited_for() -> None:
    """A leader has an hour to answer; `assignment_timeout_ms` is ignored."""

    def patient(original: Any) -> Any:
        return lambda snapshot, who, trigger, timeout_s: original(snapshot, who, trigger, 3600.0)

    _apply(replaced(zk_group.coordinator.planning.policy, "group_of", patient))


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

    _apply(replaced(zk_group.coordinator.planning.asking, "_pending_ask", waiting))


def failed_leader_is_asked_again() -> None:
    """The oldest member is asked, though it has just failed."""

    def forgetful(original: Any) -> Any:
        def leader(group: Any) -> Any:
            client = replace(group.before, failed=())
            state = replace(group.snapshot.state, client=client)
            return original(replace(group, snapshot=replace(group.snapshot, state=state)))

        return leader

    _apply(replaced(zk_group.coordinator.planning.asking, "_leader", forgetful))


def failures_are_not_told() -> None:
    """Only the first member is notified of a failed assignment."""

    def silent(original: Any) -> Any:
        return lambda *given: original(*given)[:1]

    _apply(replaced(zk_group.coordinator.planning.asking, "_notices", silent))


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

    _apply(
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

    _apply(replaced(zk_group.coordinator.planning.asking, "_adopted", exchanged))

"""Properties of the plan of any turn, for any snapshot: its invariants, and what these leave open."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from tests.property.effort import Draw, tried
from tests.property.snapshots import GENERATION, turn
from tests.support.terms import only
from tests.support.turns import with_facts
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.planning.invariants import broken_invariants
from zk_group.coordinator.planning.plan import Plan, plan
from zk_group.coordinator.planning.report import HISTORY_KEPT
from zk_group.coordinator.planning.snapshot import Snapshot
from zk_group.coordinator.rebalance.observation import Memory, ReadTimes, observe, writing, written
from zk_group.coordinator.zk.znodes.group_state import EMPTY, GROUP_STATES, STABLE, GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

TURNS = 300


class Decided(NamedTuple):
    """What a turn reads, and its plan."""

    snapshot: Snapshot
    assignor: Assignor
    plan: Plan


def decided(draw: Draw) -> Decided:
    snapshot, assignor = turn(draw)
    found = plan(snapshot, only(assignor))
    assert found.state.state in GROUP_STATES and not [*broken_invariants(snapshot, found)]
    return Decided(snapshot, assignor, found)


turns = tried(TURNS, decided)


def backwards(found: Mapping[K, V]) -> dict[K, V]:
    return dict(reversed(list(found.items())))


@tried(TURNS, turn)
def test_plan_is_the_same_in_any_order_of_reading_and_its_state_is_read_back(turn: tuple[Snapshot, Assignor]) -> None:
    snapshot, assignor = turn
    before = copy.deepcopy(snapshot)
    some = [(snapshot.members, "channels registered hold_age_s"), (snapshot.partitions, "topics")]
    other = {name: backwards(getattr(facts, name)) for facts, names in some for name in names.split()}
    state = replace(snapshot.state, target=backwards(snapshot.state.target), topics=backwards(snapshot.state.topics))

    first, second = plan(snapshot, only(assignor)), plan(snapshot, only(assignor))
    found = plan(with_facts(snapshot, **other, state=state), only(assignor))

    assert first == second == found and snapshot == before
    assert first.state.to_bytes() == found.state.to_bytes()
    assert GroupState.parse("state", found.state.to_bytes()) == found.state


@tried(TURNS, turn)
def test_what_is_read_is_folded_into_the_memory_the_same_way_each_time(turn: tuple[Snapshot, Assignor]) -> None:
    read, assignor = turn
    decided = plan(read, only(assignor))
    memory = written(observe(Memory(), read, ReadTimes(1.0, 900, 800))[1], decided, 1, 2.0)
    before = copy.deepcopy(memory)

    first, second = observe(memory, read, ReadTimes(3.0, 1000, 900)), observe(memory, read, ReadTimes(3.0, 1000, 900))

    assert first == second and memory == before
    assert writing(memory, decided) == writing(before, decided)


@turns
def test_a_stop_of_all_names_none_and_a_start_has_the_threads_of_the_target(turn: Decided) -> None:
    snapshot, _, decided = turn

    for name, command in decided.stops:
        assert command.partitions < snapshot.members.channels[name].running
    for name, command in decided.starts:
        target = decided.state.target[name]
        assert all(parts and parts <= target.threads[thread] for thread, parts in command.threads.items())
        assert command.topics == {part.topic: snapshot.partitions.topics[part.topic].id for part in command.started}


@turns
def test_eager_strategy_starts_no_consumer_before_its_stop_in_this_generation(turn: Decided) -> None:
    snapshot, assignor, decided = turn

    for name, _ in decided.starts:
        view = snapshot.members.channels[name]
        settled = view.channel is not None and view.channel.generation == decided.state.generation
        assert not assignor.is_eager or settled or not view.running


@turns
def test_only_departed_half_ended_or_silent_incarnations_are_ended(turn: Decided) -> None:
    snapshot, _, decided = turn

    for end in decided.terminations:
        name, channel = end.view.consumer, end.view.channel
        assert channel is not None and channel.incarnation
        assert end.owners == end.view.running & snapshot.partitions.owners
        member = snapshot.members.registered.get(name)
        registration = member.registration if member else None
        is_registered = registration is not None and registration.incarnation == channel.incarnation
        if end.evicted:
            silent_s = max(end.view.idle_s, end.view.compliance.waits_s)
            assert is_registered and channel.is_live
            assert registration is not None and silent_s >= registration.max_poll_interval_ms / 1000
        else:
            assert member is None or registration is not None
            assert not is_registered or (channel.ended is not None and end.view.running)


@turns
def test_finished_incarnations_are_ended_and_silent_ones_are_evicted(turn: Decided) -> None:
    snapshot, _, decided = turn

    ended = {end.view.consumer for end in decided.terminations}
    for name, view in snapshot.members.channels.items():
        if (
            view.channel is not None
            and name not in snapshot.members.registered
            and (view.channel.is_live or view.running)
        ):
            assert name in ended
    for name in decided.state.target:
        view, member = snapshot.members.channels[name], snapshot.members.registered[name]
        assert member.registration is not None
        assert max(view.idle_s, view.compliance.waits_s) < member.registration.max_poll_interval_ms / 1000


@turns
def test_left_out_member_is_named_with_the_reason_and_the_others_continue(turn: Decided) -> None:
    snapshot, _, decided = turn

    for name, member in snapshot.members.registered.items():
        view = snapshot.members.channels.get(name)
        usable = member.registration is not None and view is not None and view.channel is not None
        assert usable or decided.state.left_out[name]
        assert usable or name not in decided.state.target


@turns
def test_target_covers_every_subscribed_partition(turn: Decided) -> None:
    snapshot, _, decided = turn

    assigned = [part for target in decided.state.target.values() for part in target.partitions]
    every = {
        TopicPartition(name, n) for name in decided.state.topics for n in snapshot.partitions.topics[name].partitions
    }
    assert sorted(assigned) == sorted(every)


@turns
def test_stable_group_has_no_outstanding_commands_and_an_empty_one_no_target(turn: Decided) -> None:
    snapshot, _, decided = turn

    if decided.state.state == STABLE:
        channels = {name: snapshot.members.channels[name] for name in decided.state.target}
        sent = {(name, each.name) for name, view in channels.items() for each in view.commands}
        assert sent <= {(name, each.name) for name, each in decided.withdrawn}
    assert (decided.state.state == EMPTY) == (not decided.state.target)


@turns
def test_incomplete_plan_has_the_time_of_the_next_turn(turn: Decided) -> None:
    is_over = turn.plan.state.state in (STABLE, EMPTY) and not turn.plan.state.marks
    assert is_over if turn.plan.again_s is None else turn.plan.again_s >= 0


@tried(TURNS, turn, lambda draw: draw.upto(30), lambda draw: draw.upto(40))
def test_history_keeps_the_newest_and_this_turns(turn: tuple[Snapshot, Assignor], count: int, above: int) -> None:
    snapshot, assignor = turn
    last = GENERATION + above
    snapshot = with_facts(snapshot, generations=tuple(range(max(0, last - count) + 1, last + 1)), last=None)

    decided = plan(snapshot, only(assignor))

    written = {decided.rebalance.generation} if decided.rebalance else set()
    assert not written & set(decided.forgotten)
    known = set(snapshot.history.generations)
    assert len((known - set(decided.forgotten)) | written) <= max(HISTORY_KEPT, len(known))
    assert set(decided.forgotten) <= known

"""Kafka's own system tests of consumers (ducktape, `consumer_test.py`), on real processes and under their rules.

Each consumer is a `zk-consumer run --events`; its lines are checked against the rules of VerifiableConsumer's
harness (`tests/support/events.py`) each time that anything is looked at.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from tests.support.event_group import PARTITIONS, SOME, EventGroup
from tests.support.events import DEAD, ConsumerEvents
from tests.support.wait import within
from tests.support.world import parts

NAMES = ("c1", "c2", "c3")
SESSION_S = 1.5


@pytest.mark.full("members as processes")
@pytest.mark.parametrize("together", [True, False], ids=["all", "rolling"])
def test_consumer_bounce_all_rejoin_and_consume_each_time_without_duplicates(group: EventGroup, together: bool) -> None:
    group.node("a")
    group.start(NAMES)
    group.joined(NAMES)
    group.consumes()

    for some in [NAMES] if together else [(name,) for name in NAMES]:
        group.stop(some)
        group.start(some)
        group.joined(NAMES)
        group.consumes()

    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed
    group.stop(NAMES)
    assert {seen.state for seen in group.events().consumers.values()} == {DEAD}


def test_consumer_failure_reassigns_partitions_in_time_and_consumption_continues(group: EventGroup) -> None:
    group.node("a")
    group.start(NAMES)
    group.joined(NAMES)
    (dies,) = group.consumes().owners()[next(iter(parts("t", 0)))]
    alive = [name for name in NAMES if name != dies]

    group.process(dies).kill()

    in_time_s = 2 * SESSION_S + 5  # as there; the drill consumer-sigkill holds the product to what it promises
    within(lambda: group.events().owners(of=alive).keys() == set(group.everything), in_time_s, "new owners")
    last_words = group.events().consumers[dies]
    uncommitted = sum(last_words.position[p] - last_words.committed.get(p, 0) for p in last_words.position)
    group.consumes(3 * SOME)
    events = group.consumes_everything()
    assert events.joined() == set(NAMES), "the killed one could not say that it ends"
    assert 0 <= events.consumed - sum(events.position.values()) <= uncommitted
    assert {events.consumers[name].lost for name in NAMES} == {0}


@pytest.mark.full("members as processes")
def test_group_consumption_continues_while_consumers_start_and_stop_one_by_one(group: EventGroup) -> None:
    group.node("a")
    for count in range(1, len(NAMES) + 1):
        group.start(NAMES[count - 1 : count])
        group.joined(NAMES[:count])
        group.consumes()
    for count in range(1, len(NAMES)):
        group.stop(NAMES[count - 1 : count])
        group.joined(NAMES[count:])
        group.consumes()

    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed
    assert events.committed == events.position


@pytest.mark.full("members as processes")
@pytest.mark.parametrize("strategy", ["range", "round-robin", "sticky", "cooperative-sticky"])
def test_valid_assignment_gives_each_partition_one_owner_after_each_join(group: EventGroup, strategy: str) -> None:
    group.world.coordinator()

    for count in range(1, len(NAMES) + 1):
        group.start(NAMES[count - 1 : count], "--protocols", strategy)
        events = group.joined(NAMES[:count])
        assert (group.world.state("g").strategy, len(events.owners())) == (strategy, PARTITIONS)
        assert {len(seen.assignment) for seen in events.consumers.values()} == {PARTITIONS // count}


@pytest.mark.full("members as processes")
def test_rolling_coordinator_restart_rebalances_no_consumer_and_stops_no_fetching(group: EventGroup) -> None:
    nodes = {name: group.node(name) for name in ("a", "b")}
    group.start(NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation

    for epoch in (1, 2):
        name = group.world.elected_node(epoch)
        nodes[name].signal(signal.SIGTERM)
        assert nodes[name].ends() == 0, nodes[name].said()
        group.world.elected_node(epoch + 1)
        nodes[name] = group.node(name)
        group.consumes()

    events = group.consumes_everything()
    assert group.world.state("g").generation == generation
    for name, seen in events.consumers.items():
        assert callbacks(seen) == callbacks(before.consumers[name]), f"{name} was rebalanced"
    assert sum(events.position.values()) == events.consumed


# ---- static members, and changes of strategy (KIP-345; ducktape's static bounces and rolling upgrade)

LONG = ("--session-timeout-ms", "20000")
"""So that a restart is well within it on a busy machine."""


def static(group: EventGroup, names: Iterable[str], *options: str) -> None:
    """Start these as static members."""
    for name in names:
        group.start([name], "--group-instance-id", name, *LONG, *options)


def callbacks(seen: ConsumerEvents) -> tuple[int, int]:
    return seen.assigned, seen.revoked


@pytest.mark.full("members as processes")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("together", [True, False], ids=["all", "rolling"])
def test_static_member_restart_stops_no_other_and_makes_no_generation(
    group: EventGroup, strategy: str, together: bool
) -> None:
    group.node("a")
    static(group, NAMES, "--protocols", strategy)
    before, generation = group.joined(NAMES), group.world.state("g").generation
    alive = before.consumers["c3"]
    bounced = [("c1", "c2")] if together else [("c1",), ("c2",)]

    for some in bounced:
        group.stop(some)
        static(group, some, "--protocols", strategy)
        after = group.joined(NAMES)
        group.consumes(20)

    assert group.world.state("g").generation == generation
    assert callbacks(after.consumers["c3"]) == callbacks(alive)
    assert after.owners() == before.owners()
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed


@pytest.mark.full("members as processes")
def test_static_members_return_after_a_failover(group: EventGroup) -> None:
    first = group.node("a")
    static(group, NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation
    group.stop(["c1"])
    first.signal(signal.SIGTERM)
    assert first.ends() == 0
    group.node("b")
    group.world.elected_node(2)

    static(group, ["c1"])

    after = group.joined(NAMES)
    assert group.world.state("g").generation == generation
    assert after.owners() == before.owners()
    assert callbacks(after.consumers["c2"]) == callbacks(before.consumers["c2"])


@pytest.mark.full("members as processes")
def test_second_live_holder_of_a_seat_fences_the_first_without_a_rebalance(group: EventGroup) -> None:
    group.node("a")
    static(group, NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation

    group.start(["c1"], "--group-instance-id", "c1", *LONG, as_file="c1-again")

    older = group.process("c1")
    assert older.ends() == 1
    assert older.said().splitlines()[-1] == "error: FencedInstanceId: another process has registered as c1"
    assert [event["name"] for event in older.printed()[-2:]] == ["partitions_lost", "shutdown_complete"]
    group.fenced.add("c1")
    after = group.joined(["c1-again", "c2", "c3"])
    assert group.world.state("g").generation == generation
    assert callbacks(after.consumers["c2"]) == callbacks(before.consumers["c2"])


@pytest.mark.full("members as processes")
def test_switch_to_cooperative_sticky_stops_only_partitions_that_move(group: EventGroup) -> None:
    group.node("a")
    static(group, NAMES, "--protocols", "range,cooperative-sticky")
    before = group.joined(NAMES)
    assert group.world.state("g").strategy == "range"

    for name in NAMES:
        group.stop([name])
        static(group, [name], "--protocols", "cooperative-sticky")
        after = group.joined(NAMES)

    assert group.world.state("g").strategy == "cooperative-sticky"
    assert after.owners() == before.owners()
    assert after.consumers["c3"].revoked == before.consumers["c3"].revoked + 1, "by its own stop"
    group.start(["c4"], "--protocols", "cooperative-sticky", *LONG)
    last = group.joined([*NAMES, "c4"])
    moved = last.consumers["c4"].assignment
    assert 1 <= len(moved) <= 2
    for name in NAMES:
        assert last.consumers[name].assignment == after.consumers[name].assignment - moved
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed

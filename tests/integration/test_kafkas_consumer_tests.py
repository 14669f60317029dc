"""Kafka's own system tests of consumers (ducktape, `consumer_test.py`), on real processes and under their rules.

Each consumer is a `zk-consumer run --events`; its lines are checked against the rules of VerifiableConsumer's
harness (`tests/support/events.py`) each time that anything is looked at.
"""

from __future__ import annotations

import signal

import pytest

from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord
from tests.support.event_group import PARTITIONS, SOME, EventGroup
from tests.support.events import DEAD
from tests.support.wait import eventually, within
from tests.support.world import World, parts

NAMES = ("c1", "c2", "c3")
SESSION_S = 1.5

STRATEGIES = ("range", "round-robin", "sticky", "cooperative-sticky")


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
@pytest.mark.parametrize("strategy", STRATEGIES)
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
        name = elected(group.world, epoch)
        nodes[name].signal(signal.SIGTERM)
        assert nodes[name].ends() == 0, nodes[name].said()
        elected(group.world, epoch + 1)
        nodes[name] = group.node(name)
        group.consumes()

    events = group.consumes_everything()
    assert group.world.state("g").generation == generation
    for name, seen in events.consumers.items():
        was = before.consumers[name]
        assert (seen.assigned, seen.revoked) == (was.assigned, was.revoked), f"{name} was rebalanced"
    assert sum(events.position.values()) == events.consumed


def elected(world: World, epoch: int) -> str:
    """The node that is elected in `epoch`, once one is."""

    def look() -> str | None:
        data = world.data(COORDINATOR)
        record = CoordinatorRecord.parse(COORDINATOR, data) if data else None
        return record.node if record and record.epoch == epoch else None

    return eventually(look, 10, f"a node is elected in epoch {epoch}") or ""


@pytest.mark.full("members as processes")
def test_fenced_consumer_prints_the_reason_and_its_shutdown(group: EventGroup) -> None:
    group.world.coordinator()
    group.start(["c1"])
    group.joined(["c1"])

    group.start(["c1"], as_file="c1-again")

    older = group.process("c1")
    assert older.ends() == 1
    assert older.said().splitlines()[-1] == "error: FencedInstanceId: another process has registered as c1"
    assert [event["name"] for event in older.printed()[-2:]] == ["partitions_lost", "shutdown_complete"]
    group.joined(["c1-again"])
    group.consumes_everything()

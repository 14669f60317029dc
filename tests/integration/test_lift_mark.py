"""`zk-coordinator groups lift-mark`: an operator ends the wait for an evicted member's lease."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, SetData
from coordinator.zk.znodes.group_state import STABLE, GroupState, Mark
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord
from tests.support.cli import run, run_json, run_ok
from tests.support.liar import Liar
from tests.support.made_group import MadeGroup
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
MARKS = (
    Mark("c1", "old", frozenset({T0, T1}), 30_000, "evicted"),
    Mark("c1", "new", frozenset({T2}), 30_000, "evicted"),
    Mark("c2", "i", frozenset({T2}), 30_000, "evicted"),
)


@pytest.fixture
def group(zk: str) -> Iterator[MadeGroup]:
    store = open_kazoo(zk, 10_000)
    yield MadeGroup(store, state=STABLE, marks=MARKS)
    store.close()


def state(group: MadeGroup) -> GroupState:
    node = group.store.get(group.paths.state)
    assert node is not None
    return GroupState.parse("", node.data)


def elected(group: MadeGroup) -> None:
    """An elected node that takes no turn."""
    group.store.commit([Create(COORDINATOR, CoordinatorRecord("a", "here", 1).to_bytes(), ephemeral=True)])


def test_lift_mark_without_execute_shows_the_marks_and_the_risk_and_changes_nothing(zk: str, group: MadeGroup) -> None:
    result = run_ok(zk, "groups", "lift-mark", "g", "c1")

    assert "No mark is lifted as the --execute option is missing" in result.stderr
    assert "may still fetch these partitions" in result.stderr
    assert "t:0-1" in result.stdout and "t:2" in result.stdout
    assert "--execute" not in run_ok(zk, "groups", "lift-mark", "g", "c1", "--dry-run").stderr
    assert state(group).marks == MARKS
    assert group.store.get(group.paths.request) is None


def test_lift_mark_removes_the_marks_of_one_consumer_or_incarnation_only(zk: str, group: MadeGroup) -> None:
    elected(group)
    node = group.store.get(group.paths.state)
    assert node is not None
    later = node.data[:-1] + b',"of_a_later_release":1}'
    group.store.commit([SetData(group.paths.state, later)])

    one = run_json(zk, "groups", "lift-mark", "g", "c1", "--incarnation", "old", "--execute")

    assert [(row["incarnation"], row["lifted"]) for row in one] == [("old", True)]
    assert state(group).marks == MARKS[1:]
    assert len(run_json(zk, "groups", "lift-mark", "g", "c1", "--execute")) == 1
    assert state(group).marks == MARKS[2:]
    node = group.store.get(group.paths.state)
    assert node is not None and b'"of_a_later_release":1' in node.data
    assert group.store.get(group.paths.request) is not None


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (["c3"], 2, "group 'g' has no mark of 'c3': it has those of c1, c2"),
        (["c1", "--dry-run", "--execute"], 2, "give --dry-run or --execute, not both"),
        (["c1", "--execute"], 1, "no coordinator is elected"),
    ],
)
def test_lift_mark_that_cannot_be_says_why(zk: str, group: MadeGroup, args: list[str], code: int, error: str) -> None:
    result = run(zk, "groups", "lift-mark", "g", *args)

    assert (result.exit_code, error in result.stderr) == (code, True), result.stderr
    assert state(group).marks == MARKS


def test_partitions_of_a_lifted_mark_are_started_at_once(world: World, zk: str) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = Liar(zk, "g", "bad", {"t": 1}, lease_ms=30_000, max_poll_interval_ms=2000)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))
    eventually(lambda: (bad.acknowledges() and bad.is_evicted) or bad.is_evicted, 5, "it is evicted")
    assert len(world.state("g").marks) == 1

    run_ok(zk, "groups", "lift-mark", "g", "bad", "--execute")

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")
    assert world.state("g").marks == ()
    bad.close()

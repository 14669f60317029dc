"""`resign`: the elected node gives the coordinator's role up, and the next one acts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.admin import control
from coordinator.zk import lease
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from tests.support.cli import run, run_json, run_ok
from tests.support.processes import node_process
from tests.support.stores import Interrupted, lost_reply
from tests.support.wait import eventually, within
from tests.support.world import World


def test_another_node_is_elected_and_the_group_continues(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one, two = world.coordinator("one"), world.coordinator("two")
    first = world.elected(one, two)
    world.topic("t", 4)
    world.consumer("g", "c1", {"t": 1})
    generation = world.stable("g", 1).generation
    name = {one: "one", two: "two"}[first]

    found = run_json(world.zk, "resign")

    assert found["deposed"]["node"] == name
    assert found["elected"]["node"] == {"one": "two", "two": "one"}[name]
    assert found["elected"]["epoch"] == found["deposed"]["epoch"] + 1
    second = world.elected(one, two, above=found["deposed"]["epoch"])
    assert second is not first
    assert world.state("g").generation == generation
    world.consumer("g", "c2", {"t": 1})
    world.stable("g", 2)
    stands = f"election joined: node={name}\n"
    eventually(lambda: caplog.text.count(stands) >= 2, 15, "the resigned node is a candidate again")
    run_ok(world.zk, "resign")
    assert world.elected(one, two, above=found["elected"]["epoch"]) is first


def test_node_whose_znode_is_removed_resigns_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWALS_A_TIMEOUT", 0.001)  # the lease looks every half an hour
    service = world.coordinator("only")
    world.elected(service)

    world.remove(COORDINATOR)

    world.elected(service, above=1, timeout_s=5, wait=within)


@pytest.mark.real_zookeeper("processes")
def test_resignation_of_a_killed_node_says_only_that_its_term_is_over(world: World, tmp_path: Path) -> None:
    with node_process(tmp_path, world.zk, "a", 4000) as one, node_process(tmp_path, world.zk, "b", 4000) as two:
        eventually(lambda: world.data(COORDINATOR), 20, "one of them is elected")
        name = CoordinatorRecord.parse(COORDINATOR, world.data(COORDINATOR) or b"").node
        elected = {"a": one, "b": two}[name]
        elected.kill()

        result = run(world.zk, "resign", "--timeout", "20")

    assert result.exit_code == 0, result.stderr
    assert f"DEPOSED  {elected.name}" in result.stdout
    assert "resigned" not in (result.stdout + result.stderr).lower()


@pytest.mark.parametrize("ephemeral", [True, False])
def test_coordinator_znode_made_by_hand_is_removed_and_a_node_is_elected(world: World, ephemeral: bool) -> None:
    world.put(COORDINATOR_EPOCH, EpochRecord(3).to_bytes())
    world.store.commit([Create(COORDINATOR, CoordinatorRecord("me", "host", 99).to_bytes(), ephemeral=ephemeral)])
    world.coordinator("only")

    found = run_json(world.zk, "resign")

    assert (found["deposed"]["epoch"], found["elected"]["node"], found["elected"]["epoch"]) == (99, "only", 4)


@pytest.mark.parametrize("happens", [True, False], ids=["it happened", "it did not"])
def test_a_resignation_whose_reply_was_lost_happens_once(world: World, happens: bool) -> None:
    service = world.coordinator("only")
    world.elected(service)

    before, epoch = control.resign(Interrupted(world.store, **({"after" if happens else "before": lost_reply})))

    after = control.await_election(world.store, ThreadRuntime(), epoch, 10)
    assert (before.epoch, after and after.epoch) == (1, 2)
    eventually(lambda: service.term and service.term.epoch == 2, 5, "elected once more, not twice")

"""`history G`: a group's last rebalances, and the standstill of each; `status --check` while something happens."""

from __future__ import annotations

import json
import re

from coordinator.admin.health import read_status
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from tests.support.cli import run, run_json, run_ok
from tests.support.hand import ManualStage
from tests.support.stores import Reads
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


def test_join_stops_partitions_and_the_history_has_their_standstill(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    world.consumer("g", "c2", {"t": 1})
    world.stable("g", 2)

    first, *_, last = run_json(world.zk, "history", "g")
    table = run_ok(world.zk, "history", "g").stdout.splitlines()

    assert first["standstill_ms"] is None  # nothing ran yet
    assert "joined c2" in last["trigger"] and last["moved"] == 2
    assert [name.split("/")[0] for name in last["joined"]] == ["c2"]
    assert 0 < last["to_last_stop_ms"] <= last["to_last_start_ms"] == last["standstill_ms"]
    assert table[0].split() == [
        "GENERATION", "EPOCH", "STARTED", "TRIGGER", "JOINED", "LEFT", "MOVED", "LAST-STOP-MS", "LAST-START-MS",
        "STANDSTILL-MS", "ASSIGNMENT-MS", "ATTEMPTS", "RESULT",
    ]  # fmt: skip
    assert table[-1].split()[0] == str(last["generation"]) and table[-1].endswith("finished")
    written = json.loads(world.data(PATHS.rebalance(last["generation"])) or b"")  # as zkCli shows it
    assert written["standstill_ms"] == last["standstill_ms"]


def test_replaced_rebalance_names_its_successor_and_passes_its_standstill_on(stage: ManualStage) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    three = stage.puppet("g", "c3", {"t": 1})
    hand.turn("g")  # stops are out
    one.obey()
    four = stage.puppet("g", "c4", {"t": 1})
    hand.turn("g")
    hand.settle("g", one, two, three, four)

    records = run_json(stage.zk, "history", "g")
    table = run_ok(stage.zk, "history", "g").stdout

    replaced, last = records[-2:]
    assert replaced["replaced_by"] == last["generation"] and replaced["finished_ms"] is None
    assert replaced["standstill_ms"] is None
    assert last["standstill_ms"] == last["finished_ms"] - replaced["started_ms"]
    assert f"replaced by {last['generation']}" in table
    node = one.store.get(PATHS.rebalance(replaced["generation"]))  # as zkCli shows it
    assert node is not None and json.loads(node.data)["replaced_by"] == last["generation"]


def test_the_history_says_why_and_since_when_a_member_was_evicted(stage: ManualStage) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand, max_poll_interval_ms=500)
    since = one.store.get(PATHS.channel("c1"))
    assert since is not None

    hand.evict(one, two)

    records = run_json(stage.zk, "history", "g")
    table = run_ok(stage.zk, "history", "g").stdout
    ((evicted, generation),) = [(each, record["generation"]) for record in records for each in record["evicted"]]
    assert evicted["member"] in records[-1]["left"] and evicted["member"].startswith("c1/")
    assert evicted["reason"].startswith("evicted: it ")
    assert evicted["since_ms"] <= records[-1]["started_ms"] - 500
    assert evicted["since_ms"] >= since.stat.mtime_ms - 100, "its last sign of life"
    assert table.split("Evicted:\n")[1].split()[:4] == ["GENERATION", "EVICTED", "SINCE", "WHY"]
    assert re.search(rf"^ +{generation}  {evicted['member']}  20.*Z  evicted: it ", table, re.MULTILINE)


def test_unacknowledged_command_is_unhealthy_once_it_is_old(world: World, stage: ManualStage) -> None:
    world.coordinator()
    world.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    eventually(lambda: puppet.options() == ["start-fetcher"], 5, "a start is sent")

    early = run(world.zk, "status", "--check", "--stuck-after-ms", "600000")
    late = run(world.zk, "status", "--check", "--stuck-after-ms", "0")

    assert early.exit_code == 0, early.stdout
    assert late.exit_code == 5
    assert "c1 has not acknowledged start-fetcher command-0000000000" in late.stdout
    assert "CompletingRebalance for " in late.stdout


def test_election_during_the_status_check_is_no_alarm(world: World) -> None:
    world.put(COORDINATOR_EPOCH, EpochRecord(3).to_bytes())

    def elected() -> None:
        world.put(COORDINATOR_EPOCH, EpochRecord(4).to_bytes())
        world.put(COORDINATOR, CoordinatorRecord("b", "host", 4).to_bytes())

    found = read_status(Reads(world.store).after(COORDINATOR_EPOCH, elected), world.brokers)

    assert found.coordinator is not None
    assert (found.coordinator.epoch, found.epoch) == (4, 4)

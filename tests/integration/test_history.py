"""`history G`: a group's last rebalances, and the standstill of each."""

from __future__ import annotations

import json
import re

from coordinator.zk.znodes.paths import GroupPaths
from tests.support.cli import run_json, run_ok
from tests.support.hand import ManualStage
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


def test_last_twenty_rebalances_are_kept_in_order(stage: ManualStage) -> None:
    hand = stage.hand()
    one, _ = stage.stable_pair(hand)
    first = hand.turn("g").state
    assert first is not None
    for partitions in range(5, 27):
        stage.topic("t", partitions)
        hand.settle("g", one, _)

    records = run_json(stage.zk, "history", "g")

    generation = first.generation + 22
    assert [record["generation"] for record in records] == list(range(generation - 19, generation + 1))


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

"""What an operator asks: `pause`, `resume`, `resign`, `history` and `status --check`, while groups are at work."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path

import pytest

from tests.support.cli import run, run_json, run_ok
from tests.support.hand import ManualStage
from tests.support.processes import node_process
from tests.support.stores import DeafStore, Interrupted, Reads, lost_reply
from tests.support.wait import eventually, within
from tests.support.world import World
from zk_group.coordinator.admin import control
from zk_group.coordinator.admin.health import read_status
from zk_group.coordinator.term.operator_requests import OperatorRequests
from zk_group.coordinator.zk import lease
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, PAUSED, GroupPaths
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord, Pause, PausedRecord, TurnRequest

PATHS = GroupPaths("g")


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zk_group.coordinator.term.operator_requests")


def obeyed(caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Wait until the elected coordinator logs that it has read it."""
    eventually(lambda: any(what in r.getMessage() for r in caplog.records), 5, f"the coordinator logs {what!r}")


def written(world: World) -> tuple[bytes | None, int, int]:
    """The coordinator's writes for `g`: state, commands ever sent, history."""
    commands = sum(world.created_commands("g", name) for name in world.names(PATHS.channels))
    return world.data(PATHS.state), commands, len(world.names(PATHS.history))


def test_a_paused_group_has_its_turn_when_it_is_resumed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.coordinator(sweep_interval_ms=200)
    world.topic("t", 4)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    run_ok(world.zk, "pause", "g", "--reason", "looking at c1")
    obeyed(caplog, "paused: group=g ")
    before = written(world)
    world.consumer("g", "c2", {"t": 1})
    eventually(lambda: world.registrations("g") == 2, 5, "c2 is registered")
    world.consumer("other", "c1", {"t": 1})
    world.stable("other", 1)  # the coordinator has acted since

    assert written(world) == before
    run_ok(world.zk, "resume", "g")
    obeyed(caplog, "resumed: group=g")
    world.stable("g", 2)
    assert "joined c2" in world.history("g")[-1].trigger
    assert world.data(PAUSED) is None


def test_consumers_of_a_paused_group_go_on(world: World, stage: ManualStage, caplog: pytest.LogCaptureFixture) -> None:
    world.coordinator()
    world.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    eventually(lambda: puppet.options() == ["start-fetcher"], 5, "a start is sent")
    run_ok(world.zk, "pause")
    obeyed(caplog, "paused: group=* ")

    stage.puppet("new", "c1", {"t": 1})
    puppet.obey()
    ThreadRuntime().sleep(1)  # a turn would be taken
    partition = min(puppet.running)
    puppet.move(partition, 7)

    assert (len(puppet.running), world.channel("g", "c1").running[partition]) == (2, 7)
    assert world.state("g").state == "CompletingRebalance"  # the rebalance is not recorded as completed
    assert world.data(GroupPaths("new").state) is None, "a group that appears waits, too"
    run_ok(world.zk, "resume")
    world.stable("g", 1)
    assert world.created_commands("g", "c1") == 1


def test_node_elected_during_a_pause_obeys_it_from_its_first_turn(world: World) -> None:
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    eventually(lambda: world.data(PATHS.id("c1")) is not None, 5, "c1 is registered")
    run_ok(world.zk, "pause", "g")

    world.coordinator(wrap=DeafStore, sweep_interval_ms=200)  # what it misses is seen by its sweep
    world.consumer("other", "c1", {"t": 1})
    world.stable("other", 1)
    assert world.data(PATHS.state) is None
    run_ok(world.zk, "resume")
    world.stable("g", 1)


def test_group_deleted_while_paused_leaves_nothing_behind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # what other tests have left
    world.coordinator(sweep_interval_ms=200)
    world.topic("t", 2)
    consumer = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    run_ok(world.zk, "pause")
    obeyed(caplog, "paused: group=* ")
    consumer.close()
    world.remove(PATHS.root)

    run_ok(world.zk, "resume")

    obeyed(caplog, "resumed: group=*")
    kept = [r for r in gc.get_objects() if isinstance(r, OperatorRequests) and r.held()]
    eventually(lambda: not any(asked.held() for asked in kept), 5, "nothing is held for it any more")
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)


def test_a_pause_that_cannot_be_read_changes_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    service = world.coordinator()
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    run_ok(world.zk, "pause", "g")
    obeyed(caplog, "paused: group=g ")

    world.put(PAUSED, b"{no json")
    eventually(lambda: PAUSED in service.problems.current(), 5, "it is reported")
    before = written(world)
    world.consumer("g", "c2", {"t": 1})
    eventually(lambda: world.registrations("g") == 2, 5, "c2 is registered")
    world.consumer("other", "c1", {"t": 1})
    world.stable("other", 1)

    assert written(world) == before
    assert PAUSED in run_ok(world.zk, "status").stdout
    assert run(world.zk, "resume", "g").exit_code == 1
    run_ok(world.zk, "resume")
    world.stable("g", 2)
    assert service.problems.current() == {}


def test_more_pauses_than_a_coordinator_reads_are_refused(world: World) -> None:
    """One that was written all the same would be unreadable, and lift every other for the next coordinator."""
    pauses = {f"g{number}": Pause("somebody", 1, "\N{ELEPHANT}" * 1000) for number in range(42)}
    world.put(PAUSED, PausedRecord(None, pauses).to_bytes())
    ensure(world.store, PATHS.skeleton)

    refused = run(world.zk, "pause", "g", "--reason", "\N{ELEPHANT}" * 1000)

    assert refused.exit_code == 2 and "has no room for more pauses" in refused.stderr
    assert PausedRecord.parse(PAUSED, world.data(PAUSED) or b"").groups.keys() == pauses.keys()


def test_request_for_a_turn_beside_another_one_leaves_that(world: World) -> None:
    ensure(world.store, [*PATHS.skeleton, COORDINATOR])
    racing = Interrupted(world.store, lambda: world.put(PATHS.request, TurnRequest("ann", 0).to_bytes()))

    assert control.request_turn(racing, "g", "bob", 1, None) == (False, "ann")


# ---- resign


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
    world.topic("t", 1)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)  # its first looks at the znode are over

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


# ---- history and status


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

    assert table[-1].split()[0] == str(last["generation"]) and table[-1].endswith("finished")
    written = json.loads(world.data(PATHS.rebalance(last["generation"])) or b"")  # as zkCli shows it
    assert written["standstill_ms"] == last["standstill_ms"]


def test_election_during_the_status_check_is_no_alarm(world: World) -> None:
    world.put(COORDINATOR_EPOCH, EpochRecord(3).to_bytes())

    def elected() -> None:
        world.put(COORDINATOR_EPOCH, EpochRecord(4).to_bytes())
        world.put(COORDINATOR, CoordinatorRecord("b", "host", 4).to_bytes())

    found = read_status(Reads(world.store).after(COORDINATOR_EPOCH, elected), world.brokers)

    assert found.coordinator is not None
    assert (found.coordinator.epoch, found.epoch) == (4, 4)

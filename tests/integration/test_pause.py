"""`pause` and `resume`: a paused group is not rebalanced until it is resumed, also after an election."""

from __future__ import annotations

import gc
import logging

import pytest

from coordinator.term.operator_requests import Asked
from coordinator.zk.update import ensure
from coordinator.zk.znodes.paths import PAUSED, GroupPaths
from coordinator.zk.znodes.records import Pause, PausedRecord
from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.stores import DeafStore
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coordinator.term.operator_requests")


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

    puppet.obey()
    partition = min(puppet.running)
    puppet.move(partition, 7)

    assert (len(puppet.running), world.channel("g", "c1").running[partition]) == (2, 7)
    assert world.state("g").state == "CompletingRebalance"  # the rebalance is not recorded as completed
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
    kept = [r for r in gc.get_objects() if isinstance(r, Asked) and r.held()]
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

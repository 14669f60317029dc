"""`status --check`: exit 5 when something is unhealthy, and what."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coordinator.admin.health import read_status
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


def test_a_healthy_group_exits_0_with_one_line(world: World) -> None:
    world.coordinator("a")
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    text = run(world.zk, "status", "--check")
    document = run(world.zk, "status", "--check", "-o", "json")

    assert (text.exit_code, document.exit_code) == (0, 0)
    assert text.stdout == "healthy: node a elected, epoch 1, 1 groups (1 with members), 1 topics\n"
    assert json.loads(document.stdout)["healthy"] is True


def test_every_unhealthy_finding_is_one_line_with_exit_5(world: World) -> None:
    world.put(PATHS.segments, SegmentsRecord(paused="full \x1b[31mdisk").to_bytes())
    world.put(PATHS.state, b"{")

    text = run(world.zk, "status", "--check")
    document = run(world.zk, "status", "--check", "-o", "json")

    assert (text.exit_code, document.exit_code) == (5, 5)
    assert text.stderr == ""
    lines = text.stdout.splitlines()
    assert len(lines) == 3 and all(line.startswith("unhealthy: ") for line in lines)
    assert "no coordinator is elected" in lines[0]
    assert "group g: its fetchers are paused: full \\x1b[31mdisk" in lines[1]
    assert PATHS.state in lines[2]
    found = json.loads(document.stdout)
    assert found["healthy"] is False
    assert [(item["check"], item["group"]) for item in found["findings"]] == [
        ("no-coordinator", None), ("fetching-paused", "g"), ("unreadable", None),
    ]  # fmt: skip


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


def test_coordinator_znode_made_by_hand_is_unhealthy(world: World) -> None:
    world.put(COORDINATOR_EPOCH, EpochRecord(3).to_bytes())
    world.put(COORDINATOR, CoordinatorRecord("me", "host", 4).to_bytes())

    result = run(world.zk, "status", "--check")

    assert result.exit_code == 5
    assert "is persistent" in result.stdout and "with epoch 4, but the epoch's znode has epoch 3" in result.stdout


class Electing(FrontStore):
    """A node is elected between the first reads of the epoch and of the coordinator."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self._world = world
        self._has_elected = False

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = self.behind.get_many(paths, watch)
        if COORDINATOR_EPOCH in paths and not self._has_elected:
            self._has_elected = True
            self._world.put(COORDINATOR_EPOCH, EpochRecord(4).to_bytes())
            self._world.put(COORDINATOR, CoordinatorRecord("b", "host", 4).to_bytes())
        return found


def test_election_during_the_status_check_is_no_alarm(world: World) -> None:
    world.put(COORDINATOR_EPOCH, EpochRecord(3).to_bytes())

    found = read_status(Electing(world), world.brokers)

    assert found.coordinator is not None
    assert (found.coordinator.epoch, found.epoch) == (4, 4)


def test_a_pause_is_unhealthy_only_when_it_is_forgotten(world: World) -> None:
    world.elected(world.coordinator())
    world.put(PATHS.root)
    run_ok(world.zk, "pause", "g", "--reason", "a look")

    early = run(world.zk, "status", "--check")
    late = run(world.zk, "status", "--check", "--stuck-after-ms", "0")

    assert early.exit_code == 0 and early.stdout.endswith(", 1 paused\n")
    assert late.exit_code == 5 and "(a look)" in late.stdout

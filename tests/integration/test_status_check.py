"""`status --check`: exit 5 when something is unhealthy, and what."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.admin.health import read_status
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from tests.support.cli import run
from tests.support.hand import ManualStage
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")


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

"""ZooKeeper's wall clock, as a coordinator counts it."""

from __future__ import annotations

from coordinator.term.term import ServerClock
from coordinator.zk.store import Create, Node, Watch
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.unit.manual import ManualRuntime

ELECTED_MS = 1_800_000_000_000


class ElectedNow(MemoryTreeStore):
    """The epoch was written at `ELECTED_MS` by the server's clock."""

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        node = super().get(path, watch)
        return Node(node.data, node.stat._replace(mtime_ms=ELECTED_MS)) if node else None


def clock_of(runtime: ManualRuntime, with_epoch: bool = True) -> ServerClock:
    tree = MemoryTree()
    tree.ensure("/consumers")
    if with_epoch:
        tree.commit([Create(COORDINATOR_EPOCH, b"{}")], session=0)
    return ServerClock(ElectedNow(tree, 1, lambda: None, 3.0), runtime)


def test_clock_runs_from_the_election_without_being_read_for_days() -> None:
    runtime = ManualRuntime()
    clock = clock_of(runtime)
    clock.begin()

    runtime.now += 10 * 86_400

    assert clock.now_ms() == ELECTED_MS + 10 * 86_400_000


def test_without_an_epoch_nothing_is_old() -> None:
    clock = clock_of(ManualRuntime(), with_epoch=False)
    clock.begin()

    assert clock.now_ms() == 0

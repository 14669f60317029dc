"""Slots without Spark: a group of them in threads, with files of their own and a log in memory."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.hand import Wrap
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.config import Subscription
from zk_group.consumer.sealing.segment_check import ORPHAN_AFTER_S
from zk_group.consumer.sealing.segment_files import ClaimedFiles, SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import PoolPost, Slot
from zk_group.coordinator.zk.runtime import Task, ThreadRuntime
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.partitions import PartitionSet
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Segment

SESSION_MS = 2000
PATHS = GroupPaths("g")


class Later(ThreadRuntime):
    """Its wall clock is ahead: files without a segment are old enough for a sweep."""

    def wall_ms(self) -> int:
        return super().wall_ms() + round(ORPHAN_AFTER_S * 1000) + 60_000


class _Full(ClaimedFiles):
    """A folder on a disk that is full."""

    def __init__(self, whole: ClaimedFiles) -> None:
        self.whole = whole
        self.url = "file:///full"

    def write(self, file: str, batches: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", file)

    def remove(self, file: str) -> None:
        """Nothing was written."""


class SlotBench:
    """A group of slots in threads that fetch topic `t` from memory.

    :param access: how its sessions are opened.  :param wrap: in front of the session of the slots' driver.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        group: str = "g",
        access: ZooKeeperAccess | None = None,
        wrap: Wrap = lambda store: store,
    ) -> None:
        self.world = world
        self.paths = GroupPaths(group)
        self.log = MemoryLog()
        self.folder = SegmentFolder(str(folder))
        self._access = access
        opener = kazoo_factory(world.zk, SESSION_MS, access=access)
        self.post = PoolPost(lambda: wrap(opener()), ThreadRuntime(), group, "p", "run-1")
        self.results: dict[int, dict[str, Any]] = {}
        self.running: list[tuple[Slot, Task]] = []

    def slot(
        self,
        number: int,
        zk: str = "",
        most_failing_s: float = math.inf,
        wrap: Wrap = lambda store: store,
        **options: Any,
    ) -> Slot:
        options = {"seal_interval_ms": 20, "driver_gone_ms": 1000, "session_timeout_ms": SESSION_MS} | options
        config = SlotConfig(
            zk=zk or self.world.zk,
            group=self.paths.group,
            pool="p",
            log_dir="m",
            segments_dir=self.folder.url,
            **options,
        )
        spec = SlotSpec(config, Subscription({"t": 1}), number, "run-1", "0")
        opener = kazoo_factory(config.zk, config.session_timeout_ms, access=self._access)
        slot = Slot(spec, self.log, lambda: wrap(opener()), ThreadRuntime(), most_failing_s=most_failing_s)
        task = ThreadRuntime().spawn(lambda: self.results.update({number: slot.run()}), f"slot-{number}")
        self.running.append((slot, task))
        return slot

    def break_files(self, slot: Slot) -> None:
        """From now on this slot can write no file."""
        slot.sealer._segments._files = _Full(slot.sealer._segments._files)

    def mend_files(self, slot: Slot) -> None:
        """It can again."""
        full = slot.sealer._segments._files
        assert isinstance(full, _Full)
        slot.sealer._segments._files = full.whole

    def end(self, records: int) -> None:
        """So many records are in each partition by now."""
        self.log.end = records

    def grow(self, records: int) -> None:
        """So many records are in each partition, and one more seal is done."""
        seals = len(self.segments())
        self.end(records)
        eventually(lambda: len(self.segments()) > seals, 10, "one more seal")

    def segments(self) -> list[Segment]:
        store = self.world.store
        listing = store.children(self.paths.segments)
        found = [store.get(self.paths.segment(name)) for name in (listing.names if listing else [])]
        nodes = sorted((node for node in found if node), key=lambda node: node.stat.czxid)
        return [Segment.parse("segment", node.data) for node in nodes]

    def sealed(self) -> dict[int, list[int]]:
        """Partition -> every offset in a sealed file, in the order of the seals."""
        found: dict[int, list[int]] = {}
        for segment in self.segments():
            for batch in self.folder.records(segment):
                for row in batch.to_pylist():
                    found.setdefault(row["partition"], []).append(row["offset"])
        return found

    def runs(self, consumer: str) -> PartitionSet:
        return frozenset(self.world.channel(self.paths.group, consumer).running)

    def all_sealed(self, partitions: int, records: int, timeout_s: float = 20.0) -> None:
        def whole() -> bool:
            found = self.sealed()
            assert found == {number: list(range(records)) for number in range(partitions)}, {
                number: (len(offsets), len(set(offsets))) for number, offsets in found.items()
            }
            return True

        eventually(whole, timeout_s, "every record is sealed, once and in order")

    def close(self) -> None:
        for slot, _ in self.running:
            slot.stop("the test is over")
        for _, task in self.running:
            task.join(10)
        self.post.close()


@contextmanager
def slots(world: World, folder: Path) -> Iterator[SlotBench]:
    """Group `g`, whose driver keeps up to ten slots; they end with it."""
    bench = SlotBench(world, folder)
    bench.post.keep(10)
    try:
        yield bench
    finally:
        bench.close()

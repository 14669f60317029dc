"""Slots without Spark, on a real ZooKeeper: replies get lost, partitions move, drivers die, and all is sealed once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer.config import Subscription
from consumer.segment_files import SegmentFolder
from consumer.spark.config import SlotConfig, SlotSpec
from consumer.spark.post import PoolPost
from consumer.spark.slot import Slot
from consumer.spark.sweep import ORPHAN_AFTER_S, sweep
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.paths import GroupPaths
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.sealed import Segment, SegmentsRecord
from coordinator.zk.store import SetData
from tests.support.memlog import MemoryLog
from tests.support.proxy import MULTI, SYNC, Proxy, op_code
from tests.support.wait import eventually
from tests.support.world import World, a_world

SESSION_MS = 2000
PATHS = GroupPaths("g")


class Bench:
    """A group `g` of slots in threads that fetch topic `t` from memory."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.log = MemoryLog()
        self.folder = SegmentFolder(str(folder))
        self.post = PoolPost(kazoo_factory(world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-1")
        self.results: dict[int, dict[str, Any]] = {}
        self._slots: list[tuple[Slot, threading.Thread]] = []

    def slot(self, number: int, zk: str = "", **options: Any) -> Slot:
        options = {"seal_interval_ms": 20, "driver_gone_ms": 1000, "session_timeout_ms": SESSION_MS} | options
        config = SlotConfig(
            zk=zk or self.world.zk, group="g", pool="p", log_dir="m", segments_dir=self.folder.url, **options
        )
        spec = SlotSpec(config, Subscription({"t": 1}), number, "run-1", "0")
        slot = Slot(spec, self.log, kazoo_factory(config.zk, SESSION_MS), ThreadRuntime())
        thread = threading.Thread(target=lambda: self.results.update({number: slot.run()}), daemon=True)
        thread.start()
        self._slots.append((slot, thread))
        return slot

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
        listing = store.children(PATHS.segments)
        found = [store.get(PATHS.segment(name)) for name in (listing.names if listing else [])]
        nodes = sorted((node for node in found if node), key=lambda node: node.stat.czxid)
        return [Segment.parse("segment", node.data) for node in nodes]

    def sealed(self) -> dict[int, list[int]]:
        """Partition -> every offset in a sealed file, in the order of the seals."""
        found: dict[int, list[int]] = {}
        for segment in self.segments():
            for batch in self.folder.read(segment.file, segment.size, segment.rows):
                for row in batch.to_pylist():
                    found.setdefault(row["partition"], []).append(row["offset"])
        return found

    def all_sealed(self, partitions: int, records: int, timeout_s: float = 20.0) -> None:
        def whole() -> bool:
            found = self.sealed()
            assert found == {number: list(range(records)) for number in range(partitions)}, {
                number: (len(offsets), len(set(offsets))) for number, offsets in found.items()
            }
            return True

        eventually(whole, timeout_s, "every record is sealed, once and in order")

    def close(self) -> None:
        for slot, _ in self._slots:
            slot.stop("the test is over")
        for _, thread in self._slots:
            thread.join(10)
        self.post.close()


@pytest.fixture
def bench(world: World, zookeeper_proxy: Proxy, tmp_path: Path) -> Iterator[Bench]:
    """Closed before the proxy is, through which some slots leave."""
    bench = Bench(world, tmp_path)
    bench.post.keep(10)
    yield bench
    bench.close()


@pytest.fixture
def world(zk: str) -> Iterator[World]:
    with a_world(zk) as world:
        world.topic("t", 4)
        world.coordinator()
        yield world


def is_seal(request: bytes) -> bool:
    return op_code(request) == MULTI and b"/segments/segment-" in request


@pytest.mark.parametrize("is_reply", [True, False])
def test_a_seal_whose_reply_or_request_is_lost_is_done_once(
    bench: Bench, zookeeper_proxy: Proxy, is_reply: bool
) -> None:
    chroot = bench.world.zk[bench.world.zk.index("/") :]
    bench.slot(0, zk=zookeeper_proxy.hosts + chroot)
    for records in range(100, 600, 100):
        loss = zookeeper_proxy.drop_reply(is_seal) if is_reply else zookeeper_proxy.drop_request(is_seal)
        bench.end(records)
        loss.wait()
        bench.all_sealed(4, records)
    assert bench.world.state("g").generation == 1


def test_a_seal_is_done_once_though_the_question_what_became_of_it_is_lost_too(
    bench: Bench, zookeeper_proxy: Proxy
) -> None:
    chroot = bench.world.zk[bench.world.zk.index("/") :]
    bench.slot(0, zk=zookeeper_proxy.hosts + chroot)
    for records in range(100, 600, 100):
        seal = zookeeper_proxy.drop_reply(is_seal)
        bench.end(records)
        seal.wait()
        zookeeper_proxy.drop_request(SYNC).wait()
        bench.all_sealed(4, records)


def test_a_connection_that_is_cut_again_and_again_costs_no_record(bench: Bench, zookeeper_proxy: Proxy) -> None:
    chroot = bench.world.zk[bench.world.zk.index("/") :]
    bench.slot(0, zk=zookeeper_proxy.hosts + chroot)
    for records in range(100, 1600, 100):
        bench.grow(records)
        zookeeper_proxy.cut()
    bench.all_sealed(4, 1500)


def test_partitions_that_move_while_records_come_are_sealed_once(bench: Bench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    bench.end(5000)
    second = bench.slot(1)
    state = bench.world.stable("g", 2)
    bench.end(10_000)
    second.stop("one is enough")
    bench.world.stable("g", 1, above=state.generation)
    bench.end(11_000)
    bench.all_sealed(4, 11_000)


def test_a_slot_that_is_taken_over_by_a_newer_one_of_its_name_leaves_nothing_undone_or_twice(bench: Bench) -> None:
    bench.slot(0)
    bench.end(3000)
    eventually(lambda: bench.segments(), 10, "something is sealed")
    bench.slot(0)
    eventually(lambda: bench.results.get(0), 10, "the older one ends")
    assert "another process has registered" in bench.results[0]["reason"]
    bench.end(4000)
    bench.all_sealed(4, 4000)


def test_while_the_coordinator_says_paused_nothing_is_fetched(bench: Bench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    bench.world.store.commit([SetData(PATHS.segments, SegmentsRecord(paused="the backlog is full").to_bytes())])
    eventually(lambda: bench._slots[0][0]._is_paused, 5, "the slot has seen it")
    bench.end(100)
    bench.world.store.commit([SetData(PATHS.segments, SegmentsRecord(seal_interval_ms=10).to_bytes())])
    bench.all_sealed(4, 100)


def test_a_slot_leaves_when_the_pool_says_so_and_seals_first(bench: Bench) -> None:
    bench.slot(0, seal_interval_ms=60_000)
    bench.slot(1, seal_interval_ms=60_000)
    bench.world.stable("g", 2)
    bench.end(100)
    eventually(lambda: all(slot.sealer.is_open for slot, _ in bench._slots), 10, "both have fetched")
    bench.post.keep(0)
    eventually(lambda: len(bench.results) == 2, 10, "both have left")
    assert {result["reason"] for result in bench.results.values()} == {"told by its driver"}
    assert bench.post.unreleased(["p-slot-0", "p-slot-1"]) == []
    bench.all_sealed(4, 100)


def test_only_slots_over_the_pools_number_leave(bench: Bench) -> None:
    bench.slot(0)
    bench.slot(1)
    bench.world.stable("g", 2)
    bench.post.keep(1)
    eventually(lambda: 1 in bench.results, 10, "the second has left")
    assert 0 not in bench.results


def test_a_slot_whose_driver_is_gone_leaves_but_not_at_once(bench: Bench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    bench.post.close()
    bench.post.keep(10)  # the driver had only lost its session
    bench.post.close()
    eventually(lambda: 0 in bench.results, 10, "it has left")
    assert bench.results[0]["reason"] == "its driver is gone"


def test_a_newer_life_of_the_pool_ends_the_slots_of_the_older(bench: Bench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    newer = PoolPost(kazoo_factory(bench.world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-2")
    newer.keep(10)
    eventually(lambda: 0 in bench.results, 10, "it has left")
    newer.close()
    assert bench.results[0]["reason"] == "another driver has taken the pool over"


class Later(ThreadRuntime):
    """A wall clock that is ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + round(ORPHAN_AFTER_S * 1000) + 60_000


def test_a_sweep_removes_what_no_segment_names_of_incarnations_that_are_over(bench: Bench) -> None:
    slot = bench.slot(0)
    bench.end(100)
    bench.all_sealed(4, 100)
    channel = bench.world.channel("g", "p-slot-0")
    mine = f"g/p-slot-0/{channel.incarnation}-0000009999.arrow"
    dead = "g/p-slot-0/deadbeef-0000000001.arrow"
    left = "g/p-slot-0/.tmp-deadbeef-0000000002.arrow"
    for file in (mine, dead, left):
        Path(bench.folder.url, file).write_bytes(b"x")
    assert sweep(bench.world.store, ThreadRuntime(), bench.folder, "g") == 0  # too young
    assert sweep(bench.world.store, Later(), bench.folder, "g") == 2
    assert bench.folder.sizes([mine, dead, left]) == [1, None, None]
    slot.stop("over")
    eventually(lambda: 0 in bench.results, 10, "it has left")
    assert sweep(bench.world.store, Later(), bench.folder, "g") == 1
    bench.all_sealed(4, 100)

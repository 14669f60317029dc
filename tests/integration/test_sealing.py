"""Slots without Spark: they are paused, bounced and left by their drivers; all is sealed once, and files are swept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.proxy import Proxy
from tests.support.sealed import SealedGroup
from tests.support.slots import PATHS, SESSION_MS, Later, SlotBench, slots
from tests.support.wait import Ahead, eventually, within
from tests.support.world import World
from zk_group.consumer.config import Subscription
from zk_group.consumer.sealing.segment_check import sweep
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import Directions, PoolPost
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import SetData
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord


@pytest.fixture
def bench(served: World, tmp_path: Path) -> Iterator[SlotBench]:
    """A test asks for a proxy before it: slots leave through that."""
    with slots(served, tmp_path) as bench:
        yield bench


def test_a_connection_that_is_cut_again_and_again_costs_no_record(zookeeper_proxy: Proxy, bench: SlotBench) -> None:
    bench.slot(0, zk=zookeeper_proxy.hosts + bench.world.zk[bench.world.zk.index("/") :])
    for records in range(100, 1600, 100):
        bench.grow(records)
        zookeeper_proxy.cut()
    bench.all_sealed(4, 1500)


def test_slot_taken_over_by_a_newer_one_of_its_name_ends_with_the_reason(bench: SlotBench) -> None:
    bench.slot(0)
    bench.grow(100)
    bench.slot(0)
    eventually(lambda: bench.results.get(0), 10, "the older one ends")
    assert "another process has registered" in bench.results[0]["reason"]
    bench.end(200)
    bench.all_sealed(4, 200)


# ---- paused


PAUSED = SegmentsRecord(paused="the storage is being moved")


def tell(bench: SlotBench, record: SegmentsRecord) -> None:
    """Put `record` into the data of `segments`, and wait until every slot has read it."""
    bench.world.store.commit([SetData(PATHS.segments, record.to_bytes())])

    def all_know() -> bool:
        return all(slot.sealer.paused == record.paused for slot, thread in bench.running if thread.is_alive())

    eventually(all_know, 10, f"every slot has read {record}")


def test_paused_slot_keeps_its_lease_and_partitions_beyond_its_poll_interval(bench: SlotBench) -> None:
    slot = bench.slot(0, max_poll_interval_ms=1000)
    state = bench.world.stable("g", 1)
    tell(bench, PAUSED)
    touched = bench.world.channel("g", "p-slot-0").touched
    # Three signs of life, each a third of what it may be silent, and then as many again.
    eventually(lambda: bench.world.channel("g", "p-slot-0").touched >= touched + 6, 20, "it lives on")
    assert slot.member.may_fetch
    assert slot.member.registrations == 1
    assert bench.world.state("g").generation == state.generation
    tell(bench, SegmentsRecord())
    bench.end(100)
    bench.all_sealed(4, 100)


def test_paused_pool_ends_on_request_and_the_next_resumes_at_the_sealed_offset(bench: SlotBench) -> None:
    slot = bench.slot(0, seal_interval_ms=60_000)
    bench.world.stable("g", 1)
    bench.end(500)
    eventually(lambda: slot.sealer.is_open, 10, "it has fetched")
    tell(bench, PAUSED)
    bench.post.keep(0)
    eventually(lambda: 0 in bench.results, 10, "it has left")
    assert bench.segments() == []
    bench.post.keep(10)
    tell(bench, SegmentsRecord())
    bench.slot(1)
    bench.all_sealed(4, 500)


def test_slot_seals_and_leaves_on_request_of_the_pool(bench: SlotBench) -> None:
    bench.slot(0, seal_interval_ms=60_000)
    bench.slot(1, seal_interval_ms=60_000)
    bench.world.stable("g", 2)
    bench.end(100)
    eventually(lambda: all(slot.sealer.is_open for slot, _ in bench.running), 10, "both have fetched")
    bench.post.keep(0)
    eventually(lambda: len(bench.results) == 2, 10, "both have left")
    assert {result["reason"] for result in bench.results.values()} == {"stopped by its driver"}
    assert bench.post.unreleased(["p-slot-0", "p-slot-1"]) == []
    bench.all_sealed(4, 100)


def test_slot_of_a_dead_driver_leaves_after_a_delay(bench: SlotBench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    bench.post.close()
    bench.post.keep(10)  # the driver had only lost its session
    bench.post.close()
    eventually(lambda: 0 in bench.results, 10, "it has left")
    assert bench.results[0]["reason"] == "its driver is gone"


def test_a_newer_life_of_the_pool_ends_the_slots_of_the_older(bench: SlotBench) -> None:
    bench.slot(0)
    bench.world.stable("g", 1)
    newer = PoolPost(kazoo_factory(bench.world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-2")
    newer.keep(10)
    eventually(lambda: 0 in bench.results, 10, "it has left")
    newer.close()
    assert bench.results[0]["reason"] == "another driver has taken the pool over"


# ---- slots are static members


def test_every_slot_in_turn_is_bounced_and_no_other_is_stopped_once(bench: SlotBench) -> None:
    slots = {number: bench.slot(number) for number in range(3)}
    before = bench.world.stable("g", 3)
    bench.end(100)
    bench.all_sealed(4, 100)
    for number, slot in slots.items():
        others = [f"p-slot-{other}" for other in slots if other != number]
        heard = [bench.world.created_commands("g", name) for name in others]

        slot.stop("bounced")
        eventually(lambda number=number: bench.results.pop(number, None), 10, "it has left")  # type: ignore[misc]
        bench.slot(number)

        wanted = before.target[f"p-slot-{number}"].partitions
        eventually(lambda name=f"p-slot-{number}", wanted=wanted: bench.runs(name) == wanted, 10, "it has what it had")  # type: ignore[misc]
        assert [bench.world.created_commands("g", name) for name in others] == heard
    assert bench.world.stable("g", 3).generation == before.generation
    bench.end(200)
    bench.all_sealed(4, 200)


def test_a_slot_that_is_one_too_many_gives_its_seat_up_at_once(bench: SlotBench) -> None:
    for number in range(2):
        bench.slot(number, session_timeout_ms=8000)
    bench.world.stable("g", 2)

    bench.post.keep(1)

    bench.world.stable("g", 1, timeout_s=6, wait=within)  # and not only after the session timeout (8 s)
    assert bench.world.names(PATHS.seats) == ["p-slot-0"]
    bench.grow(100)  # the other one goes on


def test_slot_whose_seals_keep_failing_ends_with_the_reason_and_others_go_on(bench: SlotBench) -> None:
    failing, good = bench.slot(0, most_failing_s=1.0), bench.slot(1)
    bench.end(100)
    bench.all_sealed(4, 100)
    bench.break_files(failing)

    bench.end(500)

    eventually(lambda: 0 in bench.results, 15, "it has ended")
    assert "sealing fails: [Errno 28] No space left on device" in bench.results[0]["reason"]
    bench.all_sealed(4, 500)
    assert good.sealer.problem is None


# ---- a slot whose driver is away


def test_absence_of_a_driver_counts_from_when_it_is_seen_and_from_zero_each_time(world: World, tmp_path: Path) -> None:
    post = PoolPost(kazoo_factory(world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-1")
    post.keep(2)
    options = {"log_dir": "m", "segments_dir": str(tmp_path), "driver_gone_ms": 30_000}
    config, clock = SlotConfig(zk=world.zk, group="g", pool="p", **options), Ahead()  # type: ignore[arg-type]
    directions = Directions(SlotSpec(config, Subscription({"t": 1}), 0, "run-1", "0"), clock)

    def sees_the_pool(there: bool) -> None:
        """Read until the pool's znode was seen to be there, or not to."""

        def is_seen() -> bool:
            assert directions.read(world.store) is None, "no reason to leave"
            return (directions._pool.node is not None) == there

        eventually(is_seen, 5, f"the slot sees that the pool's znode is {'there' if there else 'gone'}")

    sees_the_pool(True)
    clock.ahead_s += 60.0  # without requests; the driver's session expired
    for _ in range(3):
        post.close()
        sees_the_pool(False)
        clock.ahead_s += 29.0
        sees_the_pool(False)
        post.keep(2)
        sees_the_pool(True)
    post.close()
    sees_the_pool(False)

    clock.ahead_s += 31.0

    assert directions.read(world.store) == "its driver is gone"


# ---- files without a segment znode


@pytest.fixture
def group(world: World, tmp_path: Path) -> SealedGroup:
    return SealedGroup(world.store, tmp_path)


def swept(group: SealedGroup, when: type[ThreadRuntime] = Later) -> int:
    return sweep(group.store, when(), group.folder, "g")


def test_collected_segment_files_are_swept_while_their_consumer_is_alive(group: SealedGroup) -> None:
    collected = [group.write().file for _ in range(3)]
    kept = [group.segment(group.seal()).file for _ in range(2)]
    waiting = group.write().file  # its multi may be on its way
    others = [waiting.replace("abc", "abd"), waiting.replace("abc", ".tmp-abd")]
    for file in others:
        Path(group.folder.url, file).write_bytes(b"x")
    group.channel(Channel(incarnation="abc", sealed=kept[-1]))
    every = [*collected, *kept, waiting, *others]

    assert swept(group, ThreadRuntime) == 0, "they are too young"

    assert swept(group) == 5
    left = [file for file, size in zip(every, group.folder.sizes(every), strict=True) if size is not None]
    assert left == [*kept, waiting]
    group.channel(Channel(incarnation="abc", sealed=kept[-1], ended="it has left"))
    assert swept(group) == 1, "what it has not sealed"


def test_no_file_of_a_living_consumer_is_swept_before_it_has_sealed_one(group: SealedGroup) -> None:
    waiting = group.write().file

    assert swept(group) == 0
    assert group.folder.sizes([waiting]) != [None]


def test_last_sealed_file_is_swept_once_a_coordinator_on_another_node_collected_it(group: SealedGroup) -> None:
    """A coordinator whose node cannot reach the folder removes the znode only."""
    name = group.seal()
    group.channel(Channel(incarnation="abc", sealed=group.segment(name).file))
    assert swept(group) == 0, "a segment names it"

    group.remove(name)

    assert swept(group) == 1

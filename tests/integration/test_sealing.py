"""Slots without Spark: replies get lost, partitions move, drivers die, and all is sealed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.sealing.segment_check import sweep
from consumer.spark.fetchers.slot import PoolPost
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create, SetData
from coordinator.zk.znodes.segments import Query, Segment, SegmentsRecord
from drills.faults.proxy import MULTI, SYNC, op_code
from tests.support.proxy import Proxy
from tests.support.slots import PATHS, SESSION_MS, Later, SlotBench
from tests.support.wait import eventually, within
from tests.support.world import World, a_world


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Iterator[SlotBench]:
    """Tests ask for a proxy before it: slots leave through that."""
    bench = SlotBench(world, tmp_path)
    bench.post.keep(10)
    yield bench
    bench.close()


@pytest.fixture
def world(zk: str) -> Iterator[World]:
    with a_world(zk) as world:
        world.topic("t", 4)
        world.coordinator()
        yield world


def behind(bench: SlotBench, proxy: Proxy) -> None:
    """A slot that reaches ZooKeeper through a proxy."""
    bench.slot(0, zk=proxy.hosts + bench.world.zk[bench.world.zk.index("/") :])


def is_seal(request: bytes) -> bool:
    return op_code(request) == MULTI and b"/segments/segment-" in request


@pytest.mark.parametrize("is_reply", [True, False])
def test_a_seal_whose_reply_or_request_is_lost_is_done_once(
    zookeeper_proxy: Proxy, bench: SlotBench, is_reply: bool
) -> None:
    behind(bench, zookeeper_proxy)
    for records in range(100, 600, 100):
        loss = zookeeper_proxy.drop_reply(is_seal) if is_reply else zookeeper_proxy.drop_request(is_seal)
        bench.end(records)
        loss.wait()
        bench.all_sealed(4, records)
    assert bench.world.state("g").generation == 1


def test_seal_is_done_once_after_lost_replies_of_the_seal_and_its_check(
    zookeeper_proxy: Proxy, bench: SlotBench
) -> None:
    behind(bench, zookeeper_proxy)
    for records in range(100, 600, 100):
        seal = zookeeper_proxy.drop_reply(is_seal)
        bench.end(records)
        seal.wait()
        zookeeper_proxy.drop_request(SYNC).wait()
        bench.all_sealed(4, records)


def test_a_connection_that_is_cut_again_and_again_costs_no_record(zookeeper_proxy: Proxy, bench: SlotBench) -> None:
    behind(bench, zookeeper_proxy)
    for records in range(100, 1600, 100):
        bench.grow(records)
        zookeeper_proxy.cut()
    bench.all_sealed(4, 1500)


def test_partitions_that_move_during_fetching_are_sealed_once(bench: SlotBench) -> None:
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


def test_slot_taken_over_by_a_newer_one_of_its_name_loses_and_repeats_no_record(bench: SlotBench) -> None:
    bench.slot(0)
    bench.end(3000)
    eventually(lambda: bench.segments(), 10, "something is sealed")
    bench.slot(0)
    eventually(lambda: bench.results.get(0), 10, "the older one ends")
    assert "another process has registered" in bench.results[0]["reason"]
    bench.end(4000)
    bench.all_sealed(4, 4000)


# ---- paused


PAUSED = SegmentsRecord(paused="the storage is being moved")


def tell(bench: SlotBench, record: SegmentsRecord) -> None:
    """Put `record` into the data of `segments`, and wait until every slot has read it."""
    bench.world.store.commit([SetData(PATHS.segments, record.to_bytes())])

    def all_know() -> bool:
        return all(slot.sealer.paused == record.paused for slot, thread in bench.running if thread.is_alive())

    eventually(all_know, 10, f"every slot has read {record}")


def test_nothing_is_fetched_while_paused_and_later_records_are(bench: SlotBench) -> None:
    slot = bench.slot(0)
    bench.world.stable("g", 1)
    tell(bench, PAUSED)
    bench.end(100)
    tell(bench, SegmentsRecord(seal_interval_ms=10))
    bench.all_sealed(4, 100)
    assert slot.sealer.refetched == 0


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


def test_a_paused_slot_obeys_stop_fetcher_without_sealing_and_nothing_is_lost(bench: SlotBench) -> None:
    slot = bench.slot(0, seal_interval_ms=60_000)
    bench.world.stable("g", 1)
    bench.end(500)
    eventually(lambda: slot.sealer.is_open, 10, "it has fetched")
    tell(bench, PAUSED)

    other = bench.slot(1)
    state = bench.world.stable("g", 2)

    assert bench.segments() == [], "nothing was sealed for the rebalance"
    assert set(bench.world.offsets("g").values()) == {0}
    assert slot.sealer.refetched > 0
    tell(bench, SegmentsRecord())
    other.stop("one is enough")  # and what the first holds open is sealed when it gets everything
    bench.world.stable("g", 1, above=state.generation)
    slot.stop("over")
    eventually(lambda: len(bench.results) == 2, 10, "both have left")
    bench.slot(2)
    bench.all_sealed(4, 500)


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


def test_full_backlog_pauses_slots_until_a_query_catches_up_without_record_loss(zk: str, tmp_path: Path) -> None:
    with a_world(zk) as world:
        world.topic("t", 4)
        world.coordinator(backlog_interval_ms=50, max_backlog_segments=20)
        bench = SlotBench(world, tmp_path)
        bench.post.keep(10)
        try:
            for number in range(3):
                bench.slot(number)
            world.stable("g", 3)
            _fill_and_drain(bench)
        finally:
            bench.close()


def _fill_and_drain(bench: SlotBench) -> None:
    """Three times: records arrive until the slots are paused, then a query finishes everything."""
    store, seen = bench.world.store, {}
    store.commit([SetData(PATHS.queries, b""), Create(PATHS.query("q"), Query("run", 0, 0).to_bytes())])

    def is_paused() -> bool:
        return SegmentsRecord.parse("segments", bench.world.data(PATHS.segments) or b"").paused is not None

    def see() -> dict[str, tuple[int, Segment]]:
        names = bench.world.names(PATHS.segments)
        nodes = zip(names, store.get_many([PATHS.segment(name) for name in names]), strict=True)
        return {name: (node.stat.czxid, Segment.parse(name, node.data)) for name, node in nodes if node}

    def is_paused_by_more() -> bool:
        bench.end(bench.log.end + 20)
        return is_paused()

    for _ in range(3):
        eventually(is_paused_by_more, 20, "the slots are paused")
        assert 20 < len(bench.segments()) < 60, "only records in flight exceed the bound"
        found = see()
        seen |= found
        finished = max(czxid for czxid, _ in found.values())
        store.commit([SetData(PATHS.query("q"), Query("run", finished, 0).to_bytes())])
        eventually(lambda: not is_paused(), 10, "they may resume")

    def ranges(partition: int) -> list[tuple[int, int]]:
        every = (item for _, segment in seen.values() for item in segment.ranges)
        return sorted((item.first, item.next) for item in every if item.partition == partition)

    def is_whole() -> bool:
        seen.update(see())
        assert [ranges(partition)[-1][1] for partition in range(4)] == [bench.log.end] * 4
        return True

    eventually(is_whole, 20, "all is sealed")
    for partition in range(4):
        firsts, nexts = zip(*ranges(partition), strict=True)
        assert firsts == (0, *nexts[:-1]), "no gap, no overlap"


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


def test_only_slots_over_the_pools_number_leave(bench: SlotBench) -> None:
    bench.slot(0)
    bench.slot(1)
    bench.world.stable("g", 2)
    bench.post.keep(1)
    eventually(lambda: 1 in bench.results, 10, "the second has left")
    assert 0 not in bench.results


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


def test_sweep_removes_unreferenced_files_of_ended_incarnations(bench: SlotBench) -> None:
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

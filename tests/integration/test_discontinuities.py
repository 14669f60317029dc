"""Why a partition does not continue where its last segment ended: written once, kept by every owner, sealed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.spark.fetchers.slot import Slot
from coordinator.admin.offsets import write_offsets
from coordinator.admin.reset_offsets import NewOffset, PartitionOffsets
from coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity, TopicPartition
from coordinator.zk.znodes.records import OffsetRecord
from coordinator.zk.znodes.segments import Segment
from tests.support.slots import PATHS, SlotBench
from tests.support.wait import eventually
from tests.support.world import World, expire

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Iterator[SlotBench]:
    """Of a group that begins with topic `t`, which has partition 0."""
    world.topic("t", 1)
    world.coordinator()
    bench = SlotBench(world, tmp_path)
    bench.post.keep(10)
    yield bench
    bench.close()


def leaves(bench: SlotBench, slot: Slot) -> None:
    slot.stop("for another")
    eventually(lambda: bench.world.state("g").state == "Empty", 15, "it has left")


def dies(bench: SlotBench, slot: Slot) -> None:
    """The coordinator ends it."""
    slot.stop("it would come back")
    assert slot.member.store is not None
    expire(slot.member.store)
    eventually(lambda: bench.world.channel("g", "p-slot-0").ended, 15, "it was ended")


def is_taken_over(bench: SlotBench, slot: Slot) -> None:
    """Its successor ends it."""


def idle_slot(bench: SlotBench) -> Slot:
    """A slot that runs its partitions and can seal nothing."""
    slot = bench.slot(0)
    bench.break_files(slot)
    eventually(lambda: slot.sealer.failed, 15, "it has fetched, and sealed nothing")
    return slot


def sealed(bench: SlotBench, end: int) -> list[Segment]:
    """The segments of partition 0, once all up to `end` is sealed."""

    def found() -> list[Segment]:
        ranges = [segment for segment in bench.segments() if any(each.partition == 0 for each in segment.ranges)]
        return ranges if ranges and ranges[-1].ranges[0].next == end else []

    return eventually(found, 15, f"all up to {end} is sealed")


def stopped(bench: SlotBench, records: int) -> None:
    """The group has sealed so many records, and has no members."""
    bench.end(records)
    slot = bench.slot(0)
    bench.all_sealed(1, records)
    leaves(bench, slot)
    bench.post.keep(0)
    eventually(lambda: not bench.world.names(PATHS.seats), 15, "its seat is gone")
    bench.post.keep(10)


def set_offset(world: World, offset: int) -> int:
    """As `groups reset-offsets`; the zxid of its transaction."""
    node = world.store.get(PATHS.offset(*T0))
    assert node is not None
    record = OffsetRecord.parse("", node.data)
    known = PartitionOffsets(T0, record.topic_id, record.offset, node.stat.version, 0, 100)
    eventually(lambda: world.state("g").state == "Empty", 15, "the group is empty")
    write_offsets(world.store, "g", [NewOffset(known, offset)])
    after = world.store.get(PATHS.offset(*T0))
    assert after is not None
    return after.stat.mzxid


@pytest.mark.parametrize("end", [leaves, dies, is_taken_over])
def test_reset_is_in_the_first_segment_after_it_however_earlier_owners_ended(bench: SlotBench, end: object) -> None:
    stopped(bench, 100)
    zxid = set_offset(bench.world, 30)
    slot = idle_slot(bench)
    in_channel = eventually(lambda: bench.world.channel("g", "p-slot-0").discontinuities, 30, "a heartbeat writes it")
    assert in_channel == {T0: Discontinuity(RESET, zxid)}
    end(bench, slot)  # type: ignore[operator]
    bench.slot(0)
    sealed(bench, 100)
    bench.end(150)

    causes = [segment.discontinuities for segment in sealed(bench, 150) if segment.discontinuities]
    assert causes == [{T0: Discontinuity(RESET, zxid)}]
    assert next(segment for segment in bench.segments() if segment.discontinuities).ranges[0].first == 30
    assert bench.world.channel("g", "p-slot-0").discontinuities == {}
    data = bench.world.data(PATHS.offset(*T0)) or b""
    assert OffsetRecord.parse("", data).discontinuity is None, "who began there again would repeat it as intended"


@pytest.mark.parametrize("end", [leaves, dies, is_taken_over])
def test_offsets_that_the_log_lost_are_in_the_first_segment_after_them(bench: SlotBench, end: object) -> None:
    stopped(bench, 100)
    bench.log.lost_below = 180
    bench.end(200)
    slot = idle_slot(bench)
    eventually(lambda: bench.world.channel("g", "p-slot-0").running.get(T0) == 180, 30, "its position was reset")
    end(bench, slot)  # type: ignore[operator]
    bench.slot(0)

    assert sealed(bench, 200)[-1].discontinuities == {T0: Discontinuity(LOST, 100)}


def test_reset_that_moves_no_offset_keeps_what_the_log_lost(bench: SlotBench) -> None:
    stopped(bench, 100)
    bench.log.lost_below = 180
    bench.end(200)
    slot = idle_slot(bench)
    eventually(lambda: bench.world.channel("g", "p-slot-0").running.get(T0) == 180, 30, "its position was reset")
    leaves(bench, slot)
    bench.post.keep(0)
    eventually(lambda: not bench.world.names(PATHS.seats), 15, "its seat is gone")
    set_offset(bench.world, 180)
    bench.post.keep(10)
    bench.slot(0)

    assert sealed(bench, 200)[-1].discontinuities == {T0: Discontinuity(LOST, 100)}


def test_added_partition_that_does_not_begin_at_0_has_lost_records(bench: SlotBench) -> None:
    bench.log.lost_below = 50
    bench.end(100)
    bench.slot(0)
    (first,) = sealed(bench, 100)
    bench.world.more_partitions("t", 2)
    eventually(lambda: T1 in bench.runs("p-slot-0"), 15, "the partition that was added is assigned")
    added = eventually(lambda: [each for each in bench.segments() if each.ranges[-1].partition], 15, "it is sealed")

    assert (first.ranges[0].first, first.discontinuities) == (50, {})
    assert (added[0].ranges[-1].first, added[0].discontinuities) == (50, {T1: Discontinuity(LOST, 0)})

"""Consistent regions of slots: a checkpoint cuts the order of segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tests.support.client_side import Hooked, ThreadGate, writes
from tests.support.region import checkpoint, contributions, region, requested, running
from tests.support.slots import PATHS, SlotBench, slots
from tests.support.wait import FAR_OFF_MS, eventually
from tests.support.world import World
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.streaming.fetchers.slot import Slot
from zk_group.coordinator.zk.store import SetData
from zk_group.coordinator.zk.znodes.paths import RegionPaths, checkpoint_number
from zk_group.coordinator.zk.znodes.regions import ABORTED, COMPLETED, Checkpoint, CheckpointEnd
from zk_group.coordinator.zk.znodes.segments import Segment, SegmentsRecord

REGION = RegionPaths("r")
SLOW = FAR_OFF_MS


@pytest.fixture
def bench(world: World, tmp_path: Path) -> Iterator[SlotBench]:
    world.topic("t", 4)
    with slots(world, tmp_path) as bench:
        yield bench


def runs(bench: SlotBench, *numbers: int, end: int = 20, **options: Any) -> list[Slot]:
    """Slots that have partitions of so many records each; their region is Running, and has a coordinator."""
    if not bench.world.has_coordinator:
        bench.world.coordinator()
    bench.end(end)
    made = [bench.slot(number, **({"region": "r"} | options)) for number in numbers]
    bench.world.stable("g", len(numbers))
    running(bench.world)
    return made


def have_fetched(*slots: Slot) -> None:
    """Each has an open segment."""
    eventually(lambda: all(slot.sealer.is_open for slot in slots), 10, "each has fetched")


def begins(world: World) -> int:
    """A checkpoint, on request; its number."""
    requested(world, "checkpoint")
    return eventually(lambda: region(world).open, 10, "a checkpoint is open")


def cut(world: World, sequence: int) -> dict[int, int]:
    """Partition -> the offset at a cut: of the segments below the czxid of `completed`."""
    completed = world.store.get(REGION.end(sequence, COMPLETED))
    assert completed is not None
    ends: dict[int, int] = {}
    for name in world.names(PATHS.segments):
        node = world.store.get(PATHS.segment(name))
        assert node is not None
        if node.stat.czxid < completed.stat.czxid:
            for each in Segment.parse(name, node.data).ranges:
                ends[each.partition] = max(each.next, ends.get(each.partition, 0))
    return ends


def contributed(world: World, sequence: int) -> dict[int, int]:
    """The same from the members' contributions; neither has partitions without sealed records."""
    given = contributions(world, sequence).values()
    offsets = {part.partition: offset for each in given for part, offset in each.offsets.items()}
    return {partition: offset for partition, offset in offsets.items() if offset}


def test_segments_below_a_checkpoint_hold_exactly_its_contributions(world: World, bench: SlotBench) -> None:
    slots = runs(bench, 0, 1, end=30, seal_interval_ms=SLOW)  # nothing is sealed but by the drain
    have_fetched(*slots)

    first = checkpoint(world)

    assert cut(world, first) == contributed(world, first) == dict.fromkeys(range(4), 30)
    bench.end(70)
    have_fetched(*slots)
    second = checkpoint(world)
    assert (cut(world, first), cut(world, second)) == (dict.fromkeys(range(4), 30), dict.fromkeys(range(4), 70))
    assert region(world).kind == "slots" and region(world).reset == 1


def test_open_segment_is_sealed_for_a_checkpoint_while_fetching_is_paused(world: World, bench: SlotBench) -> None:
    (slot,) = runs(bench, 0, end=30, seal_interval_ms=SLOW)
    have_fetched(slot)
    world.store.commit([SetData(PATHS.segments, SegmentsRecord(paused="a hand").to_bytes())])
    eventually(lambda: slot.sealer.paused, 10, "it is paused")

    sequence = checkpoint(world)

    assert cut(world, sequence) == contributed(world, sequence) and not slot.sealer.is_open
    assert sum(cut(world, sequence).values()) > 0


def test_slot_that_cannot_seal_contributes_later_and_is_not_evicted(world: World, bench: SlotBench) -> None:
    (slot,) = runs(bench, 0, seal_interval_ms=SLOW, max_poll_interval_ms=1500)
    have_fetched(slot)
    bench.break_files(slot)
    requested(world, "checkpoint")
    tries = slot.sealer.failed
    eventually(lambda: slot.sealer.failed >= tries + 4, 10, "it has tried for longer than a poll may take")

    bench.mend_files(slot)

    eventually(lambda: region(world).sequence, 10, "the checkpoint is complete")
    assert cut(world, region(world).sequence) == dict.fromkeys(range(4), 20)
    assert world.registrations("g") == 1


def test_slot_in_a_region_of_consumers_is_refused(world: World, bench: SlotBench) -> None:
    world.coordinator()
    world.consumer("other", "c1", {"t": 1}, region="r")
    world.stable("other", 1)

    bench.slot(0, region="r")

    ended = eventually(lambda: bench.results.get(0), 10, "the slot has ended")
    assert "region r is one of consumers, and it registers for one of slots" in ended["reason"]


def test_a_region_of_slots_is_never_reset_neither_by_command_nor_by_a_request(world: World, bench: SlotBench) -> None:
    runs(bench, 0)
    sequence = checkpoint(world)

    refused = run(world.zk, "regions", "reset", "r", "--to", str(sequence), "--execute")

    assert refused.exit_code == 2 and "a region of slots is never reset" in refused.stderr
    requested(world, "reset", sequence=sequence)
    eventually(lambda: world.data(REGION.request) is None, 10, "the request is answered")
    assert (region(world).reset, region(world).sequence) == (1, sequence)


def test_offsets_of_an_unused_slot_group_can_be_reset(world: World, bench: SlotBench, tmp_path: Path) -> None:
    runs(bench, 0)
    bench.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "the group is Empty")

    with Producer.for_store(world.store, tmp_path / "log", world.brokers) as producer:
        producer.send_batch("t", 0, [b"x"] * 20)

    arguments = ["--topic", "t:0", "--to-offset", "7", "--log-dir", str(tmp_path / "log"), "--execute"]
    moved = run(world.zk, "groups", "reset-offsets", "g", *arguments)

    assert moved.exit_code == 0, moved.stderr


def test_checkpoint_begun_before_a_generation_is_written_is_complete_or_aborted(world: World, bench: SlotBench) -> None:
    world.coordinator(wrap=Hooked, drain_timeout_ms=20_000)
    runs(bench, 0, 1, seal_interval_ms=50)
    checkpoint(world)
    about_to_write, generation = ThreadGate(), b'"generation":%d' % (world.state("g").generation + 1)
    world.front(Hooked).before(writes(PATHS.state, generation), about_to_write)
    bench.slot(2, region="r", seal_interval_ms=50)
    eventually(about_to_write.reached.is_set, 15, "the generation is about to be written")
    opened = begins(world)

    about_to_write.open()

    world.stable("g", 3)
    assert ABORTED in world.names(REGION.checkpoint(opened))
    last = checkpoint(world)
    assert cut(world, last) == contributed(world, last)


def test_checkpoint_attempts_back_off_the_longer_a_slot_cannot_seal(world: World, bench: SlotBench) -> None:
    world.coordinator(checkpoint_interval_ms=400, drain_timeout_ms=400)
    (slot,) = runs(bench, 0, seal_interval_ms=SLOW)
    bench.break_files(slot)
    bench.end(40)
    eventually(lambda: slot.sealer.problem, 20, "it cannot seal")

    eventually(lambda: len(_aborted(world)) >= 3, 30, "some checkpoints are aborted")

    (_, first_end), (second, second_end), (third, _) = _aborted(world)[:3]
    assert second - first_end >= 700 and third - second_end >= 1500
    before = region(world).sequence
    bench.mend_files(slot)
    eventually(lambda: region(world).sequence > before, 30, "one completes")


def _aborted(world: World) -> list[tuple[int, int]]:
    """When the checkpoints that ran into their timeout began and ended, in ms."""
    found = []
    for name in world.names(REGION.checkpoints):
        number = checkpoint_number(name)
        began, end = world.data(REGION.checkpoint(number)), world.data(REGION.end(number, ABORTED))
        if began is not None and end is not None and "drain_timeout_ms" in CheckpointEnd.parse("end", end).reason:
            found.append((Checkpoint.parse("it", began).since_ms, CheckpointEnd.parse("end", end).at_ms))
    return found

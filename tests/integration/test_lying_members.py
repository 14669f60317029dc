"""Members that lie, on real coordinators and consumers: a lie costs its own member, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from coordinator.zk.znodes.json_fields import MAX_COUNT
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from tests.support.hand import ManualStage
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")
MakeLiar = Callable[..., Liar]


@pytest.fixture
def lying(zk: str) -> Iterator[MakeLiar]:
    """Makes members that lie; their sessions end with the test."""
    with ExitStack() as closing:

        def make(name: str = "bad", topics: dict[str, int] | None = None, **options: Any) -> Liar:
            made = Liar(zk, "g", name, topics or {"t": 1}, **options)
            closing.callback(made.close)
            return made

        yield make


def said(numbers: range, offset: int) -> dict[TopicPartition, int | None]:
    return {TopicPartition("t", number): offset for number in numbers}


# ---- what it says it runs


def honest(stage: ManualStage) -> Any:
    """A member that runs the four partitions of `t`, at offset 50."""
    hand = stage.hand()
    stage.topic("t", 4)
    one = stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", one)
    for partition in sorted(one.running):
        one.move(partition, 50)
    return hand, one


@pytest.mark.both_zookeepers
def test_eviction_of_a_member_moves_no_offset_and_no_owner_of_another(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    before = world.owners("g")
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"}, max_poll_interval_ms=300)

    def is_evicted() -> bool:
        hand.turn("g")
        one.touch()
        return bad.is_evicted

    eventually(is_evicted, 10, "it is evicted")

    assert world.owners("g") == before
    assert set(world.offsets("g").values()) == {50}
    marks = [mark for mark in world.state("g").marks if mark.consumer == "bad"]
    assert all(not mark.partitions for mark in marks)


def test_partitions_that_a_member_only_says_it_runs_are_started_by_others_at_once(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"}, topics={"u": 1})
    hand = stage.hand()
    stage.topic("t", 4)
    one = stage.puppet("g", "c1", {"t": 1})

    def is_started() -> bool:
        hand.turn("g")
        one.obey()
        return one.running == parts("t", 0, 1, 2, 3)

    eventually(is_started, 5, "the honest member has all")
    one.read_offsets()

    assert set(one.fenced.channel.running.values()) == {0}
    assert bad.channel.ended is None


def test_session_end_of_a_member_without_owners_moves_no_offset(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"})
    hand.turn("g")
    one.obey()

    bad.close()
    eventually(lambda: hand.turn("g") and world.channel("g", "bad").ended, 40, "it is ended")

    hand.settle("g", one)
    one.read_offsets()
    assert set(one.fenced.channel.running.values()) <= {50}


def test_process_that_takes_a_name_over_writes_only_what_a_command_has_named(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    before = world.owners("g")
    lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"})

    stage.puppet("g", "bad", {"t": 1})

    assert world.owners("g") == before
    assert set(world.offsets("g").values()) == {50}


def test_progress_of_a_member_whose_partition_moves_is_kept_when_its_session_ends(
    world: World, stage: ManualStage
) -> None:
    """The target names another member already; a command has named it to the one whose session ends."""
    hand, one = honest(stage)
    two = stage.puppet("g", "c2", {"t": 1})
    hand.turn("g")
    moving = one.running - world.state("g").target["c1"].partitions
    assert moving and world.state("g").granted is not None

    one.close()

    eventually(lambda: hand.turn("g") and world.channel("g", "c1").ended, 40, "it is ended")
    hand.settle("g", two)
    two.read_offsets()
    assert set(two.fenced.channel.running.values()) == {50}
    assert two.running == parts("t", 0, 1, 2, 3)


def test_state_without_grants_counts_what_a_member_owns_or_nobody_does(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    """As a coordinator of an earlier release leaves it."""
    hand, one = honest(stage)
    state = world.state("g")
    world.put(PATHS.state, state.to_bytes().replace(b',"granted":{}', b""))
    assert world.state("g").granted is None
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"})

    hand.turn("g")
    assert world.state("g").granted is not None
    bad.close()

    eventually(lambda: hand.turn("g") and world.channel("g", "bad").ended, 40, "it is ended")
    hand.settle("g", one)
    assert set(world.offsets("g").values()) == {50}
    assert len(world.owners("g")) == 4


# ---- what it says of numbers


@pytest.mark.both_zookeepers
@pytest.mark.parametrize("number", [10**6, MAX_COUNT, MAX_COUNT + 1, 2**63 - 1, 2**63])
def test_generation_in_a_channel_delays_nobody_and_raises_nothing(world: World, lying: MakeLiar, number: int) -> None:
    log = MemoryLog(10)
    world.coordinator()
    world.topic("t", 4)
    good = world.consumer("g", "good", {"t": 1}, log=log)
    world.stable("g", 1)
    before = world.state("g").generation
    bad = lying(topics={"u": 1})

    bad.says(generation=number, epoch=number)
    world.more_partitions("t", 5)

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3, 4), 10, "the good member goes on")
    assert world.state("g").generation <= before + 4

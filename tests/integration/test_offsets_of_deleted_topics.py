"""Offsets of topics that were deleted long ago are collected, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.support.terms import a_term
from tests.support.wait import eventually
from tests.support.world import World, parts
from tests.unit.manual import ManualRuntime
from zk_group.coordinator.admin.topics import create_topic, delete_topic
from zk_group.coordinator.retention.leftovers import OffsetCollector
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.errors import EpochOver
from zk_group.coordinator.zk.store import Create, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.group_state import GroupState, Mark
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import BegunRecord, Channel, EpochRecord, OffsetRecord, Registration, Seat
from zk_group.coordinator.zk.znodes.regions import GroupRegion
from zk_group.coordinator.zk.znodes.segments import SealedRange, Segment

PATHS = GroupPaths("g")
KEEPS_MS = 800


@pytest.fixture
def service(world: World) -> CoordinatorService:
    return world.coordinator(session_timeout_ms=400, channel_retention_ms=KEEPS_MS, sweep_interval_ms=100)


def offsets_of(world: World, topic: str, count: int = 2, topic_id: str = "old") -> None:
    """Offsets of a topic that is not there."""
    for path in (PATHS.root, *PATHS.skeleton):
        if world.store.get(path) is None:
            world.put(path)
    world.put(PATHS.offsets_of(topic), BegunRecord(topic_id, frozenset(range(count))).to_bytes())
    data = OffsetRecord(5, topic_id, 1).to_bytes()
    for first in range(0, count, 300):
        numbers = range(first, min(first + 300, count))
        world.store.commit([Create(PATHS.offset(topic, number), data) for number in numbers])


def test_offsets_of_a_deleted_topic_are_removed_and_the_others_stay(world: World, service: CoordinatorService) -> None:
    world.topic("kept", 1)
    world.topic("doomed", 2)
    consumer = world.consumer("g", "c1", {"doomed|kept": 1}, log=MemoryLog(10), pattern="white_list")
    eventually(lambda: sum(world.offsets("g").values()) == 30, 10, "all is committed")

    delete_topic(world.store, world.brokers, "doomed")

    eventually(lambda: world.data(PATHS.offsets_of("doomed")) is None, 10, "they are collected")
    assert consumer.held == parts("kept", 0)
    assert world.data(PATHS.offset("kept", 0)) is not None
    create_topic(world.store, world.brokers, "doomed", 2)
    eventually(lambda: len(consumer.held) == 3, 10, "the topic is read again")
    eventually(lambda: len(consumer.records) == 50, 10, "from its beginning")


def test_offsets_of_many_partitions_are_removed_in_several_multis(world: World, service: CoordinatorService) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone", 900)

    eventually(lambda: world.data(PATHS.offsets_of("gone")) is None, 20, "they are collected")


class Rounds:
    """A collector on a clock of the test. Its first round has seen the topic `gone` missing for long enough."""

    def __init__(self, world: World, paused: str = "") -> None:
        self._world = world
        self._runtime = ManualRuntime()
        world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
        if world.data(PATHS.state) is None:
            world.put(PATHS.state, GroupState(epoch=1).to_bytes())
        self.store = Meddled(world.store)
        term = a_term(self.store, self._runtime, channel_retention_ms=20_000)
        self.collector = OffsetCollector(term, lambda group: group == paused)
        self.collector.collect(["g"])
        self._runtime.now += 20

    def removes(self) -> bool:
        """Whether another round removes them."""
        self.collector.collect(["g"])
        return self._world.data(PATHS.offsets_of("gone")) is None


class Meddled(FrontStore):
    """A store behind which something happens before the next commit."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.before: Operation | None = None

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if self.before is not None:
            before, self.before = self.before, None
            self.behind.commit([before])
        return self.behind.commit(operations)


P = TopicPartition("gone", 0)
NEEDED: dict[str, tuple[Operation, ...]] = {
    "a member subscribes to it": (Create(PATHS.id("c"), Registration("i", {"gone": 1}).to_bytes()),),
    "a member's registration cannot be read": (Create(PATHS.id("c"), b"?"),),
    "a member away from its seat subscribes to it": (
        Create(PATHS.seat("c"), Seat(Registration("i", {"gone": 1}, instance_id="c"), 1000).to_bytes()),
    ),
    "a channel runs it": (Create(PATHS.channel("c"), Channel("i", running={P: 7}, topics={"gone": "old"}).to_bytes()),),
    "a command is out": (Create(PATHS.channel("c"), Channel("i").to_bytes()), Create(PATHS.command("c", "command-1"))),
    "it has an owner": (Create(PATHS.owners_of("gone")), Create(PATHS.owner("gone", 0))),
    "a segment has records of it": (
        Create(
            f"{PATHS.segments}/segment-0000000001",
            Segment(
                "g/c/i-0000000001.arrow", "/d", 1, 1, (SealedRange("gone", "old", 0, 0, 1),), "c", "i", 1
            ).to_bytes(),
        ),
    ),
    "it is in the target": (Create(PATHS.state, GroupState(topics={"gone": "old"}).to_bytes()),),
    "an eviction's lease covers it": (
        Create(PATHS.state, GroupState(marks=(Mark("c", "i", frozenset([P]), 1, "why"),)).to_bytes()),
    ),
    "the group is in a consistent region": (Create(PATHS.state, GroupState(region=GroupRegion("r")).to_bytes()),),
    "the state cannot be read": (Create(PATHS.state, b"?"),),
}


@pytest.mark.parametrize("operations", NEEDED.values(), ids=NEEDED.keys())
def test_offsets_that_may_be_needed_are_kept(world: World, operations: tuple[Operation, ...]) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone")
    for operation in operations:
        world.store.commit([operation])

    assert not Rounds(world).removes()


def test_offsets_are_kept_until_the_topic_has_been_gone_for_long_enough(world: World) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone")
    rounds = Rounds(world)
    world.topic("gone", 1)
    assert not rounds.removes()
    delete_topic(world.store, world.brokers, "gone")
    assert not rounds.removes()


def test_offsets_are_kept_while_there_are_no_topics_at_all(world: World) -> None:
    offsets_of(world, "gone")
    rounds = Rounds(world)
    assert not rounds.removes()
    world.topic("back", 1)

    assert not rounds.removes()


def test_offsets_of_a_paused_group_are_kept(world: World) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone")

    assert not Rounds(world, paused="g").removes()


def test_a_turn_meanwhile_has_the_removal_refused(world: World) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone")
    rounds = Rounds(world)
    rounds.store.before = SetData(PATHS.state, GroupState(epoch=1, generation=1).to_bytes())

    assert not rounds.removes()
    assert rounds.removes()


def test_a_deposed_coordinator_removes_nothing(world: World) -> None:
    world.topic("kept", 1)
    offsets_of(world, "gone")
    rounds = Rounds(world)
    rounds.store.before = SetData(COORDINATOR_EPOCH, EpochRecord(2).to_bytes())

    with pytest.raises(EpochOver):
        rounds.removes()
    assert world.data(PATHS.offsets_of("gone")) is not None

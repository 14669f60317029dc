"""Commands that change what turns go by: a mark, a seat, a region. What others do meanwhile is kept.

A command ends with success, and all of it has happened, or with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from coordinator.admin.control import lift, pause, remove_members
from coordinator.admin.delete_group import delete_group
from coordinator.admin.regions import remove_group
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, Delete, SetData, Store
from coordinator.zk.update import ensure
from coordinator.zk.znodes.group_state import STABLE, Mark
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths, RegionPaths
from coordinator.zk.znodes.records import OffsetRecord
from coordinator.zk.znodes.regions import COMPLETED, Checkpoint, CheckpointEnd, Contribution, GroupRegion, Region
from tests.support.hand import Hand, ManualStage, Puppet, a_stage
from tests.support.made_group import MadeGroup
from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, outcome, reply_to_a_commit_is_lost
from tests.support.wait import eventually
from tests.support.world import World, a_world, parts

PATHS = GroupPaths("g")
REGION = RegionPaths("r")


@dataclass
class Scene:
    """Group `g`.

    :ivar hand: the elected coordinator, where it is moved by hand.  :ivar member: one that has registered meanwhile.
    """

    world: World
    stage: ManualStage
    point: Point
    hand: Hand | None = None
    member: Puppet | None = None


def group_is_paused(scene: Scene) -> None:
    pause(scene.world.store, "g", "bob", 0, None)


def coordinator_is_deposed(scene: Scene) -> None:
    if scene.world.data(COORDINATOR) is not None:
        scene.world.store.commit([Delete(COORDINATOR)])


Change = Callable[[Scene], None]


# ---- a mark

MARKS = tuple(Mark(name, f"life-of-{name}", parts("t", n), 30_000, "evicted") for n, name in enumerate(("c1", "c2")))


def lifts(scene: Scene, store: Store, consumer: str = "c1") -> None:
    lift(store, ThreadRuntime(), "g", consumer, "", "ann", None)


def turn_is_taken(scene: Scene) -> None:
    assert scene.hand is not None
    scene.hand.turn("g")


def another_lifts_it(scene: Scene) -> None:
    outcome(lambda: lifts(scene, scene.world.store))


def another_lifts_another(scene: Scene) -> None:
    lifts(scene, scene.world.store, "c2")


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        reply_to_a_commit_is_lost,
        turn_is_taken,
        another_lifts_it,
        another_lifts_another,
        coordinator_is_deposed,
    ],
)
def test_mark_alone_is_lifted_beside_a_change(change: Change) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
            MadeGroup(world.store, state=STABLE, marks=MARKS)
            scene = Scene(world, stage, point, stage.hand())
            with point.sequence(lambda: change(scene)):
                failed = outcome(lambda: lifts(scene, point.wrap(session)))
            left = {mark.consumer for mark in world.state("g").marks}
            assert left <= {"c2"} if failed is None or change is another_lifts_it else left in ({"c1", "c2"}, {"c2"})
            assert ("c2" in left) == (change is not another_lifts_another)
            if change in (nothing, reply_to_a_commit_is_lost, turn_is_taken, another_lifts_another):
                assert failed is None
            if failed is None:
                assert world.data(PATHS.request) is not None, "a turn follows"
            if change is turn_is_taken:
                assert world.state("g").state == "Empty", "what the turn has written is kept"

    assert at_every_point(in_virtual_time(play), answers=False) > 5


# ---- seats


@dataclass
class Seats(Scene):
    """Static members c1, which is removed, and c2."""

    def joins(self, name: str, **options: str) -> None:
        """It has registered when this returns."""
        made = self.world.consumer("g", name, {"t": 1}, log=MemoryLog(), **options)
        eventually(lambda: made.consumer.member.registrations, 10, f"{name} has registered")


def removed_member_restarts(scene: Scene) -> None:
    assert isinstance(scene, Seats)
    scene.world.consumers[0].vanish()
    scene.joins("c1", group_instance_id="c1")


def dynamic_member_takes_the_name(scene: Scene) -> None:
    assert isinstance(scene, Seats)
    scene.joins("c1")


def another_removes_it(scene: Scene) -> None:
    outcome(lambda: remove(scene, scene.world.store))


def remove(scene: Scene, store: Store) -> None:
    remove_members(store, ThreadRuntime(), "g", ("c1",), "ann", None, 10.0)


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        reply_to_a_commit_is_lost,
        removed_member_restarts,
        dynamic_member_takes_the_name,
        another_removes_it,
        group_is_paused,
        coordinator_is_deposed,
    ],
)
def test_static_member_is_removed_beside_a_change(change: Change) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
            scene = Seats(world, stage, point)
            world.coordinator()
            world.topic("t", 4)
            for name in ("c1", "c2"):
                scene.joins(name, group_instance_id=name)
            world.stable("g", 2)
            before = {name: world.channel("g", name).incarnation for name in ("c1", "c2")}
            with point.sequence(lambda: change(scene)):
                failed = outcome(lambda: remove(scene, point.wrap(session)))
            if change in (nothing, reply_to_a_commit_is_lost, removed_member_restarts):
                assert failed is None, failed
            if failed is None:
                now = world.channel("g", "c1")
                assert now.incarnation != before["c1"] or not now.is_live, "it is over"
            assert world.channel("g", "c2").incarnation == before["c2"]
            assert world.data(PATHS.seat("c2")) is not None
            if change is not group_is_paused:
                world.stable("g", 2)

    assert at_every_point(in_virtual_time(play), answers=False) > 8


# ---- a region

CUT, MOVED = {("t", 0): 40, ("t", 1): 5}, {("t", 0): 55, ("t", 1): 60}
"""Of partition 0 a member has contributed, of partition 1 there is the start; an aborted drain has moved both."""


def member_registers(scene: Scene) -> None:
    scene.member = scene.stage.puppet("g", "c1", {"t": 1})


def group_is_added(scene: Scene) -> None:
    """As the coordinator binds another one."""
    node = scene.world.store.get(REGION.root)
    assert node is not None
    record = Region.parse("", node.data).including("i")
    scene.world.store.commit([SetData(REGION.root, record.to_bytes(), node.stat.version)])


def checkpoint_completes(scene: Scene) -> None:
    """Of another group's members: what this group has in the cut is copied."""
    completes(scene.world, 2, "c1~1")


def another_takes_it_out(scene: Scene) -> None:
    outcome(lambda: remove_group(scene.world.store, "r", "g"))


def group_is_deleted(scene: Scene) -> None:
    outcome(lambda: delete_group(scene.world.store, "g"))


def completes(world: World, number: int, contributor: str) -> None:
    store, given = world.store, Contribution("life", 1, {TopicPartition("t", 0): 40}, {"t": "id"})
    store.commit(
        [
            Create(REGION.checkpoint(number), Checkpoint("a test", 1, number - 1, {"h": {}}).to_bytes()),
            Create(REGION.contribution(number, "g", contributor), given.to_bytes()),
            Create(REGION.end(number, COMPLETED), CheckpointEnd().to_bytes()),
        ]
    )
    node = store.get(REGION.root)
    assert node is not None
    record = replace(Region.parse("", node.data), sequence=number, next_sequence=number + 1)
    store.commit([SetData(REGION.root, record.to_bytes())])


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        reply_to_a_commit_is_lost,
        member_registers,
        group_is_added,
        checkpoint_completes,
        another_takes_it_out,
        group_is_deleted,
    ],
)
def test_group_is_taken_out_of_its_region_beside_a_change(change: Change) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
            topic = world.topic("t", 2)
            group = MadeGroup(world.store, region=GroupRegion("r"))
            group.offsets_at(topic, {number: offset for (_, number), offset in MOVED.items()})
            ensure(world.store, REGION.skeleton)
            world.put(REGION.root, Region(groups=("g", "h")).to_bytes())
            world.put(REGION.checkpoints)
            world.put(REGION.initial_offset("g", "t", 1), OffsetRecord(5, "id", 0).to_bytes())
            completes(world, 1, "c1")
            scene = Scene(world, stage, point)
            with point.sequence(lambda: change(scene)):
                failed = outcome(lambda: remove_group(point.wrap(session), "r", "g"))
            record = Region.parse("", world.data(REGION.root) or b"")
            others = ("h", "i") if change is group_is_added else ("h",)
            if change in (nothing, reply_to_a_commit_is_lost, group_is_added, checkpoint_completes):
                assert failed is None, failed
            is_out = failed is None or change in (another_takes_it_out, group_is_deleted)
            assert record.groups == (others if is_out else ("g", *others))
            assert record.sequence == (2 if change is checkpoint_completes else 1)
            assert (world.state("g").region is None) == is_out
            if group.exists and is_out:
                assert group.offsets == CUT
            if scene.member is not None:
                assert world.data(PATHS.id("c1")) is not None
                assert point.is_last or "consumer c1 is registered" in str(failed)

    assert at_every_point(in_virtual_time(play), answers=False) > 8

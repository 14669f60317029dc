"""What happens between any two requests of a command that reads and then writes is neither overwritten nor undone.

A command ends with success, and all of it has happened, or with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pytest

from coordinator.admin.control import pause, read_paused, request_turn, resume
from coordinator.admin.delete_group import delete_group
from coordinator.admin.offsets import GroupIdNotFound, delete_offsets, write_offsets
from coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from coordinator.admin.topics import create_topic
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, SetData, Store
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, Brokers, GroupPaths
from coordinator.zk.znodes.records import OffsetRecord, Topic
from tests.support.hand import Hand, ManualStage, Puppet, a_stage
from tests.support.made_group import MadeGroup
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, outcome, reply_to_a_commit_is_lost
from tests.support.world import World, a_world

PATHS = GroupPaths("g")
BEFORE = {("t", 0): 50, ("t", 1): 60}


@dataclass
class Scene:
    """Group `g`, Empty, with offsets of topic `t`, and a coordinator that takes its turns by hand.

    :ivar moved: offsets that another client has set meanwhile.
    """

    world: World
    stage: ManualStage
    point: Point
    topic: Topic
    members: list[Puppet] = field(default_factory=list)
    moved: dict[tuple[str, int], int] = field(default_factory=dict)
    _hand: Hand | None = None

    @property
    def hand(self) -> Hand:
        self._hand = self._hand or self.stage.hand()
        return self._hand

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        return MadeGroup(self.world.store, state=None).offsets if self.exists else {}

    @property
    def exists(self) -> bool:
        return self.world.data(PATHS.root) is not None


# ---- the commands


def sets_offsets(scene: Scene, store: Store) -> None:
    new = [
        NewOffset(PartitionOffsets(TopicPartition("t", number), scene.topic.id, offset, 0, 0, 100), 7)
        for (_, number), offset in BEFORE.items()
    ]
    write_offsets(store, "g", new, {"t": scene.topic})


def deletes_offsets(scene: Scene, store: Store) -> None:
    results = delete_offsets(store, {"t": scene.topic}, "g", [Scope("t")])
    if any(results.values()):
        raise CoordinatorError(str(results))


def deletes_the_group(scene: Scene, store: Store) -> None:
    delete_group(store, "g")


# ---- what others do


def member_registers(scene: Scene) -> None:
    scene.members.append(scene.stage.puppet("g", "c1", {"t": 1}))


def member_runs(scene: Scene) -> None:
    """It has got the offsets that there are, and goes on from there."""
    member_registers(scene)
    scene.hand.settle("g", *scene.members)
    scene.members[0].read_offsets()


def member_ran(scene: Scene) -> None:
    """And has committed, and left."""
    member_runs(scene)
    (member,) = scene.members
    for _, number in BEFORE:
        member.move(TopicPartition("t", number), 90)
    member.close()
    scene.members.clear()
    for _ in range(2):
        scene.hand.turn("g")
    scene.moved = dict.fromkeys(BEFORE, 90)


def another_operator_moves_an_offset(scene: Scene) -> None:
    path = PATHS.offset("t", 1)
    if scene.world.data(path) is not None and scene.offsets["t", 1] == 60:
        data = OffsetRecord(33, scene.topic.id, 3).to_bytes()
        scene.world.store.commit([SetData(path, data)])
        scene.moved = {("t", 1): 33}


def another_deletes_the_group(scene: Scene) -> None:
    with suppress(GroupIdNotFound):
        delete_group(scene.world.store, "g")


OTHERS = [nothing, member_registers, another_operator_moves_an_offset, reply_to_a_commit_is_lost]
Command = Callable[[Scene, Store], None]


@pytest.mark.parametrize("command", [sets_offsets, deletes_offsets, deletes_the_group])
@pytest.mark.parametrize("change", [*OTHERS, member_runs, member_ran, another_deletes_the_group])
def test_command_happens_wholly_before_or_after_a_change_or_says_so(
    command: Command, change: Callable[[Scene], None]
) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
            topic = create_topic(world.store, Brokers(), "t", 2)
            stage.topics["t"] = topic
            MadeGroup(world.store).offsets_at(topic, {number: offset for (_, number), offset in BEFORE.items()})
            scene = Scene(world, stage, point, topic)
            with point.sequence(lambda: change(scene)):
                failed = outcome(lambda: command(scene, point.wrap(session)))
            if change is another_deletes_the_group:
                assert not scene.exists, "no group is made of what was read of another one"
                return
            judge(scene, command, change, failed, point.is_last)
            if change is member_ran and not point.is_last:
                assert failed is None or scene.offsets == scene.moved
            if change in (nothing, reply_to_a_commit_is_lost):
                assert failed is None

    assert at_every_point(in_virtual_time(play), answers=False) > 3


def judge(
    scene: Scene, command: Command, change: Callable[[Scene], None], failed: CoordinatorError | None, is_last: bool
) -> None:
    done = dict.fromkeys(BEFORE, 7) if command is sets_offsets else {}
    assert failed is None or not re.search("set already|removed before", str(failed)), "it is one multi"
    if scene.members:
        (member,) = scene.members
        assert scene.world.data(PATHS.id(member.name)) is not None, "a member that has registered stays"
        scene.hand.settle("g", member)
        if change is not member_runs:
            member.read_offsets()  # only now
        running = member.fenced.channel.running
        read = {(part.topic, part.partition): offset for part, offset in running.items()}
        assert read == (BEFORE if failed is not None else dict.fromkeys(BEFORE, 7 if done else 0))
        if change is member_runs and not is_last:
            assert failed is not None, "the group is in use"
    elif failed is not None:
        assert scene.offsets == BEFORE | scene.moved, "nothing was changed"
    elif not is_last:
        assert scene.offsets in (done, scene.moved)
        if command is sets_offsets and change is another_operator_moves_an_offset:
            assert not scene.moved, "what another has set is not overwritten unseen"
    else:
        assert scene.offsets == done | scene.moved


# ---- commands that change a record of several operators


def pauses(scene: Scene, store: Store) -> None:
    pause(store, "g", "ann", 1, None)


def resumes(scene: Scene, store: Store) -> None:
    resume(store, "h")


def another_pauses(scene: Scene) -> None:
    pause(scene.world.store, "i", "bob", 2, None)


def another_resumes(scene: Scene) -> None:
    resume(scene.world.store, "h")


@pytest.mark.parametrize("command", [pauses, resumes])
@pytest.mark.parametrize("change", [another_pauses, another_resumes, reply_to_a_commit_is_lost])
def test_pauses_of_two_operators_both_count(command: Command, change: Callable[[Scene], None]) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
            for name in "ghi":
                MadeGroup(world.store, name)
            pause(world.store, "h", "eve", 0, None)
            scene = Scene(world, stage, point, Topic("t", "id", (0,)))
            with point.sequence(lambda: change(scene)):
                command(scene, point.wrap(session))
            paused = set(read_paused(world.store).groups)
            wanted = {"h"} | ({"g"} if command is pauses else set()) | ({"i"} if change is another_pauses else set())
            assert paused == wanted - ({"h"} if resumes is command or change is another_resumes else set())

    assert at_every_point(in_virtual_time(play), answers=False) >= 2


def test_request_of_a_turn_beside_another_ones_is_kept_until_a_turn() -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, closing(open_kazoo(zk, 30_000)) as session:
            MadeGroup(world.store, state=None)
            world.store.commit([Create(PATHS.state, GroupState().to_bytes()), Create(COORDINATOR, b"{}")])
            others: list[tuple[bool, str]] = []
            with point.sequence(lambda: others.append(request_turn(world.store, "g", "bob", 0, None))):
                is_new, by = request_turn(point.wrap(session), "g", "ann", 0, None)
            assert sorted([is_new, others[0][0]]) == [False, True]
            assert {by, others[0][1]} in ({"ann"}, {"bob"})
            assert world.data(PATHS.request) is not None

    assert at_every_point(in_virtual_time(play)) >= 4

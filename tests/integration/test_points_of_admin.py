"""What happens between any two requests of a command that reads and then writes is neither overwritten nor undone.

A command ends with success, and all of it has happened, or with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hand import Hand, ManualStage, Puppet, a_stage
from tests.support.made_group import MadeGroup
from tests.support.memlog import MemoryLog
from tests.support.parties import Parties, identity_of
from tests.support.points import Point, at_points, nothing, outcome, reply_to_a_commit_is_lost
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, a_world, parts
from zk_group.coordinator.admin.acl import apply, check, create_group, group_policies, read_policy, set_members
from zk_group.coordinator.admin.control import lift, pause, read_paused, remove_members, request_turn, resume
from zk_group.coordinator.admin.delete_group import delete_group
from zk_group.coordinator.admin.offsets import GroupIdNotFound, delete_offsets, write_offsets
from zk_group.coordinator.admin.regions import remove_group
from zk_group.coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.policy import WORLD, AclPolicy, acl_of
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Acl, AclEntry, AclStore, Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState, Mark
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, Brokers, GroupPaths, RegionPaths
from zk_group.coordinator.zk.znodes.records import OffsetRecord, Topic
from zk_group.coordinator.zk.znodes.regions import (
    COMPLETED,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    GroupRegion,
    Region,
)

PATHS = GroupPaths("g")
REGION = RegionPaths("r")
BEFORE = {("t", 0): 50, ("t", 1): 60}


class Scene:
    """A world; `session` is that of the command, and every other one is somebody else's.

    :ivar hand: a coordinator that takes its turns by hand, from when it is asked for.
    :ivar members: those that have registered meanwhile, as `c1`.  :ivar moved: offsets that another client has set.
    """

    def __init__(self, world: World, stage: ManualStage, session: Store, point: Point) -> None:
        self.world = world
        self.store = world.store
        self.stage = stage
        self.session = session
        self.point = point
        self.topic = Topic("t", "id", (0, 1))
        self.members: list[Puppet] = []
        self.moved: dict[tuple[str, int], int] = {}
        self._hand: Hand | None = None

    @property
    def hand(self) -> Hand:
        self._hand = self._hand or self.stage.hand()
        return self._hand

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        return MadeGroup(self.store, state=None).offsets if self.exists else {}

    @property
    def exists(self) -> bool:
        return self.world.data(PATHS.root) is not None

    def joins(self, name: str, **options: str) -> None:
        """A process, which has registered when this returns."""
        made = self.world.consumer("g", name, {"t": 1}, log=MemoryLog(), **options)
        eventually(lambda: made.consumer.member.registrations, 10, f"{name} has registered")

    def coordinator_is_deposed(self) -> None:
        if self.world.data(COORDINATOR) is not None:
            self.store.commit([Delete(COORDINATOR)])

    def sets_offsets(self) -> None:
        new = [
            NewOffset(PartitionOffsets(TopicPartition("t", number), self.topic.id, offset, 0, 0, 100), 7)
            for (_, number), offset in BEFORE.items()
        ]
        write_offsets(self.session, "g", new, {"t": self.topic})

    def deletes_offsets(self) -> None:
        results = delete_offsets(self.session, {"t": self.topic}, "g", [Scope("t")])
        if any(results.values()):
            raise CoordinatorError(str(results))

    def member_registers(self) -> None:
        self.members.append(self.stage.puppet("g", "c1", {"t": 1}))

    def member_runs(self) -> None:
        """It has got the offsets that there are, and goes on from there."""
        self.member_registers()
        self.hand.settle("g", *self.members)
        self.members[0].read_offsets()

    def member_ran(self) -> None:
        """And has committed, and left."""
        self.member_runs()
        (member,) = self.members
        for _, number in BEFORE:
            member.move(TopicPartition("t", number), 90)
        member.close()
        self.members.clear()
        for _ in range(2):
            self.hand.turn("g")
        self.moved = dict.fromkeys(BEFORE, 90)

    def another_moves_an_offset(self) -> None:
        path = PATHS.offset("t", 1)
        if self.world.data(path) is not None and self.offsets["t", 1] == 60:
            self.store.commit([SetData(path, OffsetRecord(33, self.topic.id, 3).to_bytes())])
            self.moved = {("t", 1): 33}

    def another_deletes_the_group(self) -> None:
        with suppress(GroupIdNotFound):
            delete_group(self.store, "g")

    def removed_member_restarts(self) -> None:
        self.world.consumers[0].vanish()
        self.joins("c1", group_instance_id="c1")

    def group_is_added(self) -> None:
        """As the coordinator binds another one."""
        node = self.store.get(REGION.root)
        assert node is not None
        record = Region.parse("", node.data).including("i")
        self.store.commit([SetData(REGION.root, record.to_bytes(), node.stat.version)])


@contextmanager
def a_scene(zk: str, point: Point) -> Iterator[Scene]:
    with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 30_000)) as session:
        yield Scene(world, stage, point.wrap(session), point)


Changes = dict[str, Callable[[Scene], object]]
HARMLESS: Changes = {"nothing": nothing, "a reply is lost": reply_to_a_commit_is_lost}


# ---- offsets, and a group


COMMANDS: Changes = {
    "sets offsets": Scene.sets_offsets,
    "deletes offsets": Scene.deletes_offsets,
    "deletes the group": lambda scene: delete_group(scene.session, "g"),
}
BESIDE_COMMANDS = HARMLESS | {
    "a member registers": Scene.member_registers,
    "a member runs": Scene.member_runs,
    "a member ran": Scene.member_ran,
    "another moves an offset": Scene.another_moves_an_offset,
    "another deletes the group": Scene.another_deletes_the_group,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("change", BESIDE_COMMANDS)
@at_points(over=3, answers=False)
def test_command_happens_wholly_beside_a_change_or_says_so(zk: str, point: Point, command: str, change: str) -> None:
    with a_scene(zk, point) as scene:
        scene.topic = scene.stage.topics["t"] = create_topic(scene.store, Brokers(), "t", 2)
        MadeGroup(scene.store).offsets_at(scene.topic, {number: offset for (_, number), offset in BEFORE.items()})
        with point.sequence(lambda: BESIDE_COMMANDS[change](scene)):
            failed = outcome(lambda: COMMANDS[command](scene))
        if change == "another deletes the group":
            assert not scene.exists, "no group is made of what was read of another one"
            return
        judge(scene, command, change, failed)
        if change == "a member ran" and not point.is_last:
            assert failed is None or scene.offsets == scene.moved
        assert failed is None or change not in HARMLESS


def judge(scene: Scene, command: str, change: str, failed: CoordinatorError | None) -> None:
    is_last, sets = scene.point.is_last, command == "sets offsets"
    done = dict.fromkeys(BEFORE, 7) if sets else {}
    assert failed is None or not re.search("set already|removed before", str(failed)), "it is one multi"
    if scene.members:
        (member,) = scene.members
        assert scene.world.data(PATHS.id(member.name)) is not None, "a member that has registered stays"
        scene.hand.settle("g", member)
        if change != "a member runs":
            member.read_offsets()  # only now
        running = member.fenced.channel.running
        read = {(part.topic, part.partition): offset for part, offset in running.items()}
        assert read == (BEFORE if failed is not None else dict.fromkeys(BEFORE, 7 if done else 0))
        if change == "a member runs" and not is_last:
            assert failed is not None, "the group is in use"
    elif failed is not None:
        assert scene.offsets == BEFORE | scene.moved, "nothing was changed"
    elif not is_last:
        assert scene.offsets in (done, scene.moved)
        if sets and change == "another moves an offset":
            assert not scene.moved, "what another has set is not overwritten unseen"
    else:
        assert scene.offsets == done | scene.moved


def test_reset_that_moves_no_offset_does_not_write_it(store: Store) -> None:
    """What its znode says of records that the log has lost stays."""
    made, path = MadeGroup(store), PATHS.offset("t", 0)
    made.offsets_at(Topic("t", "id", (0,)), {0: 180})
    before = store.get(path)
    assert before is not None

    known = PartitionOffsets(TopicPartition("t", 0), "id", 180, before.stat.version, 0, 200)
    write_offsets(store, "g", [NewOffset(known, 180)])

    assert store.get(path) == before


# ---- pauses, and requests


PAUSES: Changes = {
    "pauses g": lambda scene: pause(scene.session, "g", "ann", 1, None),
    "resumes h": lambda scene: resume(scene.session, "h"),
}
BESIDE_PAUSES: Changes = {
    "another pauses i": lambda scene: pause(scene.store, "i", "bob", 2, None),
    "another resumes h": lambda scene: resume(scene.store, "h"),
    "a reply is lost": reply_to_a_commit_is_lost,
}


@pytest.mark.parametrize("command", PAUSES)
@pytest.mark.parametrize("change", BESIDE_PAUSES)
@at_points(over=1, answers=False)
def test_pauses_of_two_operators_both_count(zk: str, point: Point, command: str, change: str) -> None:
    with a_scene(zk, point) as scene:
        for name in "ghi":
            MadeGroup(scene.store, name)
        pause(scene.store, "h", "eve", 0, None)
        with point.sequence(lambda: BESIDE_PAUSES[change](scene)):
            PAUSES[command](scene)
        steps = {command, change}
        wanted = {name for name, step in {"g": "pauses g", "i": "another pauses i"}.items() if step in steps}
        wanted |= set() if steps & {"resumes h", "another resumes h"} else {"h"}
        assert set(read_paused(scene.store).groups) == wanted


@at_points(over=3)
def test_request_of_a_turn_beside_another_ones_is_kept_until_a_turn(zk: str, point: Point) -> None:
    with a_scene(zk, point) as scene:
        MadeGroup(scene.store, state=None)
        scene.store.commit([Create(PATHS.state, GroupState().to_bytes()), Create(COORDINATOR, b"{}")])
        others: list[tuple[bool, str]] = []
        with point.sequence(lambda: others.append(request_turn(scene.store, "g", "bob", 0, None))):
            is_new, by = request_turn(scene.session, "g", "ann", 0, None)
        assert sorted([is_new, others[0][0]]) == [False, True]
        assert {by, others[0][1]} in ({"ann"}, {"bob"})
        assert scene.world.data(PATHS.request) is not None


# ---- a mark


MARKS = tuple(Mark(name, f"life-of-{name}", parts("t", n), 30_000, "evicted") for n, name in enumerate(("c1", "c2")))


def lifts(store: Store, consumer: str = "c1") -> None:
    lift(store, ThreadRuntime(), "g", consumer, "", "ann", None)


BESIDE_A_LIFT = HARMLESS | {
    "a turn is taken": lambda scene: scene.hand.turn("g"),
    "another lifts it": lambda scene: outcome(lambda: lifts(scene.store)),
    "another lifts another": lambda scene: lifts(scene.store, "c2"),
    "the coordinator is deposed": Scene.coordinator_is_deposed,
}


@pytest.mark.parametrize("change", BESIDE_A_LIFT)
@at_points(over=5, answers=False)
def test_mark_alone_is_lifted_beside_a_change(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        MadeGroup(scene.store, state=STABLE, marks=MARKS)
        assert scene.hand, "it is elected"
        with point.sequence(lambda: BESIDE_A_LIFT[change](scene)):
            failed = outcome(lambda: lifts(scene.session))
        left = {mark.consumer for mark in scene.world.state("g").marks}
        assert left <= {"c2"} if failed is None or change == "another lifts it" else left in ({"c1", "c2"}, {"c2"})
        assert ("c2" in left) == (change != "another lifts another")
        if change not in ("another lifts it", "the coordinator is deposed"):
            assert failed is None
        if failed is None:
            assert scene.world.data(PATHS.request) is not None, "a turn follows"
        if change == "a turn is taken":
            assert scene.world.state("g").state == "Empty", "what the turn has written is kept"


# ---- seats


def remove(store: Store) -> None:
    remove_members(store, ThreadRuntime(), "g", ("c1",), "ann", None, 10.0)


BESIDE_A_REMOVAL = HARMLESS | {
    "the removed member restarts": Scene.removed_member_restarts,
    "a dynamic member takes the name": lambda scene: scene.joins("c1"),
    "another removes it": lambda scene: outcome(lambda: remove(scene.store)),
    "the group is paused": lambda scene: pause(scene.store, "g", "bob", 0, None),
    "the coordinator is deposed": Scene.coordinator_is_deposed,
}


@pytest.mark.parametrize("change", BESIDE_A_REMOVAL)
@at_points(over=8, answers=False)
def test_static_member_is_removed_beside_a_change(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        world = scene.world
        world.coordinator()
        world.topic("t", 4)
        for name in ("c1", "c2"):
            scene.joins(name, group_instance_id=name)
        world.stable("g", 2)
        before = {name: world.channel("g", name).incarnation for name in ("c1", "c2")}
        with point.sequence(lambda: BESIDE_A_REMOVAL[change](scene)):
            failed = outcome(lambda: remove(scene.session))
        if change in (*HARMLESS, "the removed member restarts"):
            assert failed is None, failed
        if failed is None:
            now = world.channel("g", "c1")
            assert now.incarnation != before["c1"] or not now.is_live, "it is over"
        assert world.channel("g", "c2").incarnation == before["c2"]
        assert world.data(PATHS.seat("c2")) is not None
        if change != "the group is paused":
            world.stable("g", 2)


# ---- a region

CUT, MOVED = {("t", 0): 40, ("t", 1): 5}, {("t", 0): 55, ("t", 1): 60}
"""Of partition 0 a member has contributed, of partition 1 there is the start; an aborted drain has moved both."""


def completes(store: Store, number: int, contributor: str) -> None:
    given = Contribution("life", 1, {TopicPartition("t", 0): 40}, {"t": "id"})
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


BESIDE_A_TAKING_OUT = HARMLESS | {
    "a member registers": Scene.member_registers,
    "a group is added": Scene.group_is_added,
    # Of another group's members: what this group has in the cut is copied.
    "a checkpoint completes": lambda scene: completes(scene.store, 2, "c1~1"),
    "another takes it out": lambda scene: outcome(lambda: remove_group(scene.store, "r", "g")),
    "the group is deleted": lambda scene: outcome(lambda: delete_group(scene.store, "g")),
}


@pytest.mark.parametrize("change", BESIDE_A_TAKING_OUT)
@at_points(over=8, answers=False)
def test_group_is_taken_out_of_its_region_beside_a_change(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        world = scene.world
        world.topic("t", 2)
        group = MadeGroup(scene.store, region=GroupRegion("r"))
        group.offsets_at(scene.topic, {number: offset for (_, number), offset in MOVED.items()})
        ensure(scene.store, REGION.skeleton)
        world.put(REGION.root, Region(groups=("g", "h")).to_bytes())
        world.put(REGION.checkpoints)
        world.put(REGION.initial_offset("g", "t", 1), OffsetRecord(5, "id", 0).to_bytes())
        completes(scene.store, 1, "c1")
        with point.sequence(lambda: BESIDE_A_TAKING_OUT[change](scene)):
            failed = outcome(lambda: remove_group(scene.session, "r", "g"))
        record = Region.parse("", world.data(REGION.root) or b"")
        others = ("h", "i") if change == "a group is added" else ("h",)
        if change in (*HARMLESS, "a group is added", "a checkpoint completes"):
            assert failed is None, failed
        is_out = failed is None or change in ("another takes it out", "the group is deleted")
        assert record.groups == (others if is_out else ("g", *others))
        assert record.sequence == (2 if change == "a checkpoint completes" else 1)
        assert (world.state("g").region is None) == is_out
        if group.exists and is_out:
            assert group.offsets == CUT
        if scene.members:
            assert world.data(PATHS.id("c1")) is not None
            assert point.is_last or "consumer c1 is registered" in str(failed)


# ---- `acl apply`: nothing is left with an ACL of before

OPEN: Acl = (AclEntry(31, WORLD),)
POLICY = AclPolicy(False, False, (identity_of("coordinator"),), (identity_of("operator"),), ())
SECURE = replace(POLICY, is_secure=True)
OTHER = replace(SECURE, operators=(identity_of("operator"), identity_of("bob")))


class PointedStore(FrontStore, AclStore):
    """A session at a point, requests for ACLs included."""

    def __init__(self, store: AclStore, point: Point) -> None:
        super().__init__(point.wrap(store))
        self._acls = store
        self._point = point

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        with self._point.asked("get ACLs"):
            return self._acls.get_acls(paths)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        with self._point.asked("set ACLs"):
            return self._acls.set_acls(acls)

    def set_acl(self, path: str, acl: Acl) -> bool:
        return self.set_acls([(path, acl)]) == [True]


def group_is_deleted(store: AclStore) -> None:
    with suppress(GroupIdNotFound):
        delete_group(store, "h")


def registers_by_the_policy_of_before(store: AclStore) -> None:
    """As long as no ACL of its group is another: it has not read the new one yet."""
    policy = group_policies(store)["g"]
    assert policy is not None
    policy = replace(policy, is_secure=store.get_acls([PATHS.root]) != [OPEN])
    store.commit([Create(path, acl=acl_of(path, policy)) for path in (PATHS.channel("c2"), PATHS.id("c2"))])


BESIDE_AN_APPLY: dict[str, Callable[[AclStore], object]] = {
    "nothing": lambda store: None,
    "a reply is lost": lambda store: None,
    "another applies another policy": lambda store: apply(store, OTHER, Brokers()),
    "another names other members": lambda store: set_members(store, "g", [identity_of("team-b")]),
    "a group is created": lambda store: create_group(store, "i", [identity_of("team-c")], ()),
    "a group is deleted": group_is_deleted,
    "a member registers": registers_by_the_policy_of_before,
    # It keeps its epoch in `/consumers`.
    "a node is elected": lambda store: store.commit([SetData(CONSUMERS, b'{"version":1,"epoch":7}')]),
}
MAY_FAIL = ("a reply is lost", "another applies another policy", "a group is deleted")
"""It says so, and the next one carries it out."""


@pytest.mark.parametrize("change", BESIDE_AN_APPLY)
@at_points(over=20, answers=False)
def test_all_znodes_are_by_the_policy_beside_a_change(zk: str, point: Point, change: str, tmp_path: Path) -> None:
    operator = Parties(zk, tmp_path).session
    with a_world(zk), closing(operator("operator")) as store, closing(operator("operator")) as session:
        apply(store, POLICY, Brokers())
        for name in "gh":
            MadeGroup(store, name).member("c1", {"t": 1})
            MadeGroup(store, name).leaves("c1")
            set_members(store, name, [identity_of("team-a")])
        pointed = PointedStore(session, point)

        def happens() -> None:
            BESIDE_AN_APPLY[change](store)
            if change == "a reply is lost":
                point.sessions[0].lose_next_reply(only_commit=True)

        with point.sequence(happens):
            failed = outcome(lambda: apply(pointed, SECURE, Brokers()))
        if change == "another applies another policy":
            assert read_policy(store) in ((OTHER,) if failed is not None else (OTHER, SECURE))
        elif failed is None:
            assert read_policy(store) == SECURE
        assert failed is None or change in MAY_FAIL
        if failed is not None or change == "another names other members":  # `acl members` asks for it, too
            apply(store, SECURE, Brokers())
        assert list(check(store, Brokers())) == []
        groups = group_policies(store)
        members = identity_of("team-b") if change == "another names other members" else identity_of("team-a")
        assert groups["g"] is not None and groups["g"].members == (members,)
        assert ("h" in groups) == (change != "a group is deleted")
        if change == "a node is elected":
            assert [node.data for node in store.get_many([CONSUMERS]) if node] == [b'{"version":1,"epoch":7}']

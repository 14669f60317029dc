"""A change between any two requests of one turn of a group is seen by it, or by the turn that it causes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.rebalance.rebalancer import Turn
from coordinator.zk.errors import EpochOver
from coordinator.zk.store import Delete
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from tests.support.hand import Hand, ManualStage, Puppet, a_stage
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, reply_to_a_commit_is_lost
from tests.support.world import World, a_world, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)
SOON_S = 1.0
SENT = [3, 3, 1]
"""Commands to each member: start, stop, start; the newcomer has a start."""


class Scene:
    """Group `g`: c1 and c2 share topic `t`; c3 has joined, and the turn after that is the sequence.

    :ivar moved: the offset that c2, which has to stop something, has committed for its first partition.
    """

    def __init__(self, world: World, stage: ManualStage, point: Point, turns_before: int) -> None:
        self.world = world
        self.stage = stage
        self.point = point
        self.hand = stage.hand(wrap=point.wrap)
        one, two = stage.stable_pair(self.hand)
        self.puppets = {"c1": one, "c2": two, "c3": stage.puppet("g", "c3", {"t": 1})}
        self.first = min(two.running)
        self.moved = 0
        self.is_new = True
        for _ in range(turns_before):
            self.hand.turn("g")
            for puppet in self.puppets.values():
                puppet.obey()
        self.hand.acknowledged.clear()

    @property
    def one(self) -> Puppet:
        return self.puppets["c2"]


def member_obeys(scene: Scene) -> None:
    scene.one.obey()


def all_members_obey(scene: Scene) -> None:
    for puppet in scene.puppets.values():
        puppet.obey()


def member_commits_an_offset(scene: Scene) -> None:
    one = scene.one
    if scene.first in one.running:
        one.move(scene.first, 7)
        scene.moved = 7


def member_commits_and_obeys(scene: Scene) -> None:
    member_commits_an_offset(scene)
    member_obeys(scene)


def session_ends(scene: Scene) -> None:
    member_commits_an_offset(scene)
    scene.puppets.pop("c2").close()


def member_comes_back(scene: Scene) -> None:
    session_ends(scene)
    scene.puppets["c2"] = scene.stage.puppet("g", "c2", {"t": 1})


def another_joins(scene: Scene) -> None:
    scene.puppets["c4"] = scene.stage.puppet("g", "c4", {"t": 1})


def hand_removes_the_history(scene: Scene) -> None:
    scene.world.remove(PATHS.history)


def another_is_elected(scene: Scene) -> None:
    scene.world.store.commit([Delete(COORDINATOR)])
    scene.hand = scene.stage.hand("other")


def commit_is_lost(scene: Scene) -> None:
    """The turn's next one, on its way, where there is one left."""
    scene.point.sessions[0].lose_next_request(only_commit=True)


CHANGES = [
    nothing,
    member_obeys,
    all_members_obey,
    member_commits_an_offset,
    member_commits_and_obeys,
    session_ends,
    member_comes_back,
    another_joins,
    hand_removes_the_history,
    another_is_elected,
    reply_to_a_commit_is_lost,
    commit_is_lost,
]
JOINED_OR_LEFT = (session_ends, member_comes_back, another_joins, another_is_elected)


def is_woken(hand: Hand, turn: Turn) -> bool:
    """Whether another turn follows soon, without a change of the members."""
    return bool(hand.acknowledged) or (turn.again_s is not None and turn.again_s <= SOON_S)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("turns_before", [0, 1, 2])
def test_change_between_any_two_requests_of_a_turn_ends_well(
    change: Callable[[Scene], None], turns_before: int
) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage:
            scene = Scene(world, stage, point, turns_before)
            hand, turn = scene.hand, None
            try:
                with point.sequence(lambda: change(scene)):
                    turn = hand.turn("g")
            except EpochOver:
                assert change is another_is_elected
            if change not in JOINED_OR_LEFT and turn is not None:
                is_busy = any(world.commands("g", name) for name in scene.puppets)
                assert is_busy or world.state("g").state == STABLE or is_woken(hand, turn), "a turn follows"
            scene.hand.settle("g", *scene.puppets.values())
            state = world.state("g")
            assert sorted(state.target) == sorted(scene.puppets)
            assert {name: each.running for name, each in scene.puppets.items()} == {
                name: target.partitions for name, target in state.target.items()
            }
            assert world.owners("g").keys() == ALL
            for puppet in scene.puppets.values():
                puppet.read_offsets()
            assert world.offsets("g")[scene.first] == scene.moved, "its next owner goes on there"
            assert sum(puppet.stale for puppet in scene.puppets.values()) == 0 or change in JOINED_OR_LEFT
            if change in (session_ends, another_joins):
                assert state.generation <= 3, "one for c3, one for the change"
            if change not in JOINED_OR_LEFT:
                assert state.generation == 2
                sent = [world.created_commands("g", name) for name in sorted(scene.puppets)]
                assert sent == SENT, "each command is sent once"

    assert at_every_point(in_virtual_time(play)) > 3

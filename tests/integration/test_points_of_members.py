"""What happens between any two requests of a consumer while it joins, is rebalanced and leaves costs no record.

Its group is assigned by the coordinator, or by itself as the leader: then its requests are those of an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from consumer.errors import FencedInstanceId
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Delete, Store
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from tests.simulation.store import SimStore
from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_every_point, in_virtual_time
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World, a_world, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)


@dataclass
class Scene:
    """Group `g`: c1, whose requests are the sequence, joins beside c0.

    :ivar fenced: a c1 whose name another process has taken.
    """

    world: World
    point: Point
    assignment: str
    log: MemoryLog = field(default_factory=lambda: MemoryLog(end=20))
    sessions: list[SimStore] = field(default_factory=list)
    members: dict[str, PollingConsumer] = field(default_factory=dict)
    fenced: list[PollingConsumer] = field(default_factory=list)

    def opened(self) -> Store:
        store = kazoo_factory(self.world.zk, SESSION_MS)()
        assert isinstance(store, SimStore)
        self.sessions.append(store)
        return self.point.wrap(store)

    def joins(self, name: str) -> PollingConsumer:
        opener = self.opened if name == "c1" else None
        made = self.world.consumer("g", name, {"t": 1}, log=self.log, opener=opener, assignment=self.assignment)
        self.members[name] = made
        return made

    def is_settled(self) -> bool:
        world, state = self.world, self.world.state("g")
        assert (state.state, sorted(state.target)) == ("Stable", sorted(self.members)), state
        held = sorted(part for each in self.members.values() for part in each.held)
        assert held == sorted(ALL) and world.owners("g").keys() == ALL, held
        for name, each in self.members.items():
            assert world.commands("g", name) == []
            running = frozenset(world.channel("g", name).running)
            assert running == state.target[name].partitions == each.held
        return True

    def is_fenced(self) -> bool:
        return all(isinstance(each.error, FencedInstanceId) for each in self.fenced)

    def reads_on(self) -> None:
        self.log.end += 5
        wanted = {(part, offset) for part in ALL for offset in range(self.log.end)}

        def polled() -> bool:
            return {item for each in self.world.consumers for item in each.polled.copy()} >= wanted

        eventually(polled, 10, "all records are delivered")


def reply_is_lost(scene: Scene) -> None:
    if scene.sessions:
        scene.sessions[-1].lose_next_reply()


def request_is_lost(scene: Scene) -> None:
    if scene.sessions:
        scene.sessions[-1].lose_next_request()


def session_ends(scene: Scene) -> None:
    if scene.sessions:
        scene.sessions[-1].expire()


def another_process_takes_the_name(scene: Scene) -> None:
    """Each is fenced by the later one; a process that has not registered yet would take the name itself."""
    if scene.world.data(PATHS.id("c1")) is not None:
        old = scene.members["c1"]
        scene.members["c1"] = scene.world.consumer("g", "c1", {"t": 1}, log=scene.log, assignment=scene.assignment)
        eventually(lambda: scene.members["c1"].consumer.member.registrations, 10, "it has registered")
        scene.fenced.append(old)


def other_member_leaves(scene: Scene) -> None:
    if "c0" in scene.members:
        scene.members.pop("c0").close()


def another_joins(scene: Scene) -> None:
    scene.joins("c2")
    eventually(lambda: scene.world.data(PATHS.id("c2")), 10, "it has registered")


def hand_removes_the_channel(scene: Scene) -> None:
    if scene.world.data(PATHS.channel("c1")) is not None:
        scene.world.remove(PATHS.channel("c1"))


def coordinator_is_deposed(scene: Scene) -> None:
    if scene.world.data(COORDINATOR) is not None:
        scene.world.store.commit([Delete(COORDINATOR)])


CHANGES = [
    reply_is_lost,
    request_is_lost,
    session_ends,
    another_process_takes_the_name,
    other_member_leaves,
    another_joins,
    hand_removes_the_channel,
    coordinator_is_deposed,
]
UNCLEAN = (session_ends, another_process_takes_the_name, hand_removes_the_channel)
"""After these records may come again."""


@pytest.mark.parametrize("assignment", ["coordinator", "client"])
@pytest.mark.parametrize("change", CHANGES)
def test_change_between_any_two_requests_of_a_member_costs_no_record(
    change: Callable[[Scene], None], assignment: str
) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world:
            scene = Scene(world, point, assignment)
            world.topic("t", 4)
            world.coordinator()
            with point.sequence(lambda: change(scene)):
                scene.joins("c1")
                eventually(lambda: world.data(PATHS.id("c1")), 10, "c1 has registered")
                scene.joins("c0")
                eventually(scene.is_settled, 20, "the group has settled", ignoring=(KeyError, RuntimeError))
            eventually(scene.is_settled, 20, "the group has settled again", ignoring=(KeyError, RuntimeError))
            eventually(scene.is_fenced, 10, "the first c1 is fenced")
            scene.reads_on()
            if change is reply_is_lost:
                assert world.registrations("g") == 2, "each has registered once"
            if change not in UNCLEAN:
                world.delivered_once("t", 4, scene.log.end)
                assert [each.error for each in world.consumers] == [None] * len(world.consumers)

    assert at_every_point(in_virtual_time(play), answers=False) > 10

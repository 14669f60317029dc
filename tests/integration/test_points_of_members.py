"""What happens between any two requests of a consumer while it joins, is rebalanced and leaves costs no record.

Its group is assigned by the coordinator, or by itself as the leader: then its requests are those of an answer, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from consumer.errors import FencedInstanceId
from coordinator.admin.control import remove_seats
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Delete, Store, StoreFactory
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import Seat, TurnRequest
from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_every_point, in_virtual_time, reply_is_lost, request_is_lost, session_ends
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World, a_world, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)


@dataclass
class Scene:
    """Group `g`: c1, whose requests are the sequence, joins beside c0.

    :ivar is_static: whether c1 is a static member.  :ivar fenced: a c1 whose name another process has taken.
    """

    world: World
    point: Point
    assignment: str
    is_static: bool = False
    log: MemoryLog = field(default_factory=lambda: MemoryLog(end=20))
    members: dict[str, PollingConsumer] = field(default_factory=dict)
    fenced: list[PollingConsumer] = field(default_factory=list)

    def opened(self) -> Store:
        return self.point.wrap(kazoo_factory(self.world.zk, SESSION_MS)())

    def joins(self, name: str, is_static: bool = False, opener: StoreFactory | None = None) -> PollingConsumer:
        options: dict[str, Any] = {"group_instance_id": name} if is_static else {}
        self.members[name] = self.world.consumer(
            "g", name, {"t": 1}, log=self.log, opener=opener, assignment=self.assignment, **options
        )
        return self.members[name]

    def is_settled(self) -> bool:
        world, state = self.world, self.world.state("g")
        assert (state.state, sorted(state.target)) == ("Stable", sorted(self.members)), state
        held = sorted(part for each in self.members.values() for part in each.held)
        assert held == sorted(ALL) and world.owners("g").keys() == ALL, held
        seats = [Seat.parse("", world.data(PATHS.seat(name)) or b"").registration for name in world.names(PATHS.seats)]
        lives = [world.channel("g", "c1").incarnation] if self.is_static else []
        assert [seat.incarnation for seat in seats] == lives
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


def another_process_takes_the_name(scene: Scene) -> None:
    """Each is fenced by the later one; a process that has not registered yet would take the name itself."""
    if scene.world.data(PATHS.id("c1")) is not None:
        scene.fenced.append(scene.members["c1"])
        taker = scene.joins("c1", scene.is_static)
        eventually(lambda: taker.consumer.member.registrations, 10, "it has registered")


def dynamic_process_takes_the_name(scene: Scene) -> None:
    """It has no seat."""
    if scene.world.data(PATHS.id("c1")) is not None:
        scene.is_static = False
        another_process_takes_the_name(scene)


def operator_removes_the_seat(scene: Scene) -> None:
    """The member comes back on a seat of its own."""
    if scene.world.data(PATHS.seat("c1")) is not None:
        remove_seats(scene.world.store, "g", ["c1"], "a test")
        scene.world.put(PATHS.request, TurnRequest("ann", 0).to_bytes())


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
OF_STATIC_MEMBERS = [
    reply_is_lost,
    session_ends,
    another_process_takes_the_name,
    dynamic_process_takes_the_name,
    operator_removes_the_seat,
]
UNCLEAN = (
    session_ends,
    another_process_takes_the_name,
    dynamic_process_takes_the_name,
    operator_removes_the_seat,
    hand_removes_the_channel,
)
"""After these records may come again."""


@pytest.mark.parametrize(
    ("change", "assignment", "is_static"),
    [
        *((change, side, False) for side in ("coordinator", "client") for change in CHANGES),
        *((change, "coordinator", True) for change in OF_STATIC_MEMBERS),
    ],
)
def test_change_between_any_two_requests_of_a_member_costs_no_record(
    change: Callable[[Scene], None], assignment: str, is_static: bool
) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world:
            scene = Scene(world, point, assignment, is_static)
            world.topic("t", 4)
            world.coordinator()
            with point.sequence(lambda: change(scene)):
                scene.joins("c1", is_static, scene.opened)
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

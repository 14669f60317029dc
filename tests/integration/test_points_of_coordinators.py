"""What somebody else changes between any two requests of a coordinator is seen, without a sweep, and ends well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from coordinator.zk.store import Create, Delete
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import TurnRequest
from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_every_point, in_virtual_time
from tests.support.wait import eventually, within
from tests.support.world import World, a_world, parts

PATHS = GroupPaths("g")
U = Brokers().topic("u")
SEEN_S = 5.0
"""Sweeps are far off: only watches, and reads after them, are as quick."""


@dataclass
class Scene:
    """Group `g` of c1 and c2 over topic `t`, which c3 joins."""

    world: World
    log: MemoryLog
    partitions: int = 4

    def joins(self, name: str, **also: int) -> None:
        """It has registered when this returns."""
        self.world.consumer("g", name, {"t": 1, **also}, log=self.log)
        eventually(lambda: self.world.data(PATHS.id(name)), 10, f"{name} has registered")

    def is_settled(self) -> bool:
        """Whether what is written is one moment's: members, target, what they run, and who owns what."""
        world, state = self.world, self.world.state("g")
        members = world.names(PATHS.ids)
        running = {name: frozenset(world.channel("g", name).running) for name in members}
        every = parts("t", *range(self.partitions)) | (parts("u", 0, 1) if self.world.data(U) else set())
        assert (state.state, sorted(state.target)) == ("Stable", members), state
        assert running == {name: state.target[name].partitions for name in members}, state
        assert sorted(part for some in running.values() for part in some) == sorted(every)
        assert world.owners("g").keys() == every
        assert [name for name in members if world.commands("g", name)] == []
        assert world.names(PATHS.root).count("request") == 0
        return True


def another_joins(scene: Scene) -> None:
    """It subscribes to a topic that appears later."""
    scene.joins("c4", u=1)


def one_leaves(scene: Scene) -> None:
    scene.world.consumers[0].close()


def one_vanishes(scene: Scene) -> None:
    scene.world.consumers[0].vanish()


def one_restarts(scene: Scene) -> None:
    scene.world.consumers[0].vanish()
    scene.joins("c1")


def topic_grows(scene: Scene) -> None:
    scene.partitions = 6
    scene.world.more_partitions("t", 6)


def hand_removes_an_owner(scene: Scene) -> None:
    """No watch is on owners: a turn after it sees it."""
    path = PATHS.owner("t", 0)
    if scene.world.store.get(path) is not None:
        scene.world.store.commit([Delete(path)])
    scene.world.put(PATHS.request, TurnRequest("ann", 0).to_bytes())


def operator_asks_for_a_turn(scene: Scene) -> None:
    scene.world.put(PATHS.request, TurnRequest("ann", 0).to_bytes())


CHANGES = [
    another_joins,
    one_leaves,
    one_vanishes,
    one_restarts,
    topic_grows,
    hand_removes_an_owner,
    operator_asks_for_a_turn,
]
AT_A_START = [another_joins, one_vanishes, topic_grows, operator_asks_for_a_turn]


@pytest.mark.parametrize(
    ("is_elected", "change"),
    [*((True, change) for change in CHANGES), *((False, change) for change in AT_A_START)],
)
def test_change_between_any_two_requests_of_a_coordinator_is_seen(
    is_elected: bool, change: Callable[[Scene], None]
) -> None:
    """The requests are those of a turn and of the listeners, or of the start of a term."""

    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world:
            scene = Scene(world, MemoryLog(end=20))
            world.topic("t", scene.partitions)
            first = world.coordinator(wrap=point.wrap)
            scene.joins("c1")
            scene.joins("c2")
            world.stable("g", 2)
            if not is_elected:
                world.stop_coordinator(first)
                scene.joins("c3")
            with point.sequence(lambda: change(scene)):
                if is_elected:
                    scene.joins("c3")
                else:
                    world.elected(world.coordinator(wrap=point.wrap))
                eventually(scene.is_settled, 10, "the group has settled", ignoring=(Exception,))
            within(scene.is_settled, SEEN_S, f"the group is as it is after {change.__name__}")
            if change is another_joins:
                world.topic("u", 2)
                within(scene.is_settled, SEEN_S, "the topic that has appeared is assigned")
            if change not in (one_vanishes, one_restarts):
                scene.log.end += 10
                eventually(lambda: polled(scene), 5, "all records are delivered")

    assert at_every_point(in_virtual_time(play), answers=False) > 20


def polled(scene: Scene) -> bool:
    polled = {item for consumer in scene.world.consumers for item in consumer.polled.copy()}
    return polled >= {
        (TopicPartition("t", number), offset) for number in range(scene.partitions) for offset in range(scene.log.end)
    }


def test_request_made_anew_between_any_two_requests_of_a_turn_has_its_own() -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world:
            scene = Scene(world, MemoryLog(end=20))
            world.topic("t", scene.partitions)
            world.coordinator(wrap=point.wrap)
            scene.joins("c1")
            scene.joins("c2")
            eventually(scene.is_settled, 10, "the group has settled")

            def made_anew() -> None:
                is_there = world.data(PATHS.request) is not None
                anew = Create(PATHS.request, TurnRequest("bob", 0).to_bytes())
                world.store.commit([Delete(PATHS.owner("t", 0)), *([Delete(PATHS.request)] if is_there else []), anew])

            with point.sequence(made_anew):
                operator_asks_for_a_turn(scene)
                eventually(lambda: world.data(PATHS.request) is None, 10, "a turn was taken")
            within(scene.is_settled, SEEN_S, "the owner that was removed before the second request is made again")

    assert at_every_point(in_virtual_time(play)) > 5

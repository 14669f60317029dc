"""Any history of faults: never two that run a partition, and Stable soon after the last one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from tests.property.effort import Draw, tried
from tests.property.group_world import PATHS, GroupWorld, MemberProcess
from tests.property.snapshots import ASSIGNORS
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.planning.plan import plan
from zk_group.coordinator.zk.errors import Refused
from zk_group.coordinator.zk.store import Create, Delete, SetData
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Seat

pytestmark = pytest.mark.long

NAMES = ("a", "b", "c")
NAMED = {each.name: each for each in ASSIGNORS}


Steps = list[tuple[str, int]]
Meddling = list[tuple[int, str, int]]


# ---- what may happen; `n` is any number, to choose with

Action = Callable[[GroupWorld, int], object]


def of_one(act: Callable[[MemberProcess], object]) -> Action:
    return of_any(lambda process, n: act(process))


def of_any(act: Callable[[MemberProcess, int], object]) -> Action:
    """One of the processes that have not ended does this."""

    def run(world: GroupWorld, n: int) -> None:
        if alive := [process for process in world.processes if not process.gone]:
            act(alive[n % len(alive)], n)

    return run


def toggled(flag: str) -> Action:
    return of_one(lambda process: setattr(process, flag, not getattr(process, flag)))


def wait(world: GroupWorld, n: int) -> None:
    world.turn()
    world.wait(5)
    world.turn()


def join(world: GroupWorld, n: int) -> None:
    world.start(NAMES[n % 3], ({"t": 1}, {"t": 2}, {"t": 1, "u": 1}, {"u": 1})[n // 3 % 4])


def join_a_seat(world: GroupWorld, n: int) -> None:
    """A static member, which returns to its seat if it has one."""
    world.start(NAMES[n % 3], ({"t": 1}, {"t": 1, "u": 1})[n // 3 % 2], is_static=True)


def remove_a_seat(world: GroupWorld, n: int) -> None:
    """As an administrator does."""
    if names := sorted(world.tree.children(PATHS.seats)):
        path = PATHS.seat(names[n % len(names)])
        seat = Seat.parse(path, world.tree.data(path) or b"")
        world.tree.commit([SetData(path, replace(seat, removed="by hand").to_bytes())], 0)


def change_topics(world: GroupWorld, n: int) -> None:
    name = ("t", "u")[n % 2]
    if n % 8 < 2:
        world.topic(name, 0)
    elif n % 8 < 4:
        world.topic(name, 1 + n % 3, topic_id=f"{name}-{n}")
    else:
        grown = len(world.topics[name].partitions) + 1 if name in world.topics else 2
        world.topic(name, min(grown, 5))


def remove_an_owner(world: GroupWorld, n: int) -> None:
    if owners := sorted(world.owners()):
        world.tree.commit([Delete(PATHS.owner(*owners[n % len(owners)]))], 0)


def write_nonsense(process: MemberProcess, n: int) -> None:
    """A command by hand, into a member's channel."""
    data = (b"", b"{", b'{"option":"stop-fetcher"}', b'{"option":"jump"}')[n % 4]
    with suppress(Refused):  # it may have no channel yet
        process.world.tree.commit([Create(PATHS.command_prefix(process.name), data, sequential=True)], 0)


def resubscribe(process: MemberProcess, n: int) -> None:
    """The next incarnation wants something else."""
    process.subscription = ({"t": 1}, {"u": 2}, {"t": 2, "u": 1})[n % 3]
    process.pattern = "static"
    process.lose_session()


ACTIONS: dict[str, Action] = {
    "turn": lambda world, n: world.turn(),
    "tend": of_one(MemberProcess.tend),
    "tick": lambda world, n: world.tick((0.1, 0.6, 1.0, 2.0)[n % 4]),
    "wait": wait,
    "join": join,
    "join by pattern": lambda world, n: world.start(NAMES[n % 3], {".*": 1}, "white_list"),
    "join a seat": join_a_seat,
    "remove a seat": remove_a_seat,
    "die": of_one(MemberProcess.expire),
    "lose a session": of_one(MemberProcess.lose_session),
    "leave": of_one(MemberProcess.leave),
    "go deaf": toggled("deaf"),
    "get stuck": toggled("stuck"),
    "fail over": lambda world, n: world.elect(),
    "change topics": change_topics,
    "remove an owner": remove_an_owner,
    "write nonsense": of_any(write_nonsense),
    "resubscribe": of_any(resubscribe),
    "change threads": of_any(lambda process, n: process.change_threads(1 + n % 3)),
}
OFTEN = (*ACTIONS, "turn", "turn", "tend", "tend", "join a seat")


@dataclass
class Meddler:
    """Interleaves an action with another process: after so many requests, this action."""

    script: Meddling
    wait: int = field(default=-1)

    def __call__(self, world: GroupWorld) -> None:
        if not self.script:
            return
        if self.wait < 0:
            self.wait = self.script[0][0]
        if self.wait > 0:
            self.wait -= 1
            return
        _, action, n = self.script.pop(0)
        self.wait = -1
        ACTIONS[action](world, n)


def step(draw: Draw) -> tuple[str, int]:
    return draw.choice(OFTEN), draw.randrange(64)


def steps(draw: Draw) -> Steps:
    return draw.many(step, 40)


def meddling(draw: Draw) -> Meddling:
    return draw.many(lambda draw: (draw.randint(0, 40), *step(draw)), 15)


def a_world(assignor: Assignor, meddler: Meddler | None = None) -> GroupWorld:
    world = GroupWorld(assignor)
    world.topic("t", 3)
    world.topic("u", 2)
    world.start("a", {"t": 1})
    world.start("b", {"t": 1, "u": 1})
    settle(world)
    world.meddle = meddler or Meddler([])
    return world


def settle(world: GroupWorld, most_turns: int = 40) -> int:
    """Let healthy processes take all due steps; the number of turns."""
    writing = world.writing_turns
    for _ in range(200):
        for process in list(world.processes):
            process.tend()
        again_s = world.turn().again_s
        if is_settled(world):
            assert world.writing_turns - writing <= most_turns, "it converges, but not soon"
            return world.writing_turns - writing
        world.tick(min(max(again_s or 0.0, 0.01), 1.0))
    raise AssertionError(f"not Stable after 200 turns: {world.state}")


def is_settled(world: GroupWorld) -> bool:
    """Whether the group is Stable, each member runs exactly its target, and a turn would write nothing."""
    state = world.state
    living = {process.name: process for process in world.processes if process.is_well}
    if living and state.state != STABLE:
        return False
    snapshot = world.snapshot()
    if plan(snapshot, world.assignors).changes(snapshot.state):
        return False
    return set(state.target) == set(living) and all(channel_is_target(world, name) for name in state.target)


def channel_is_target(world: GroupWorld, name: str) -> bool:
    return frozenset(world.channels()[name].running) == world.state.target[name].partitions


def assert_everything_is_assigned(world: GroupWorld) -> None:
    """S2: disjoint, and every partition of every topic with a live subscriber."""
    wanted = set()
    for process in world.processes:
        if process.is_well:
            topics = set(world.topics) if process.pattern != "static" else set(process.subscription)
            wanted |= topics & set(world.topics)
    every = {TopicPartition(name, number) for name in wanted for number in world.topics[name].partitions}
    targets = [partition for target in world.state.target.values() for partition in target.partitions]
    assert sorted(targets) == sorted(every)
    assert world.owners() == every


@pytest.mark.parametrize("assignor", NAMED)
@tried(60, steps, meddling)
def test_after_any_faults_no_partition_runs_twice_and_the_group_becomes_stable(
    assignor: str, script: Steps, meddling: Meddling
) -> None:
    world = a_world(NAMED[assignor], Meddler(meddling.copy()))
    for action, n in script:
        ACTIONS[action](world, n)
        world.check()
    world.meddle = Meddler([])

    settle(world)

    assert_everything_is_assigned(world)

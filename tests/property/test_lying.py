"""A member that lies, at any moment between the requests of the others: no partition runs twice, and the group settles.

Real turns and real processes on a tree. After every multi and tick: no partition of honest members runs twice (S1).
Offsets are not looked at: the liar writes any of a partition that no member runs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from tests.property.group_world import GROUP, GroupWorld
from tests.property.test_convergence import assert_everything_is_assigned, settle
from zk_group.consumer.membership.registration import register
from zk_group.coordinator.assignors import Assignor, RangeAssignor
from zk_group.coordinator.assignors.sticky import CooperativeStickyAssignor
from zk_group.coordinator.zk.errors import BadData, Refused, StoreError
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OwnerRecord, Registration, parsed_channel

pytestmark = pytest.mark.long

LIAR = "z"
PATHS = GroupPaths(GROUP)
EVERY = [TopicPartition("t", number) for number in range(4)]


class LyingWorld(GroupWorld):
    """A group with a liar, whose moves are drawn."""

    def __init__(self, assignor: Assignor, seed: int) -> None:
        self.random = Random(seed)
        self.lives = 0
        super().__init__(assignor)
        self._liars_store = self.tree.open()
        self.meddle = lambda world: self.lie() if self.random.random() < 0.15 else None

    def channels(self) -> dict[str, Channel]:
        """Those of honest members."""
        return {name: channel for name, channel in super().channels().items() if name != LIAR}

    def sealed(self, channel: Channel, before: dict[TopicPartition, int | None]) -> None:
        """Offsets need not join."""

    def _says(self, channel: Channel, *others: Operation) -> None:
        with suppress(Refused):
            self._liars_store.commit([SetData(PATHS.channel(LIAR), channel.to_bytes()), *others])

    def lie(self) -> None:
        """One move of the liar's."""
        with suppress(BadData):
            channel = parsed_channel("", self.tree.data(PATHS.channel(LIAR)) or b"")
            running = {part: self.random.choice([None, 0, 90]) for part in self.random.sample(EVERY, 2)}
            topics = {"t": "t-1"}
            commands = self.tree.children(PATHS.channel(LIAR))
            gone = [Delete(PATHS.command(LIAR, name)) for name in commands]
            move = self.random.choice(
                ("register", "run", "generation", "remove", "acknowledge", "own", "end", "taken over", "nothing")
            )
            if move == "register":
                self._registers(running)
            elif move == "run":
                self._says(replace(channel, running=running, topics=topics))
            elif move == "generation":
                self._says(replace(channel, generation=self.random.choice([0, 1, self.state.generation, 10**6])))
            elif move == "remove":
                self._says(channel, *gone)
            elif move == "acknowledge":
                last = commands[-1] if commands else "command-0000000000"
                self._says(replace(channel, command=last, running=running, topics=topics), *gone)
            elif move == "own":
                partition = self.random.choice(EVERY)
                owner = OwnerRecord(f"{LIAR}-0", LIAR, channel.incarnation, 1).to_bytes()
                self._says(
                    replace(channel, running={partition: 90}, topics=topics),
                    Create(PATHS.owner(*partition), owner, True),
                )
            elif move == "taken over":
                self._is_taken_over()
            elif move == "end":
                self._says(replace(channel, ended="a lie", running=running, topics=topics))

    def _registers(self, running: dict[TopicPartition, int | None]) -> None:
        """A life of its own making, which writes nothing out; sometimes on a new session."""
        self.lives += 1
        if self.random.random() < 0.5:
            self._liars_store.close()
            self._liars_store = self.tree.open()
        self.tree.ensure(PATHS.channel(LIAR))
        made = Registration(f"lie-{self.lives}", {"u": 1}, lease_ms=500, max_poll_interval_ms=1000)
        made = replace(made, protocols=tuple(self.assignors))
        old = [Delete(PATHS.id(LIAR))] if self.tree.data(PATHS.id(LIAR)) is not None else []
        new = Channel(made.incarnation, running=running, topics={"t": "t-1"})
        self._says(new, *old, Create(PATHS.id(LIAR), made.to_bytes(), True))

    def _is_taken_over(self) -> None:
        """Another process, an honest one, takes the name: it writes out what the channel says."""
        self.lives += 1
        made = Registration(f"honest-{self.lives}", {"u": 1}, protocols=tuple(self.assignors), lease_ms=500)
        with suppress(StoreError):
            register(self._liars_store, PATHS, LIAR, made, None)

    def is_over(self) -> None:
        """The liar ends."""
        self.meddle = lambda world: None
        self._liars_store.close()


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor])
@pytest.mark.parametrize("seed", range(60))
def test_no_lie_makes_a_partition_run_twice_or_keeps_a_group_from_settling(assignor: type[Assignor], seed: int) -> None:
    world = LyingWorld(assignor(), seed)
    world.topic("t", 4)
    world.topic("u", 2)
    world.start("a", {"t": 1})
    for _ in range(60):
        living = [process for process in world.processes if process.is_well]
        move = world.random.random()
        if move < 0.5:
            for process in living:
                process.tend()
        elif move < 0.85:
            world.turn()
        elif move < 0.9 and len(living) < 3:
            world.start(world.random.choice("abc"), {"t": 1})
        elif move < 0.93 and len(living) > 1:
            world.random.choice(living).expire()
        elif move < 0.95:
            world.elect()
        world.tick(world.random.choice([0.01, 0.1, 0.5]))
    world.is_over()
    if not any(process.is_well for process in world.processes):
        world.start("a", {"t": 1})

    settle(world, 60)
    assert_everything_is_assigned(world)
    world.wait(2)

"""Bounds of consistent regions: a thousand members, a hundred groups; on a server of its own."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clients import fresh_chroot
from tests.support.hand import Hand, ManualStage
from tests.support.made_region import MadeMembers
from tests.support.region import PATHS, contributions, region, requested
from tests.support.stores import Reads
from tests.support.world import World
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.store import Delete, Store
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.records import DRAIN, START_FETCHER
from zk_group.coordinator.zk.znodes.regions import CHECKPOINT, MAX_CHECKPOINT_BYTES, RESET, RESETTING, RUNNING

pytestmark = [
    pytest.mark.full("groups of the largest size"),
    pytest.mark.real_zookeeper("a server that has room for large groups"),
]

TURN_S = 2.0
"""CPU seconds of one turn, at most: 0.3 were measured."""
TURN_BYTES = 32_000_000
"""Limit of memory that turns allocate at once: 6 MB were measured."""


@pytest.fixture
def zk(large_server: Ensemble) -> str:
    """See `tests/conftest.py`."""
    return fresh_chroot(large_server.hosts)


class Turns:
    """A coordinator's turns, and what each took.

    :ivar took: label -> CPU seconds.
    """

    def __init__(self, world: World, stage: ManualStage) -> None:
        self._world = world
        self._fronts: list[Reads] = []
        self.hand: Hand = stage.hand(wrap=self._noted)
        self.took: dict[str, float] = {}

    def _noted(self, store: Store) -> Store:
        self._fronts.append(Reads(store))
        return self._fronts[-1]

    @property
    def reads(self) -> Counter[str]:
        """Path of a contribution -> how often it was read."""
        (front,) = self._fronts
        return Counter(path for path in front.paths if "~" in path)

    def timed(self, what: str, step: Callable[[], Any]) -> Any:
        self.hand.term.lease.renew()  # as a coordinator does all the time
        began = time.process_time()
        found = step()
        self.took[what] = max(self.took.get(what, 0.0), time.process_time() - began)
        return found

    def group(self, what: str, group: str) -> None:
        self.timed(what, lambda: self.hand.turn(group))

    def region(self, what: str) -> tuple[str, ...]:
        found: tuple[str, ...] = self.timed(what, lambda: self.hand.region_turn("r"))
        return found

    def begins(self, made: dict[str, MadeMembers]) -> None:
        """A checkpoint: each group has exactly one turn for it, in which its members get a command."""
        requested(self._world, CHECKPOINT)
        assert self.region("begin") == tuple(sorted(made))
        for group in made:
            self.group("drains", group)

    def are_in_bounds(self) -> None:
        """Each took less than `TURN_S`; what they took is printed."""
        print(", ".join(f"{what} {seconds:.3f} s" for what, seconds in self.took.items()))
        assert max(self.took.values()) < TURN_S, self.took


def a_region(
    world: World, turns: Turns, groups: dict[str, int], partitions: int, name: str = "consumer"
) -> dict[str, MadeMembers]:
    """Group -> its members, each with topic `t`; the region is Running."""
    turns.hand.topics["t"] = world.topic("t", partitions)
    made = {
        group: MadeMembers(world.store, group, [f"{group}-{name}-{number:04}" for number in range(count)], ["t"])
        for group, count in groups.items()
    }
    for group in made:  # each of them is a reset
        turns.group("first turn", group)
    while region(world).state != RUNNING:
        for group, members in made.items():
            turns.group("starts", group)
            members.obey()
        turns.region("running")
    assert region(world).state == RUNNING
    return made


def test_checkpoint_and_reset_of_1000_members_read_each_contribution_once(world: World, stage: ManualStage) -> None:
    turns = Turns(world, stage)
    made = a_region(world, turns, {"g": 1000}, 10_000)
    members = made["g"]
    waves = [members.names[first : first + 100] for first in range(0, 1000, 100)]

    for sequence in (1, 2):
        turns.begins(made)
        for wave in waves:
            assert members.obey(wave) == 100
            turns.region("contributions")
        assert (region(world).sequence, region(world).open) == (sequence, 0)
        turns.group("after it", "g")
        turns.group("after it", "g")
        # Once by the region's turns and once by the group's, which read the partitions' owners from them.
        assert set(turns.reads.values()) == {2} and len(turns.reads) == 1000 * sequence
    given = contributions(world, 2)
    assert sum(len(each.offsets) for each in given.values()) == 10_000
    assert len(world.data(PATHS.checkpoint(2)) or b"") < MAX_CHECKPOINT_BYTES

    before = turns.reads
    requested(world, RESET)
    assert turns.region("reset") == ("g",)
    assert region(world).state == RESETTING
    turns.group("stops", "g")
    assert members.obey() == 1000
    turns.group("starts", "g")
    assert members.obey() == 1000
    turns.group("ready", "g")
    turns.region("running")

    found = region(world)
    assert (found.state, found.sequence, found.reset) == (RUNNING, 2, 3)
    assert world.state("g").state == STABLE
    assert turns.reads == before, "the cut is known"
    assert members.largest[START_FETCHER] < 2000 and members.largest[DRAIN] < 500
    turns.are_in_bounds()


def test_last_of_1000_members_gets_every_contribution_in_one_start(world: World, stage: ManualStage) -> None:
    turns = Turns(world, stage)
    made = a_region(world, turns, {"g": 1000}, 2000)
    members = made["g"]
    turns.begins(made)
    members.obey()
    turns.region("contributions")

    left = members.names[0]
    gone = [name for name in members.names if name != left]
    for first in range(0, len(gone), 300):
        world.store.commit([Delete(members.paths.id(name)) for name in gone[first : first + 300]])
    tracemalloc.start()
    for _ in range(6):
        turns.group("after deaths", "g")
        members.obey([left])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(members.channel(left).running) == 2000
    assert 2 * 1000 * len(left) < members.largest[START_FETCHER] < 120_000, "in `from`, and in `gone`"
    print(f"peak {peak / 1e6:.0f} MB, largest start {members.largest[START_FETCHER]} bytes")
    assert peak < TURN_BYTES


def test_region_of_100_groups_takes_one_turn_of_each_per_checkpoint(world: World, stage: ManualStage) -> None:
    turns = Turns(world, stage)
    made = a_region(world, turns, {f"group-{number:03}": 2 for number in range(100)}, 10)
    turns.region("settled")

    for sequence in (1, 2):
        turns.begins(made)
        assert [members.obey() for members in made.values()] == [2] * 100
        assert turns.region("completed") == (), "no group has anything to do"
        assert region(world).sequence == sequence and len(contributions(world, sequence)) == 200
        assert 1 <= max(turns.reads.values()) <= sequence, "each is read once, and once more by the next checkpoint"
    turns.are_in_bounds()

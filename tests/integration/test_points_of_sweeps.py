"""What happens between any two requests of a coordinator's sweep costs no member its offsets or its channel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from coordinator.retention.leftovers import Collector, OffsetCollector
from coordinator.term.term import ServerClock, Term
from coordinator.zk.errors import EpochOver, OutcomeUnknown
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Delete, Store
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import Channel, Topic
from tests.support.hand import ManualStage, Puppet, a_stage
from tests.support.made_group import MadeGroup
from tests.support.points import Point, at_every_point, in_virtual_time, nothing, reply_to_a_commit_is_lost
from tests.support.terms import HeldLease, with_config, with_store
from tests.support.world import World, a_world

PATHS = GroupPaths("g")
BEFORE = {("t", 0): 50, ("t", 1): 60}
MOVED = dict.fromkeys(BEFORE, 90)
SESSION_MS = 1000
LONG_S = 60.0
"""Everything is old then."""


class Scene:
    """Group `g`, Empty: its topic was deleted long ago, and the channel of its last member c1 is as old.

    :ivar members: those that have registered meanwhile.
    """

    def __init__(self, world: World, stage: ManualStage, point: Point) -> None:
        self.world = world
        self.stage = stage
        self.point = point
        self.hand = stage.hand()
        self.hand.term.lease = HeldLease()
        self.members: list[Puppet] = []
        world.topic("other", 1)
        self.made = MadeGroup(world.store)
        self.made.offsets_at(Topic("t", "id-of-t", (0, 1)), {n: offset for (_, n), offset in BEFORE.items()})
        world.put(PATHS.channel("c1"), Channel("old", ended="it has left").to_bytes())

    def term(self, store: Store) -> Term:
        """The term that the turns are of, on the session of the sweeps."""
        return with_config(with_store(self.hand.term, store), channel_retention_ms=20_000)


Sweep = Callable[[], None]


def of_offsets(term: Term) -> Sweep:
    collector = OffsetCollector(term)
    return lambda: collector.collect(["g"])


def of_channels(term: Term) -> Sweep:
    term.clock = ServerClock(term.store, ThreadRuntime())
    collector = Collector(term)
    return lambda: collector.collect(["g"])


def member_registers(scene: Scene) -> None:
    scene.members.append(scene.stage.puppet("g", "c1", {"t": 1}))


def topic_is_back(scene: Scene) -> None:
    """And a member has got the offsets that there are."""
    made = scene.stage.topic("t", 2)
    scene.world.put(scene.world.brokers.topic("t"), made.to_bytes())
    member_registers(scene)
    scene.hand.settle("g", *scene.members)
    scene.members[0].read_offsets()


def member_ran(scene: Scene) -> None:
    """It has committed, and left."""
    topic_is_back(scene)
    member = scene.members.pop()
    for topic, number in BEFORE:
        member.move(TopicPartition(topic, number), 90)
    member.close()
    for _ in range(2):
        scene.hand.turn("g")


def another_is_elected(scene: Scene) -> None:
    scene.world.store.commit([Delete(COORDINATOR)])
    scene.hand = scene.stage.hand("other")


@pytest.mark.parametrize("sweep", [of_offsets, of_channels])
@pytest.mark.parametrize(
    "change", [nothing, reply_to_a_commit_is_lost, member_registers, topic_is_back, member_ran, another_is_elected]
)
def test_sweep_beside_a_change_costs_no_member_anything(
    sweep: Callable[[Term], Sweep], change: Callable[[Scene], None]
) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, SESSION_MS)) as session:
            scene = Scene(world, stage, point)
            sweeps = sweep(scene.term(point.wrap(session)))
            sweeps()
            ThreadRuntime().sleep(LONG_S)
            try:
                with point.sequence(lambda: change(scene)):
                    sweeps()
            except (EpochOver, OutcomeUnknown):
                assert change in (another_is_elected, reply_to_a_commit_is_lost)
            if change in (nothing, reply_to_a_commit_is_lost):
                sweeps()
                gone = PATHS.offsets_of("t") if sweep is of_offsets else PATHS.channel("c1")
                assert world.data(gone) is None, "it is removed"
            for member in scene.members:
                had = member.running
                scene.hand.topics["t"] = Topic("t", "id-of-t", (0, 1))
                scene.hand.settle("g", member)
                member.read_offsets()
                assert not had or member.running == had
                read = {(part.topic, part.partition): world.offsets("g")[part] for part in member.running}
                assert read in (BEFORE, dict.fromkeys(BEFORE, 0)), "all offsets of a topic go, or none"
                member.close()
                for _ in range(2):
                    scene.hand.turn("g")
                assert scene.made.offsets == read, "they are kept when it has left"
            if change is member_ran:
                assert scene.made.offsets == MOVED

    assert at_every_point(in_virtual_time(play)) > 2

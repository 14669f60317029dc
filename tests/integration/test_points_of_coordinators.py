"""What somebody else changes between any two requests of a coordinator is seen, without a sweep, and ends well.

The requests are those of its threads, of one turn that the test takes, or of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.support.hand import Hand, ManualStage, Puppet, a_stage
from tests.support.made_group import MadeGroup
from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_points, nothing, reply_to_a_commit_is_lost
from tests.support.terms import HeldLease, with_config, with_store
from tests.support.wait import eventually, within
from tests.support.world import World, a_world, parts
from zk_group.coordinator.rebalance.rebalancer import Turn
from zk_group.coordinator.retention.leftovers import Collector, OffsetCollector
from zk_group.coordinator.term.term import ServerClock, Term
from zk_group.coordinator.zk.errors import EpochOver, OutcomeUnknown
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Store
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, Topic, TurnRequest

PATHS = GroupPaths("g")

# ---- its threads

U = Brokers().topic("u")
SEEN_S = 5.0
"""Sweeps are far off: only watches, and reads after them, are as quick."""


class Scene:
    """Group `g` of c1 and c2 over topic `t`, and a coordinator whose requests are the sequence."""

    def __init__(self, world: World, point: Point) -> None:
        self.world = world
        self.log = MemoryLog(end=20)
        self.partitions = 4
        world.topic("t", 4)
        self.coordinator = world.coordinator(wrap=point.wrap)
        self.joins("c1")
        self.joins("c2")
        world.stable("g", 2)

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

    def polled(self) -> bool:
        polled = {item for consumer in self.world.consumers for item in consumer.polled.copy()}
        every = parts("t", *range(self.partitions))
        return polled >= {(part, offset) for part in every for offset in range(self.log.end)}

    def one_restarts(self) -> None:
        self.world.consumers[0].vanish()
        self.joins("c1")

    def topic_grows(self) -> None:
        self.partitions = 6
        self.world.more_partitions("t", 6)

    def operator_asks_for_a_turn(self) -> None:
        self.world.put(PATHS.request, TurnRequest("ann", 0).to_bytes())

    def hand_removes_an_owner(self) -> None:
        """No watch is on owners: a turn after it sees it."""
        path = PATHS.owner("t", 0)
        if self.world.store.get(path) is not None:
            self.world.store.commit([Delete(path)])
        self.operator_asks_for_a_turn()


AT_A_START: dict[str, Callable[[Scene], object]] = {
    "another joins": lambda scene: scene.joins("c4", u=1),  # it subscribes to a topic that appears later
    "one vanishes": lambda scene: scene.world.consumers[0].vanish(),
    "a topic grows": Scene.topic_grows,
    "an operator asks for a turn": Scene.operator_asks_for_a_turn,
}
CHANGES = AT_A_START | {
    "one leaves": lambda scene: scene.world.consumers[0].close(),
    "one restarts": Scene.one_restarts,
    "a hand removes an owner": Scene.hand_removes_an_owner,
}


@pytest.mark.parametrize(
    ("is_elected", "change"),
    [*((True, change) for change in CHANGES), *((False, change) for change in AT_A_START)],
)
@at_points(over=20, answers=False)
def test_change_beside_a_coordinator_is_seen(zk: str, point: Point, is_elected: bool, change: str) -> None:
    """The requests are those of a turn and of the listeners, or of the start of a term. c3 joins."""
    with a_world(zk) as world:
        scene = Scene(world, point)
        if not is_elected:
            world.stop_coordinator(scene.coordinator)
            scene.joins("c3")
        with point.sequence(lambda: CHANGES[change](scene)):
            if is_elected:
                scene.joins("c3")
            else:
                world.elected(world.coordinator(wrap=point.wrap))
            eventually(scene.is_settled, 10, "the group has settled", ignoring=(Exception,))
        within(scene.is_settled, SEEN_S, f"the group is as it is after this: {change}")
        if change == "another joins":
            world.topic("u", 2)
            within(scene.is_settled, SEEN_S, "the topic that has appeared is assigned")
        if change not in ("one vanishes", "one restarts"):
            scene.log.end += 10
            eventually(scene.polled, 5, "all records are delivered")


@at_points(over=5)
def test_request_made_again_between_any_two_requests_of_a_turn_has_its_own(zk: str, point: Point) -> None:
    with a_world(zk) as world:
        scene = Scene(world, point)
        eventually(scene.is_settled, 10, "the group has settled")

        def made_again() -> None:
            is_there = world.data(PATHS.request) is not None
            again = Create(PATHS.request, TurnRequest("bob", 0).to_bytes())
            world.store.commit([Delete(PATHS.owner("t", 0)), *([Delete(PATHS.request)] if is_there else []), again])

        with point.sequence(made_again):
            scene.operator_asks_for_a_turn()
            eventually(lambda: world.data(PATHS.request) is None, 10, "a turn was taken")
        within(scene.is_settled, SEEN_S, "the owner that was removed before the second request is made again")


# ---- one turn

ALL = parts("t", 0, 1, 2, 3)
SOON_S = 1.0
SENT = [3, 3, 1]
"""Commands to each member: start, stop, start; the newcomer has a start."""


class OneTurn:
    """Group `g`: c1 and c2 share topic `t`; c3 has joined, and the turn after that is the sequence.

    :ivar moved: the offset that c2, which has to stop something, has committed for its first partition.
    """

    def __init__(self, world: World, stage: ManualStage, point: Point, turns_before: int) -> None:
        self.world = world
        self.stage = stage
        self.point = point
        self.hand = stage.hand(wrap=point.wrap)
        one, two = stage.stable_pair(self.hand)
        self.puppets = {"c1": one, "c2": two}
        self.joins("c3")
        self.first = min(two.running)
        self.moved = 0
        for _ in range(turns_before):
            self.hand.turn("g")
            self.all_obey()
        self.hand.acknowledged.clear()

    def joins(self, name: str) -> None:
        self.puppets[name] = self.stage.puppet("g", name, {"t": 1})

    def all_obey(self) -> None:
        for puppet in self.puppets.values():
            puppet.obey()

    def commits_an_offset(self) -> None:
        if self.first in self.puppets["c2"].running:
            self.puppets["c2"].move(self.first, 7)
            self.moved = 7

    def commits_and_obeys(self) -> None:
        self.commits_an_offset()
        self.puppets["c2"].obey()

    def ends(self) -> None:
        self.commits_an_offset()
        self.puppets.pop("c2").close()

    def comes_back(self) -> None:
        self.ends()
        self.joins("c2")

    def another_is_elected(self) -> None:
        self.world.store.commit([Delete(COORDINATOR)])
        self.hand = self.stage.hand("other")


JOINED_OR_LEFT: dict[str, Callable[[OneTurn], object]] = {
    "its session ends": OneTurn.ends,
    "it comes back": OneTurn.comes_back,
    "another joins": lambda scene: scene.joins("c4"),
    "another is elected": OneTurn.another_is_elected,
}
BESIDE_A_TURN = JOINED_OR_LEFT | {
    "nothing": nothing,
    "a member obeys": lambda scene: scene.puppets["c2"].obey(),
    "all members obey": OneTurn.all_obey,
    "a member commits an offset": OneTurn.commits_an_offset,
    "a member commits and obeys": OneTurn.commits_and_obeys,
    "a hand removes the history": lambda scene: scene.world.remove(PATHS.history),
    "a reply is lost": reply_to_a_commit_is_lost,
    # The turn's next one, on its way, where there is one left.
    "a commit is lost": lambda scene: scene.point.sessions[0].lose_next_request(only_commit=True),
}


def is_woken(hand: Hand, turn: Turn) -> bool:
    """Whether another turn follows soon, without a change of the members."""
    return bool(hand.acknowledged) or (turn.again_s is not None and turn.again_s <= SOON_S)


@pytest.mark.parametrize("change", BESIDE_A_TURN)
@pytest.mark.parametrize("turns_before", [0, 1, 2])
@at_points(over=3)
def test_change_beside_a_turn_ends_well(zk: str, point: Point, change: str, turns_before: int) -> None:
    with a_world(zk) as world, a_stage(zk) as stage:
        scene = OneTurn(world, stage, point, turns_before)
        hand, turn = scene.hand, None
        try:
            with point.sequence(lambda: BESIDE_A_TURN[change](scene)):
                turn = hand.turn("g")
        except EpochOver:
            assert change == "another is elected"
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
        if change in ("its session ends", "another joins"):
            assert state.generation <= 3, "one for c3, one for the change"
        if change not in JOINED_OR_LEFT:
            assert state.generation == 2
            sent = [world.created_commands("g", name) for name in sorted(scene.puppets)]
            assert sent == SENT, "each command is sent once"


# ---- a sweep costs no member its offsets or its channel

BEFORE = {("t", 0): 50, ("t", 1): 60}
MOVED = dict.fromkeys(BEFORE, 90)
T = Topic("t", "id-of-t", (0, 1))
LONG_S = 60.0
"""Everything is old then."""


class Sweeping:
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
        self.made.offsets_at(T, {number: offset for (_, number), offset in BEFORE.items()})
        world.put(PATHS.channel("c1"), Channel("old", ended="it has left").to_bytes())

    def term(self, store: Store) -> Term:
        """The term that the turns are of, on the session of the sweeps."""
        return with_config(with_store(self.hand.term, store), channel_retention_ms=20_000)

    def registers(self) -> None:
        self.members.append(self.stage.puppet("g", "c1", {"t": 1}))

    def topic_is_back(self) -> None:
        """And a member has got the offsets that there are."""
        made = self.stage.topic("t", 2)
        self.world.put(self.world.brokers.topic("t"), made.to_bytes())
        self.registers()
        self.hand.settle("g", *self.members)
        self.members[0].read_offsets()

    def leaves(self, member: Puppet) -> None:
        member.close()
        for _ in range(2):
            self.hand.turn("g")

    def member_ran(self) -> None:
        """It has committed, and left."""
        self.topic_is_back()
        member = self.members.pop()
        for topic, number in BEFORE:
            member.move(TopicPartition(topic, number), 90)
        self.leaves(member)

    def another_is_elected(self) -> None:
        self.world.store.commit([Delete(COORDINATOR)])
        self.hand = self.stage.hand("other")


BESIDE_A_SWEEP: dict[str, Callable[[Sweeping], object]] = {
    "nothing": nothing,
    "a reply is lost": reply_to_a_commit_is_lost,
    "a member registers": Sweeping.registers,
    "its topic is back": Sweeping.topic_is_back,
    "a member ran": Sweeping.member_ran,
    "another is elected": Sweeping.another_is_elected,
}


@pytest.mark.parametrize("of", ["offsets", "channels"])
@pytest.mark.parametrize("change", BESIDE_A_SWEEP)
@at_points(over=2)
def test_sweep_beside_a_change_costs_no_member_anything(zk: str, point: Point, of: str, change: str) -> None:
    with a_world(zk) as world, a_stage(zk) as stage, closing(open_kazoo(zk, 1000)) as session:
        scene = Sweeping(world, stage, point)
        term = scene.term(point.wrap(session))
        if of == "channels":
            term.clock = ServerClock(term.store, ThreadRuntime())
        collector = OffsetCollector(term) if of == "offsets" else Collector(term)
        collector.collect(["g"])
        ThreadRuntime().sleep(LONG_S)
        try:
            with point.sequence(lambda: BESIDE_A_SWEEP[change](scene)):
                collector.collect(["g"])
        except (EpochOver, OutcomeUnknown):
            assert change in ("another is elected", "a reply is lost")
        if change in ("nothing", "a reply is lost"):
            collector.collect(["g"])
            gone = PATHS.offsets_of("t") if of == "offsets" else PATHS.channel("c1")
            assert world.data(gone) is None, "it is removed"
        for member in scene.members:
            had = member.running
            scene.hand.topics["t"] = T
            scene.hand.settle("g", member)
            member.read_offsets()
            assert not had or member.running == had
            read = {(part.topic, part.partition): world.offsets("g")[part] for part in member.running}
            assert read in (BEFORE, dict.fromkeys(BEFORE, 0)), "all offsets of a topic go, or none"
            scene.leaves(member)
            assert scene.made.offsets == read, "they are kept when it has left"
        assert change != "a member ran" or scene.made.offsets == MOVED

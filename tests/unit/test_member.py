"""A consumer's life against real turns of a coordinator, on a tree without time; and the operations of its commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.property.group_world import PATHS, GroupWorld
from tests.property.tree import MemoryTree
from tests.support.memlog import AT_THE_BEGINNING
from tests.support.stores import FrontStore
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.errors import FencedInstanceId, UnknownMemberId
from zk_group.consumer.logs.base import Position
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.membership.channel import FencedChannel
from zk_group.consumer.membership.claims import (
    acknowledgement,
    chunks,
    claim_operations,
    release_operations,
    with_claimed,
)
from zk_group.consumer.membership.member import ConsumerMember
from zk_group.consumer.membership.offsets import Consumption
from zk_group.coordinator.assignors import RangeAssignor
from zk_group.coordinator.zk.errors import ConnectionLost, IncarnationOver, Refused
from zk_group.coordinator.zk.store import Check, Create, Delete, Node, SetData, Watch
from zk_group.coordinator.zk.znodes.partitions import LOST, Discontinuity, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    OffsetRecord,
    OwnerRecord,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Held:
    """A fetcher that records its notifications."""

    def __init__(self) -> None:
        self.starts: dict[TopicPartition, Position] = {}
        self.notified: list[str] = []

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> None:
        self.starts |= starts
        self.notified.append("assigned")

    def revoke(self, partitions: PartitionSet) -> None:
        self._drop(partitions)
        self.notified.append("revoked")

    def lost(self, partitions: PartitionSet) -> None:
        self._drop(partitions)
        self.notified.append("lost")

    def _drop(self, partitions: PartitionSet) -> None:
        self.starts = {part: start for part, start in self.starts.items() if part not in partitions}


class Life:
    """A group with one topic of two partitions, and one member."""

    def __init__(self) -> None:
        self.world = GroupWorld(RangeAssignor())
        self.world.topic("t", 2)
        self.held = Held()
        self.member = self.another("a", self.held)

    def another(self, name: str, held: Held) -> ConsumerMember:
        config = ConsumerConfig(zk="tree", group="g", consumer=name, max_poll_interval_ms=4000)
        runtime = self.world.runtime
        consumption = Consumption(Subscription({"t": 1}), held, AT_THE_BEGINNING)
        return ConsumerMember(MemberContext(config, runtime), self.world.session, consumption)

    def poll(self, member: ConsumerMember | None = None) -> None:
        """A poll after the watches have fired."""
        some = member or self.member
        some.wake.set()
        some.tend()

    def settle(self) -> None:
        for _ in range(5):
            self.poll()
            self.world.turn()

    def keep(self) -> None:
        """Runs the keeper, without polls, until it ends: its waits advance the clock."""
        self.world.runtime.spawned[-1]()

    def send(self, option: str, *started: TopicPartition, thread: str = "a-0", **fields: Any) -> str:
        """A command of the group's epoch and generation for the member, but for these fields; its name."""
        state = self.world.state
        command = Command(option, state.epoch, state.generation, self.channel.incarnation)
        some: dict[str, Any] = {"threads": {thread: frozenset(started)}, "topics": {"t": "t-1"}} if started else {}
        data = replace(command, **some, **fields).to_bytes()
        (path,) = self.world.tree.commit([Create(PATHS.command_prefix("a"), data, sequential=True)], 0)
        return path.rsplit("/", 1)[-1]

    @property
    def channel(self) -> Channel:
        return self.world.channels()["a"]

    @property
    def commands(self) -> list[str]:
        return self.world.tree.children(PATHS.channel("a"))

    def offset(self, partition: TopicPartition) -> int | None:
        data = self.world.tree.data(PATHS.offset(*partition))
        return OffsetRecord.parse("offset", data).offset if data is not None else None


@pytest.fixture
def life() -> Life:
    life = Life()
    life.settle()
    assert set(life.held.starts) == {T0, T1}
    return life


# ---- commands that are not, or no longer, meant for it (hole 5)


@pytest.mark.parametrize("field", [{"incarnation": "another one"}, {"epoch": 0}, {"generation": 0}], ids=str)
def test_command_for_another_incarnation_or_from_before_is_removed_unapplied(life: Life, field: dict[str, Any]) -> None:
    life.send(STOP_FETCHER, **field)
    before = life.channel

    life.poll()

    assert (life.commands, life.channel, life.member._drain.stale) == ([], before, 1)


def test_unreadable_command_is_removed_and_the_next_one_applied(life: Life) -> None:
    life.world.tree.commit([Create(PATHS.command_prefix("a"), b"{", sequential=True)], 0)
    life.send(STOP_FETCHER)

    life.poll()

    assert life.commands == []
    assert dict(life.channel.running) == {}
    assert life.held.notified[-1] == "revoked"


def test_partition_with_an_existing_owner_znode_is_left_out_and_reported(life: Life) -> None:
    """Hole 11: removed by the consumer means applied, and the channel names refused partitions."""
    life.world.topic("t", 3)
    life.world.tree.commit([Create(PATHS.owner("t", 2), b"{}")], 0)
    name = life.send(START_FETCHER, T0, T1, TopicPartition("t", 2))

    life.poll()

    channel = life.channel
    assert (set(channel.running), channel.refused, channel.command) == ({T0, T1}, {TopicPartition("t", 2)}, name)
    assert life.commands == []


def test_unpublished_offset_is_published_next_time_though_it_has_not_moved(life: Life) -> None:
    parent = PATHS.offsets_of("t")
    life.world.tree.commit([*(Delete(PATHS.offset(*partition)) for partition in (T0, T1)), Delete(parent)], 0)
    life.world.runtime.now += 61.0
    life.member.advance({T0: 5})
    life.world.tree.put(parent, b"")
    life.world.runtime.now += 61.0

    life.member.advance({T1: 7})

    assert (life.offset(T0), life.offset(T1)) == (5, 7)


def test_offset_whose_discontinuity_was_sealed_is_published_at_once(life: Life) -> None:
    life.member.advance({T0: 30}, lost={T0: 5}, sealed="a file")
    life.member.advance({T0: 35}, sealed="a file")  # of a seal that has succeeded: its reply was lost
    assert life.channel.running[T0] == 30

    life.member.advance({T0: 40})

    assert life.offset(T0) == 40, "who began there again would repeat it as intended"


# ---- the end of an incarnation


def test_unpolled_consumer_leaves(life: Life) -> None:
    life.member.advance({T0: 5})

    life.keep()

    channel = life.channel
    assert "poll was not called for 4000 ms" in (channel.ended or "")
    assert dict(channel.running) == {}
    assert life.world.tree.data(PATHS.id("a")) is None
    assert life.world.owners() == frozenset()
    assert life.offset(T0) == 5


def test_commit_while_the_consumer_leaves_precedes_the_leave_or_fails(life: Life) -> None:
    life.member.advance({T0: 5})
    errors: list[str] = []

    def commit() -> None:
        try:
            life.member.advance({T0: 6})
        except IncarnationOver as error:
            errors.append(str(error))

    threads: list[threading.Thread] = []

    def meddle(world: GroupWorld) -> None:
        if not threads and world.runtime.now - polled >= 4.0:
            threads.append(threading.Thread(target=commit))
            threads[0].start()
            threads[0].join(0.1)  # it is done by now, or waits for the end

    polled = life.world.runtime.now
    life.world.meddle = meddle
    life.keep()
    threads[0].join(5)

    assert life.channel.ended
    assert life.offset(T0) == (5 if errors else 6)


def test_consumer_waiting_to_rejoin_does_not_spin(life: Life) -> None:
    while life.member.channel is not None:
        life.world.tree.put(PATHS.channel("a"), b"nonsense")
        with pytest.raises(IncarnationOver):
            life.member.advance({})
        for _ in range(2):  # it drops everything, and registers again unless the back-off runs
            life.poll()
    life.poll()

    assert life.member.channel is None
    assert not life.member.wake.is_set(), "a waiting thread is not woken"


def test_process_that_lost_its_name_does_not_rejoin_under_it(life: Life) -> None:
    newer = life.another("a", Held())
    life.poll(newer)

    with pytest.raises((FencedInstanceId, IncarnationOver)):
        life.member.advance({T0: 5})
    with pytest.raises(FencedInstanceId):
        for _ in range(3):
            life.poll()
            life.world.tick(10.0)
    with pytest.raises(FencedInstanceId):
        life.poll()

    assert life.held.starts == {}


def test_take_over_writes_no_offset_of_what_another_incarnation_owns(life: Life) -> None:
    life.member.advance({T0: 5, T1: 7})
    before = life.offset(T1)
    life.world.tree.put(PATHS.owner(*T1), OwnerRecord("b-0", "b", "b-1", 1).to_bytes())

    life.poll(life.another("a", Held()))

    assert (life.offset(T0), life.offset(T1)) == (5, before) and before != 7


def test_a_consumer_whose_channel_was_overwritten_fetches_again_soon(life: Life) -> None:
    life.world.tree.put(PATHS.channel("a"), b"nonsense")
    with pytest.raises(IncarnationOver):
        life.member.advance({T0: 5})

    for _ in range(40):
        life.settle()
        life.world.tick(0.5)

    assert "lost" in life.held.notified
    assert set(life.held.starts) == {T0, T1}


def test_owners_of_a_hanging_consumer_are_removed_after_its_channel_was_destroyed() -> None:
    life = Life()
    life.settle()
    assert life.world.owners() == {T0, T1}
    life.world.tree.commit([SetData(PATHS.channel("a"), b"nonsense")], session=0)

    life.keep()  # no poll

    assert life.world.owners() == frozenset(), "they would remain for as long as the process hangs"


# ---- the operations of a consumer's commits


U0 = TopicPartition("u", 0)
START = Command(START_FETCHER, 5, 3, "a1", {"a-0": frozenset([T0, U0]), "a-1": frozenset([T1])}, topics={"t": "t-1"})
RUNNING = Channel("a1", 4, 2, running={T0: 10, T1: None, U0: 7}, topics={"t": "t-1", "u": "u-1"})
LOST_5 = Discontinuity(LOST, 5)
OPERATIONS: dict[str, tuple[object, object]] = {
    "a claim makes an ephemeral owner with the thread that the command names": (
        claim_operations(PATHS, "a", START, "a1", [T1, T0]),
        [
            Create(PATHS.owner("t", 0), OwnerRecord("a-0", "a", "a1", 3).to_bytes(), ephemeral=True),
            Create(PATHS.owner("t", 1), OwnerRecord("a-1", "a", "a1", 3).to_bytes(), ephemeral=True),
        ],
    ),
    "a release writes known offsets first, leaves never read ones and removes existing owners": (
        release_operations(PATHS, RUNNING, [T0, T1, U0], known=frozenset([T0]), owned=frozenset([T1])),
        [
            SetData(PATHS.offset("t", 0), OffsetRecord(10, "t-1", 2).to_bytes()),
            Create(PATHS.offset("u", 0), OffsetRecord(7, "u-1", 2).to_bytes()),
            Delete(PATHS.owner("t", 1)),
        ],
    ),
    "topic id leaves the channel with its last partition": (RUNNING.without([T0, T1]).topics, {"u": "u-1"}),
    "cause of a discontinuity leaves the channel with its partition": (
        replace(RUNNING, discontinuities={T0: LOST_5, U0: LOST_5}).without([T0, T1]).discontinuities, {U0: LOST_5},
    ),
    "topic id joins the others with its first": (
        with_claimed(RUNNING.without([T0, T1]), [T0], START.topics).topics, RUNNING.topics,
    ),
    "a multi before the last of a command checks it": (
        acknowledgement(PATHS, "a", "command-4", is_last=False), Check(PATHS.command("a", "command-4"), -1),
    ),
    "partitions of several multis are in order": (chunks([T1, T0, U0], 2), [[T0, T1], [U0]]),
}  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations_of_a_commit(found: object, expected: object) -> None:
    assert found == expected


# ---- the channel, when its writes are refused


G = GroupPaths("g")
LIVE = Channel(incarnation="a")
ENDED = Channel(incarnation="a", ended="left by itself")


class Unanswered(FrontStore):
    """Answers commits, and once `is_armed` no reads."""

    is_armed = False

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if self.is_armed:
            raise ConnectionLost("no answer")
        return self.behind.get_many(paths, watch)


def a_channel() -> tuple[MemoryTree, Unanswered, FencedChannel]:
    tree = MemoryTree()
    tree.ensure(G.channels)
    tree.put(G.channel("c1"), LIVE.to_bytes())
    store = Unanswered(tree.open())
    return tree, store, FencedChannel(store, ManualRuntime(), G, "c1", LIVE, 0)


def test_missing_parents_are_made_and_the_end_is_tried_again() -> None:
    tree, _, channel = a_channel()
    end = [Create(G.offset("t", 0), b"x")]

    with pytest.raises(Refused):
        channel.end(ENDED, end, UnknownMemberId("left"))
    assert not channel.is_ending
    channel.end(ENDED, end, UnknownMemberId("left"))

    assert tree.data(G.offset("t", 0)) == b"x"


def test_refused_end_is_none_though_its_parents_could_not_be_made() -> None:
    _, store, channel = a_channel()
    store.is_armed = True

    with pytest.raises(Refused):
        channel.end(ENDED, [Create(G.offset("t", 0), b"x")], UnknownMemberId("left"))

    assert not channel.is_ending, "it goes on fetching"

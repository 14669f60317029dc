"""Changes of znodes with `zkCli` by an operator or a stray script: groups recover, others are not affected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cli import run
from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog
from tests.support.stores import DeafStore
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.json_fields import MAX_CONTINUED, MAX_COUNT
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import (
    ACL_POLICY,
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    TURN_TIMES,
    GroupPaths,
)
from zk_group.coordinator.zk.znodes.records import EpochRecord, OffsetRecord

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)
SWEEP = {"sweep_interval_ms": 200}


class Group:
    """Group `g` of consumers c1 and c2, which have committed all that is in the log, beside its coordinators."""

    def __init__(self, world: World, nodes: int = 1, **options: Any) -> None:
        self.world = world
        self.services = [world.coordinator(**options) for _ in range(nodes)]
        self.log = MemoryLog(end=100)
        self.consumers: list[PollingConsumer] = []
        world.topic("t", 4)
        for name in ("c1", "c2"):
            self.joins(name)
        self.before = world.stable("g", 2)
        eventually(lambda: sum(len(each.records) for each in self.consumers) >= 400, 10, "the log is read")

    def joins(self, name: str) -> None:
        self.consumers.append(self.world.consumer("g", name, {"t": 1}, log=self.log))

    def holds_all(self, timeout_s: float = 10) -> None:
        every = "every partition is held"
        eventually(lambda: frozenset().union(*(c.held for c in self.consumers)) == ALL, timeout_s, every)

    def goes_on(self, above: int | None = None, again: int = 0) -> None:
        """It becomes Stable again in a later generation, reads on, and has lost nothing."""
        world = self.world
        world.stable("g", len(self.consumers), above=self.before.generation if above is None else above)
        self.holds_all()
        self.log.end += 100
        wanted = {(part, offset) for part in ALL for offset in range(self.log.end)}

        def polled() -> bool:
            return {item for each in self.consumers for item in each.polled.copy()} >= wanted

        eventually(polled, 10, "all the new records are delivered")
        eventually(lambda: set(world.owners("g")) == ALL, 10, "every partition has its owner")
        world.delivered_once("t", 4, self.log.end, again=again)


def changed_by_hand(world: World, path: str, data: bytes | None) -> None:
    """Overwritten, or without data removed."""
    if data is None:
        world.remove(path)
    else:
        world.put(path, data)


# ---- owners


@pytest.mark.parametrize(
    "removed",
    [[PATHS.owner("t", 2), PATHS.offset("t", 3)], [PATHS.offsets]],
    ids=["an owner and an offset", "the parent of offsets"],
)
def test_stop_is_acknowledged_without_removed_znodes(world: World, stage: ManualStage, removed: list[str]) -> None:
    hand, puppet = stage.hand(), stage.puppet("g", "c1", {"t": 1})
    topic = stage.topic("t", 4)
    hand.settle("g", puppet)
    world.put(PATHS.offset("t", 3), OffsetRecord(0, topic.id, 0).to_bytes())
    puppet.move(TopicPartition("t", 3), 7)
    stage.puppet("g", "c2", {"t": 1})
    hand.turn("g")
    for path in removed:
        assert world.store.get(path) is not None
        world.remove(path)

    puppet.obey()

    assert (puppet.commands(), puppet.running) == ([], frozenset())
    assert world.offsets("g") == {TopicPartition("t", 3): 7}
    assert set(world.owners("g")) <= parts("t", 0, 1)


def test_start_makes_a_parent_again_that_was_removed_meanwhile(world: World, stage: ManualStage) -> None:
    hand, puppet = stage.hand(), stage.puppet("g", "c1", {"t": 1})
    stage.topic("t", 2)
    hand.turn("g")
    world.remove(PATHS.owners)

    puppet.obey()

    hand.settle("g", puppet)
    assert set(world.owners("g")) == parts("t", 0, 1)


# ---- state


@pytest.mark.parametrize("data", [None, b"", b"scribble", b"[]", b'{"state":"Fine"}'])
def test_lost_state_is_back_after_one_lease(world: World, monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> None:
    monkeypatch.setattr("zk_group.coordinator.rebalance.group_reader.UNKNOWN_LEASE_MS", 600)
    group = Group(world, **SWEEP)

    changed_by_hand(world, PATHS.state, data)

    def marked() -> bool:
        (mark,) = world.state("g").marks
        return (mark.consumer, mark.partitions, mark.lease_ms) == ("unknown", ALL, 600)

    eventually(marked, 5, "earlier evictions are unknown", ignoring=(Exception,))
    assert world.state("g").generation > group.before.generation, "the generation never goes back"
    group.goes_on()


# ---- the coordinator's znodes


@pytest.mark.parametrize("data", [None, b"scribble", EpochRecord(2).to_bytes()], ids=["removed", "scribble", "lowered"])
def test_epoch_goes_on_above_the_one_in_consumers(world: World, data: bytes | None) -> None:
    group = Group(world, session_timeout_ms=1000)
    world.put(CONSUMERS, EpochRecord(17).to_bytes())

    changed_by_hand(world, COORDINATOR_EPOCH, data)

    world.elected(*group.services, above=17)
    assert EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch == 18
    group.joins("c3")
    group.goes_on(above=1)


def test_removed_epochs_repeat_no_epoch_and_no_fence(world: World, stage: ManualStage) -> None:
    elections = []
    for name in "abcd":
        hand = stage.hand(name)
        elections.append((hand.term.epoch, hand.term.fence))
        world.remove(COORDINATOR_EPOCH)
        world.remove(COORDINATOR)

    assert [epoch for epoch, _ in elections] == [1, 2, 3, 4]
    assert len({fence for _, fence in elections}) == 4


def test_members_of_a_later_epoch_than_the_coordinators_come_back(world: World) -> None:
    group = Group(world, session_timeout_ms=1000)
    world.remove(COORDINATOR)
    world.elected(*group.services, above=1)
    world.stable("g", 2)
    group.joins("c3")
    world.stable("g", 3)
    assert world.channel("g", "c3").epoch == 2

    world.put(CONSUMERS, b"")
    world.remove(COORDINATOR_EPOCH)

    eventually(lambda: world.state("g").epoch == 1, 10, "the epochs begin again")
    group.goes_on(above=2)
    assert "evicted: its channel has epoch 2" in str(world.history("g"))


@pytest.mark.parametrize("number", [MAX_CONTINUED, MAX_CONTINUED + 1, MAX_COUNT - 1, MAX_COUNT])
@pytest.mark.parametrize("path", [CONSUMERS, COORDINATOR_EPOCH, PATHS.state])
def test_epoch_that_leaves_no_room_stops_no_group(world: World, path: str, number: int) -> None:
    group = Group(world, session_timeout_ms=1000)
    before = group.before.generation
    world.put(path, b'{"version":1,"epoch":%d}' % number)

    for name in ("c3", "c4"):
        world.remove(COORDINATOR)
        eventually(lambda: world.store.get(COORDINATOR) is not None, 10, "a node is elected")
        group.joins(name)
        before = world.stable("g", len(group.consumers), above=before, timeout_s=120).generation

    written = EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch
    assert world.state("g").epoch == written
    assert written <= MAX_CONTINUED


@pytest.mark.parametrize("number", [10**12, MAX_CONTINUED, MAX_CONTINUED + 1, MAX_COUNT - 1, MAX_COUNT])
def test_generation_that_leaves_no_room_stops_no_group(world: World, number: int) -> None:
    group = Group(world, session_timeout_ms=1000)
    world.put(PATHS.state, replace(group.before, generation=number).to_bytes())

    group.joins("c3")

    world.stable("g", 3, above=group.before.generation, timeout_s=120)
    world.remove(COORDINATOR)
    group.holds_all(60)


def test_scribbled_access_policy_stops_no_consumer_no_term_and_no_election(world: World) -> None:
    world.put(ACL_POLICY, b"x")
    group = Group(world, nodes=2, **SWEEP)
    eventually(lambda: world.store.get(TURN_TIMES) is not None, 10, "the sweep of a term has a znode to create")
    assert world.state("g").epoch == 1

    world.remove(COORDINATOR)

    world.elected(*group.services, above=1)
    group.joins("c3")
    group.goes_on(above=1)
    assert world.state("g").epoch == 2
    health = run(world.zk, "status", "--check")
    assert health.exit_code == 5 and f"{ACL_POLICY} holds no JSON" in health.stdout


# ---- a consumer's znodes


@pytest.mark.parametrize(
    ("path", "data"),
    [(PATHS.id("c1"), None), *((PATHS.channel("c1"), data) for data in (None, b"", b"scribble", b"[[[[]]]]"))],
)
def test_consumer_whose_znode_is_spoilt_registers_again(world: World, path: str, data: bytes | None) -> None:
    group = Group(world)

    changed_by_hand(world, path, data)

    # A channel's offsets are the only copy: its records since the claim are delivered again.
    group.goes_on(again=200 if path == PATHS.channel("c1") else 0)
    assert world.channel("g", "c1").incarnation != group.before.target["c1"].incarnation


def test_channel_overwritten_with_equal_data_stays_in_use(world: World) -> None:
    group = Group(world)
    one, two = group.consumers

    world.put(PATHS.channel("c1"), world.data(PATHS.channel("c1")) or b"")

    group.log.end = 150
    eventually(lambda: len(one.records) + len(two.records) == 600, 10, "both read on", ignoring=(Exception,))
    group.joins("c3")
    group.goes_on()
    assert (one.error, one.consumer.member.registrations) == (None, 1)


def test_group_removed_with_all_its_znodes_starts_again_from_the_beginning(world: World) -> None:
    group = Group(world)

    world.remove(PATHS.root)

    group.goes_on(above=0, again=400)  # with its offsets gone, it reads everything again
    assert group.services[0].problems.current() == {}
    assert [consumer.error for consumer in group.consumers] == [None, None]


def test_a_consumer_whose_offset_was_scribbled_over_waits_with_that_partition_only(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    world.put(PATHS.offset("t", 0), b"scribble")
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=100))
    world.stable("g", 1)

    eventually(lambda: len(consumer.records) == 100, 5, "the other partition is read")
    assert consumer.held == parts("t", 1)

    topic_id = world.state("g").topics["t"]
    world.put(PATHS.offset("t", 0), b'{"version":1,"offset":60,"topic_id":"%s"}' % topic_id.encode())
    eventually(lambda: len(consumer.records) == 140, 5, "it continues at the mended offset")
    assert (TopicPartition("t", 0), 59) not in consumer.polled


# ---- watches


def test_a_coordinator_that_loses_every_watch_event_finds_every_change_in_the_sweep(world: World) -> None:
    group = Group(world, wrap=DeafStore, sweep_interval_ms=150)

    world.more_partitions("t", 5)
    changed = world.stable("g", 2, above=group.before.generation)
    assert {part for target in changed.target.values() for part in target.partitions} == ALL | parts("t", 4)

    world.topic("new", 1)
    world.consumer("g", "c3", {"new": 1}, log=group.log)
    after = world.stable("g", 3, above=changed.generation)
    assert after.target["c3"].partitions == parts("new", 0)
    world.remove(world.brokers.topic("t"))
    last = world.stable("g", 3, above=after.generation)
    assert set(last.topics) == {"new"}
    assert [consumer.held for consumer in group.consumers] == [frozenset(), frozenset()]


def test_a_consumer_that_loses_every_watch_event_still_obeys(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    deaf = world.consumer("g", "c1", {"t": 1}, opener=lambda: DeafStore(open_kazoo(world.zk, 1000)))
    before = world.stable("g", 1)

    joiner = world.consumer("g", "c2", {"t": 1})

    world.stable("g", 2, above=before.generation)
    eventually(lambda: (deaf.held, joiner.held) == (parts("t", 0, 1), parts("t", 2, 3)), 5, "each has its half")
    assert world.state("g").state == STABLE

"""Changes of znodes with `zkCli` by an operator or a stray script: groups recover, others are not affected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.znodes.group_state import COMPLETING, STABLE
from coordinator.zk.znodes.json_fields import MAX_CONTINUED, MAX_COUNT
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import ACL_POLICY, CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, TURN_TIMES, GroupPaths
from coordinator.zk.znodes.records import EpochRecord, OffsetRecord
from tests.support.cli import run
from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog
from tests.support.stores import DeafStore
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)
SWEEP = {"sweep_interval_ms": 200}


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=100)


def a_pair(world: World, log: MemoryLog) -> tuple[PollingConsumer, PollingConsumer]:
    """A Stable group of two consumers that have committed all that was in the log."""
    world.topic("t", 4)
    one, two = (world.consumer("g", name, {"t": 1}, log=log) for name in ("c1", "c2"))
    world.stable("g", 2)
    eventually(lambda: len(one.records) + len(two.records) >= 400, 10, "the log is read")
    return one, two


def goes_on(world: World, log: MemoryLog, *consumers: PollingConsumer, above: int, again: int = 0) -> None:
    """The group becomes Stable again, reads on, and has lost nothing."""
    world.stable("g", len(consumers), above=above)
    eventually(lambda: frozenset().union(*(c.held for c in consumers)) == ALL, 10, "every partition is held")
    log.end += 100
    wanted = {(part, offset) for part in ALL for offset in range(log.end)}
    eventually(
        lambda: {item for c in consumers for item in c.polled.copy()} >= wanted, 10, "all the new records are delivered"
    )
    eventually(lambda: set(world.owners("g")) == ALL, 10, "every partition has its owner")
    world.delivered_once("t", 4, log.end, again=again)


# ---- owners


def test_an_owner_that_was_removed_is_made_again(world: World, log: MemoryLog) -> None:
    world.coordinator(**SWEEP)
    pair = a_pair(world, log)
    before = world.state("g")

    world.remove(PATHS.owner("t", 2))

    goes_on(world, log, *pair, above=before.generation)


def test_an_owner_in_the_way_holds_up_its_own_partition_and_no_other(world: World, log: MemoryLog) -> None:
    world.put(PATHS.owner("t", 1), b"made by hand")
    world.coordinator()
    world.topic("t", 4)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)

    eventually(lambda: consumer.held == parts("t", 0, 2, 3), 5, "all other partitions are held")
    state = world.state("g")
    assert (state.state, state.reason) == (COMPLETING, "c1 waits for t-1 to become free")

    world.remove(PATHS.owner("t", 1))
    world.stable("g", 1, timeout_s=5)
    eventually(lambda: consumer.held == ALL, 5, "and then the last one")
    eventually(lambda: len(consumer.records) == 400, 5, "all records are delivered")
    world.delivered_once("t", 4, 100)


def test_an_owner_that_gets_in_the_way_of_a_start_is_refused_and_then_mended(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    hand.turn("g")
    world.put(PATHS.owner("t", 0))

    puppet.obey()

    channel = world.channel("g", "c1")
    assert (frozenset(channel.running), channel.refused) == (parts("t", 1), parts("t", 0))
    assert puppet.commands() == [], "a start that was refused in part is acknowledged"
    state = hand.turn("g").state
    assert state is not None and (state.state, state.reason) == (COMPLETING, "c1 waits for t-0 to become free")
    world.remove(PATHS.owner("t", 0))
    hand.settle("g", puppet)
    assert (puppet.running, world.channel("g", "c1").refused) == (parts("t", 0, 1), frozenset())


@pytest.mark.parametrize(
    "removed",
    [[PATHS.owner("t", 2), PATHS.offset("t", 3)], [PATHS.offsets]],
    ids=["an owner and an offset", "the parent of offsets"],
)
def test_stop_is_acknowledged_without_znodes_removed_by_hand(
    world: World, stage: ManualStage, removed: list[str]
) -> None:
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
def test_removed_or_overwritten_state_is_recreated_after_one_lease(
    world: World, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    monkeypatch.setattr("coordinator.rebalance.group_reader.UNKNOWN_LEASE_MS", 600)
    world.coordinator(**SWEEP)
    pair = a_pair(world, log)
    before = world.state("g")

    if data is None:
        world.remove(PATHS.state)
    else:
        world.put(PATHS.state, data)

    def marked() -> bool:
        (mark,) = world.state("g").marks
        return (mark.consumer, mark.partitions, mark.lease_ms) == ("unknown", ALL, 600)

    eventually(marked, 5, "earlier evictions are unknown", ignoring=(Exception,))
    assert world.state("g").generation > before.generation, "the generation never goes back"
    goes_on(world, log, *pair, above=before.generation)


# ---- the coordinator's znodes


def test_a_coordinator_whose_znode_was_removed_resigns_and_one_is_elected_again(world: World, log: MemoryLog) -> None:
    services = [world.coordinator(node) for node in ("a", "b")]
    pair = a_pair(world, log)

    world.remove(COORDINATOR)

    world.elected(*services, above=1)
    world.more_partitions("t", 4)
    three = world.consumer("g", "c3", {"t": 1}, log=log)
    goes_on(world, log, *pair, three, above=1)
    assert world.state("g").epoch == 2


@pytest.mark.parametrize(
    "data", [None, b"scribble", EpochRecord(2).to_bytes()], ids=["removed", "overwritten", "lowered"]
)
def test_epoch_goes_on_above_the_one_in_consumers(world: World, log: MemoryLog, data: bytes | None) -> None:
    service = world.coordinator(session_timeout_ms=1000)
    pair = a_pair(world, log)
    world.put(CONSUMERS, EpochRecord(17).to_bytes())

    if data is None:
        world.remove(COORDINATOR_EPOCH)
    else:
        world.put(COORDINATOR_EPOCH, data)

    world.elected(service, above=17)
    assert EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch == 18
    three = world.consumer("g", "c3", {"t": 1}, log=log)
    goes_on(world, log, *pair, three, above=1)


def test_members_of_a_later_epoch_than_the_coordinators_come_back(world: World, log: MemoryLog) -> None:
    service = world.coordinator(session_timeout_ms=1000)
    pair = a_pair(world, log)
    world.remove(COORDINATOR)
    world.elected(service, above=1)
    world.stable("g", 2)
    three = world.consumer("g", "c3", {"t": 1}, log=log)
    world.stable("g", 3)
    assert world.channel("g", "c3").epoch == 2

    world.put(CONSUMERS, b"")
    world.remove(COORDINATOR_EPOCH)

    eventually(lambda: world.state("g").epoch == 1, 10, "the epochs begin again")
    goes_on(world, log, *pair, three, above=2)
    assert "evicted: its channel has epoch 2" in str(world.history("g"))


def test_removed_epochs_repeat_no_epoch_and_no_fence(world: World, stage: ManualStage) -> None:
    elections = []
    for name in "abcd":
        hand = stage.hand(name)
        elections.append((hand.term.epoch, hand.term.fence))
        world.remove(COORDINATOR_EPOCH)
        world.remove(COORDINATOR)

    assert [epoch for epoch, _ in elections] == [1, 2, 3, 4]
    assert len({fence for _, fence in elections}) == 4


@pytest.mark.parametrize("number", [MAX_CONTINUED, MAX_CONTINUED + 1, MAX_COUNT - 1, MAX_COUNT])
@pytest.mark.parametrize("path", [CONSUMERS, COORDINATOR_EPOCH, PATHS.state])
def test_epoch_that_leaves_no_room_stops_no_group(world: World, log: MemoryLog, path: str, number: int) -> None:
    world.coordinator(session_timeout_ms=1000)
    pair = a_pair(world, log)
    before = world.state("g").generation
    world.put(path, b'{"version":1,"epoch":%d}' % number)

    for name in ("c3", "c4"):
        world.remove(COORDINATOR)
        eventually(lambda: world.store.get(COORDINATOR) is not None, 10, "a node is elected")
        pair = (*pair, world.consumer("g", name, {"t": 1}, log=log))
        world.stable("g", len(pair), above=before, timeout_s=120)
        before = world.state("g").generation

    written = EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch
    assert world.state("g").epoch == written
    assert written <= MAX_CONTINUED


@pytest.mark.parametrize("number", [10**12, MAX_CONTINUED, MAX_CONTINUED + 1, MAX_COUNT - 1, MAX_COUNT])
def test_generation_that_leaves_no_room_stops_no_group(world: World, log: MemoryLog, number: int) -> None:
    world.coordinator(session_timeout_ms=1000)
    pair = a_pair(world, log)
    state = world.state("g")
    world.put(PATHS.state, replace(state, generation=number).to_bytes())

    three = world.consumer("g", "c3", {"t": 1}, log=log)

    world.stable("g", 3, above=state.generation, timeout_s=120)
    world.remove(COORDINATOR)
    eventually(lambda: frozenset().union(*(c.held for c in (*pair, three))) == ALL, 60, "every partition is held")


def test_scribbled_access_policy_stops_no_consumer_no_term_and_no_election(world: World, log: MemoryLog) -> None:
    world.put(ACL_POLICY, b"x")
    services = [world.coordinator(**SWEEP), world.coordinator(**SWEEP)]
    pair = a_pair(world, log)
    eventually(lambda: world.store.get(TURN_TIMES) is not None, 10, "the sweep of a term has a znode to create")
    assert world.state("g").epoch == 1

    world.remove(COORDINATOR)

    world.elected(*services, above=1)
    goes_on(world, log, *pair, world.consumer("g", "c3", {"t": 1}, log=log), above=1)
    health = run(world.zk, "status", "--check")
    assert health.exit_code == 5 and f"{ACL_POLICY} holds no JSON" in health.stdout


# ---- a consumer's znodes


def test_a_consumer_whose_registration_was_removed_registers_again(world: World, log: MemoryLog) -> None:
    world.coordinator()
    pair = a_pair(world, log)
    before = world.state("g")

    world.remove(PATHS.id("c1"))

    goes_on(world, log, *pair, above=before.generation)
    assert world.channel("g", "c1").incarnation != before.target["c1"].incarnation


@pytest.mark.parametrize("data", [None, b"", b"scribble", b"[[[[]]]]"])
def test_a_consumer_whose_channel_was_removed_or_scribbled_over_registers_again(
    world: World, log: MemoryLog, data: bytes | None
) -> None:
    world.coordinator()
    pair = a_pair(world, log)
    before = world.state("g")

    if data is None:
        world.remove(PATHS.channel("c1"))
    else:
        world.put(PATHS.channel("c1"), data)

    # The channel's offsets were the only copy: its records since the claim are delivered again.
    goes_on(world, log, *pair, above=before.generation, again=200)
    assert world.channel("g", "c1").incarnation != before.target["c1"].incarnation


def test_channel_overwritten_with_equal_data_stays_in_use(world: World, log: MemoryLog) -> None:
    world.coordinator()
    one, two = a_pair(world, log)
    before = world.state("g")

    world.put(PATHS.channel("c1"), world.data(PATHS.channel("c1")) or b"")

    log.end = 150
    eventually(lambda: len(one.records) + len(two.records) == 600, 10, "both read on", ignoring=(Exception,))
    three = world.consumer("g", "c3", {"t": 1}, log=log)
    goes_on(world, log, one, two, three, above=before.generation)
    assert (one.error, one.consumer.member.registrations) == (None, 1)


def test_group_removed_with_all_its_znodes_starts_again_from_the_beginning(world: World, log: MemoryLog) -> None:
    service = world.coordinator()
    pair = a_pair(world, log)

    world.remove(PATHS.root)

    # With its offsets gone, the group reads everything again.
    goes_on(world, log, *pair, above=0, again=400)
    assert service.problems.current() == {}
    assert [consumer.error for consumer in pair] == [None, None]


def test_a_consumer_whose_offset_was_scribbled_over_waits_with_that_partition_only(
    world: World, stage: ManualStage, log: MemoryLog
) -> None:
    world.coordinator()
    world.topic("t", 2)
    world.put(PATHS.offset("t", 0), b"scribble")
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    world.stable("g", 1)

    eventually(lambda: len(consumer.records) == 100, 5, "the other partition is read")
    assert consumer.held == parts("t", 1)

    topic_id = world.state("g").topics["t"]
    world.put(PATHS.offset("t", 0), b'{"version":1,"offset":60,"topic_id":"%s"}' % topic_id.encode())
    eventually(lambda: len(consumer.records) == 140, 5, "it continues at the mended offset")
    assert (TopicPartition("t", 0), 59) not in consumer.polled


# ---- watches


def test_a_coordinator_that_loses_every_watch_event_finds_every_change_in_the_sweep(
    world: World, log: MemoryLog
) -> None:
    service = world.coordinator(wrap=DeafStore, sweep_interval_ms=150)
    world.elected(service)
    pair = a_pair(world, log)
    before = world.stable("g", 2)

    world.more_partitions("t", 5)
    changed = world.stable("g", 2, above=before.generation)
    assert {part for target in changed.target.values() for part in target.partitions} == ALL | parts("t", 4)

    world.topic("new", 1)
    world.consumer("g", "c3", {"new": 1}, log=log)
    after = world.stable("g", 3, above=changed.generation)
    assert after.target["c3"].partitions == parts("new", 0)
    world.remove(world.brokers.topic("t"))
    last = world.stable("g", 3, above=after.generation)
    assert set(last.topics) == {"new"}
    assert [consumer.held for consumer in pair] == [frozenset(), frozenset()]


def test_a_consumer_that_loses_every_watch_event_still_obeys(world: World, log: MemoryLog) -> None:
    world.coordinator()
    world.topic("t", 4)
    deaf = world.consumer("g", "c1", {"t": 1}, log=log, opener=lambda: DeafStore(open_kazoo(world.zk, 1000)))
    before = world.stable("g", 1)

    joiner = world.consumer("g", "c2", {"t": 1}, log=log)

    world.stable("g", 2, above=before.generation)
    eventually(lambda: (deaf.held, joiner.held) == (parts("t", 0, 1), parts("t", 2, 3)), 5, "each has its half")
    assert world.state("g").state == STABLE

"""The reply to a commit is lost once: it has happened, its sender does not know, and all must end well.

Those of a turn and of a registration are in the `test_points_of_` files.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.zk.store import Create
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import START_FETCHER, EpochRecord, OffsetRecord
from drills.faults.proxy import CREATE, DELETE, SET_DATA, SYNC, op_code
from tests.support.memlog import MemoryLog
from tests.support.multis import both, has_step
from tests.support.proxy import Loss, Proxy
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)
SESSION = {"session_timeout_ms": 4000}
STRATEGIES = ("range", "cooperative-sticky")
"""The first stops eagerly, the second only what moves."""


@pytest.fixture
def through(zookeeper_proxy: Proxy, zk: str) -> str:
    """The connect string that leads through the proxy. Ask for it before `world`, so that it outlives that."""
    return f"{zookeeper_proxy.hosts}/{zk.split('/')[1]}"


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=100)


def ends_well(world: World, log: MemoryLog, *consumers: PollingConsumer, generation: int) -> None:
    """Stable in that very generation; one owner and one holder for each partition; nothing lost, nothing twice."""
    state = world.stable("g", len(consumers))
    assert state.generation == generation, "a lost reply is no reason for another rebalance"
    eventually(lambda: sorted(p for c in consumers for p in c.held) == sorted(ALL), 5, "each partition has one holder")
    log.end += 50
    eventually(
        lambda: (
            {item for c in world.consumers for item in c.polled.copy()}
            >= {(part, offset) for part in ALL for offset in range(log.end)}
        ),
        10,
        "all records are delivered",
    )
    world.delivered_once("t", 4, log.end)
    assert set(world.owners("g")) == ALL
    assert [c.error for c in consumers] == [None] * len(consumers)
    for consumer in consumers:
        assert world.commands("g", consumer.name) == []
        channel = world.channel("g", consumer.name)
        assert frozenset(channel.running) == state.target[consumer.name].partitions


def restarted(one: PollingConsumer, strategy: str) -> list[tuple[str, frozenset[TopicPartition]]]:
    """The callbacks of a member that has run all partitions, was stopped once, and runs two."""
    kept = frozenset(one.held)
    assert len(kept) == 2
    if strategy == "range":
        return [("assigned", ALL), ("revoked", ALL), ("assigned", kept)]
    return [("assigned", ALL), ("revoked", ALL - kept)]


# ---- the coordinator's


def test_the_reply_to_an_election_is_lost(through: str, zookeeper_proxy: Proxy, world: World) -> None:
    loss = zookeeper_proxy.drop_reply(has_step(CREATE, COORDINATOR))

    service = world.coordinator("a", zk=through, **SESSION)

    assert world.elected(service) is service
    loss.wait()
    assert EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch == 1, "it was elected once"
    world.topic("t", 1)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)


def test_the_reply_to_the_creation_of_a_groups_state_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog
) -> None:
    world.coordinator(zk=through, **SESSION)
    world.topic("t", 4)
    loss = zookeeper_proxy.drop_reply(has_step(CREATE, PATHS.state))

    consumer = world.consumer("g", "c1", {"t": 1}, log=log)

    loss.wait()
    ends_well(world, log, consumer, generation=1)
    assert world.created_commands("g", "c1") == 1, "the command was not sent twice"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_reply_to_a_stop_that_is_sent_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog, strategy: str
) -> None:
    world.coordinator(zk=through, **SESSION)
    world.topic("t", 4)
    one = world.consumer("g", "c1", {"t": 1}, log=log, protocols=(strategy,))
    world.stable("g", 1)
    loss = zookeeper_proxy.drop_reply(has_step(CREATE, PATHS.command_prefix("c1"), b"stop-fetcher"))

    two = world.consumer("g", "c2", {"t": 1}, log=log, protocols=(strategy,))

    loss.wait()
    world.stable("g", 2)
    ends_well(world, log, one, two, generation=2)
    sent = {"range": 3, "cooperative-sticky": 2}  # start, stop; and a start, after a stop that was eager
    assert world.created_commands("g", "c1") == sent[strategy], "the stop was not sent twice"
    assert one.events == restarted(one, strategy)


def test_the_reply_to_the_end_of_a_dead_incarnation_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog
) -> None:
    world.coordinator(zk=through, **SESSION)
    world.topic("t", 4)
    dies = world.consumer("g", "c1", {"t": 1}, log=log)
    stays = world.consumer("g", "c2", {"t": 1}, log=log)
    before = world.stable("g", 2)
    loss = zookeeper_proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b'"ended":"'))

    dies.vanish()

    loss.wait()
    world.stable("g", 1)
    ends_well(world, log, stays, generation=before.generation + 1)
    assert world.channel("g", "c1").ended == "its session ended"


def test_the_reply_to_an_eviction_is_lost(
    through: str, zookeeper_proxy: Proxy, second_proxy: Proxy, world: World, log: MemoryLog
) -> None:
    world.coordinator(zk=through, **SESSION)
    world.topic("t", 4)
    options = {"max_poll_interval_ms": 1000, "session_timeout_ms": 3000}
    zk = f"{second_proxy.hosts}/{world.zk.split('/')[1]}"
    hangs = world.consumer("g", "c1", {"t": 1}, zk=zk, log=log, **options)
    stays = world.consumer("g", "c2", {"t": 1}, log=log)
    world.stable("g", 2)
    loss = zookeeper_proxy.drop_reply(has_step(DELETE, PATHS.id("c1")))
    second_proxy.hold()

    loss.wait()

    assert [mark.consumer for mark in world.state("g").marks] == ["c1"]
    generation = world.stable("g", 1).generation
    ends_well(world, log, stays, generation=generation)
    second_proxy.resume()
    world.stable("g", 2, above=generation)
    ends_well(world, log, hangs, stays, generation=generation + 1)


# ---- the consumer's


def acknowledges(option: str) -> Callable[[bytes], bool]:
    """The multi with which c1 acknowledges a command."""
    owner = has_step(CREATE if option == START_FETCHER else DELETE, PATHS.owners)
    return both(has_step(DELETE, PATHS.command_prefix("c1")), has_step(SET_DATA, PATHS.channel("c1")), owner)


def lose_the_syncs_after(loss: Loss, proxy: Proxy, count: int = 3) -> list[Loss]:
    """Lose what a consumer asks with to find out what became of its commit, so that it stays unsure for a while."""
    return [proxy.drop_reply(lambda body: op_code(body) == SYNC and loss.lost.is_set()) for _ in range(count)]


@pytest.mark.parametrize("stays_unsure", [False, True])
def test_the_reply_to_a_claim_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog, stays_unsure: bool
) -> None:
    world.coordinator()
    world.topic("t", 4)
    loss = zookeeper_proxy.drop_reply(acknowledges("start-fetcher"))
    syncs = lose_the_syncs_after(loss, zookeeper_proxy) if stays_unsure else []

    consumer = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, **SESSION)

    for lost in (loss, *syncs):
        lost.wait()
    ends_well(world, log, consumer, generation=1)
    assert consumer.events == [("assigned", ALL)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("stays_unsure", [False, True])
def test_the_reply_to_the_acknowledgement_of_a_stop_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog, stays_unsure: bool, strategy: str
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, protocols=(strategy,), **SESSION)
    world.stable("g", 1)
    loss = zookeeper_proxy.drop_reply(acknowledges("stop-fetcher"))
    syncs = lose_the_syncs_after(loss, zookeeper_proxy) if stays_unsure else []

    two = world.consumer("g", "c2", {"t": 1}, log=log, protocols=(strategy,))

    for lost in (loss, *syncs):
        lost.wait()
    world.stable("g", 2)
    ends_well(world, log, one, two, generation=2)
    assert one.events == restarted(one, strategy), "no fetcher starts in between"


@pytest.mark.parametrize("stays_unsure", [False, True])
def test_the_reply_to_a_commit_of_offsets_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog, stays_unsure: bool
) -> None:
    world.coordinator()
    world.topic("t", 4)
    log.end = 0
    one = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, **SESSION)
    world.stable("g", 1)
    loss = zookeeper_proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b":80}"))
    syncs = lose_the_syncs_after(loss, zookeeper_proxy) if stays_unsure else []

    log.end = 80

    for lost in (loss, *syncs):
        lost.wait()
    two = world.consumer("g", "c2", {"t": 1}, log=log)
    world.stable("g", 2)
    ends_well(world, log, one, two, generation=2)


def test_the_reply_to_a_sign_of_life_is_lost(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, max_poll_interval_ms=1000, **SESSION)
    world.stable("g", 1)
    eventually(lambda: len(one.records) == 400, 10, "all is read")

    zookeeper_proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b'"touched":')).wait()

    ends_well(world, log, one, generation=1)


def test_the_reply_to_a_leave_is_lost(through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog) -> None:
    world.coordinator()
    world.topic("t", 4)
    leaver = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, **SESSION)
    stays = world.consumer("g", "c2", {"t": 1}, log=log)
    before = world.stable("g", 2)
    eventually(lambda: len(leaver.records) + len(stays.records) == 400, 10, "all is read")
    loss = zookeeper_proxy.drop_reply(has_step(DELETE, PATHS.id("c1")))

    leaver.close()

    loss.wait()
    world.stable("g", 1)
    ends_well(world, log, stays, generation=before.generation + 1)
    channel = world.channel("g", "c1")
    assert (channel.ended, dict(channel.running)) == ("left", {})
    record = OffsetRecord.parse("", world.data(PATHS.offset("t", 0)) or b"")
    assert (record.offset, record.generation) == (100, before.generation)


# ---- requests that are lost on their way there, and connections


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("option", ["start-fetcher", "stop-fetcher"])
def test_an_acknowledgement_that_is_lost_on_its_way_is_sent_again(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog, option: str, strategy: str
) -> None:
    world.coordinator()
    world.topic("t", 4)
    loss = zookeeper_proxy.drop_request(acknowledges(option))
    one = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, protocols=(strategy,), **SESSION)
    world.stable("g", 1)

    two = world.consumer("g", "c2", {"t": 1}, log=log, protocols=(strategy,))

    loss.wait()
    world.stable("g", 2)
    ends_well(world, log, one, two, generation=2)


def test_connections_that_are_cut_again_and_again_leave_no_trace(
    through: str, zookeeper_proxy: Proxy, world: World, log: MemoryLog
) -> None:
    service = world.coordinator(zk=through, **SESSION)
    world.topic("t", 4)
    one = world.consumer("g", "c1", {"t": 1}, zk=through, log=log, **SESSION)
    world.stable("g", 1)
    for number in range(5):
        links = zookeeper_proxy.connections
        zookeeper_proxy.cut()
        world.store.commit([Create(f"/mark-{number}")])
        eventually(lambda n=links: zookeeper_proxy.connections >= n, 5, "both are connected again")
        log.end += 10
    two = world.consumer("g", "c2", {"t": 1}, zk=through, log=log, **SESSION)

    world.stable("g", 2)

    ends_well(world, log, one, two, generation=2)
    assert service.term is not None and service.term.epoch == 1
    assert (service.problems.count, service.problems.current()) == (0, {})
    assert one.consumer.position(TopicPartition("t", 0)) == log.end

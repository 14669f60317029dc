"""The reply to a commit is lost once: it has happened, its sender does not know, and all must end well.

Those of a turn and of a registration are in the `test_points_of_` files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from coordinator.service import CoordinatorService
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


class Lossy(NamedTuple):
    """Topic `t` of four partitions, group `g`, and a proxy that leads to ZooKeeper."""

    world: World
    proxy: Proxy
    log: MemoryLog
    through: str

    def coordinator(self, **options: Any) -> CoordinatorService:
        """One whose replies may be lost."""
        return self.world.coordinator(zk=self.through, **SESSION, **options)

    def consumer(self, name: str, **options: Any) -> PollingConsumer:
        return self.world.consumer("g", name, {"t": 1}, log=self.log, **options)

    def at_risk(self, name: str = "c1", **options: Any) -> PollingConsumer:
        """One whose replies may be lost."""
        return self.consumer(name, zk=self.through, **{**SESSION, **options})

    def loses_syncs_after(self, loss: Loss) -> list[Loss]:
        """What a consumer asks with to find out what became of its commit, so that it stays unsure for a while."""
        return [self.proxy.drop_reply(lambda body: op_code(body) == SYNC and loss.lost.is_set()) for _ in range(3)]

    def ends_well(self, *consumers: PollingConsumer, generation: int) -> None:
        """Stable in that very generation; one owner and one holder for each partition; nothing lost, nothing twice."""
        world, log = self.world, self.log
        state = world.stable("g", len(consumers))
        assert state.generation == generation, "a lost reply is no reason for another rebalance"
        eventually(
            lambda: sorted(p for c in consumers for p in c.held) == sorted(ALL), 5, "each partition has one holder"
        )
        log.end += 50
        wanted = {(part, offset) for part in ALL for offset in range(log.end)}
        eventually(
            lambda: {item for c in world.consumers for item in c.polled.copy()} >= wanted,
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


@pytest.fixture
def lossy(zookeeper_proxy: Proxy, world: World) -> Lossy:
    world.topic("t", 4)
    return Lossy(world, zookeeper_proxy, MemoryLog(end=100), f"{zookeeper_proxy.hosts}/{world.zk.split('/')[1]}")


def restarted(one: PollingConsumer, strategy: str) -> list[tuple[str, frozenset[TopicPartition]]]:
    """The callbacks of a member that has run all partitions, was stopped once, and runs two."""
    kept = frozenset(one.held)
    assert len(kept) == 2
    if strategy == "range":
        return [("assigned", ALL), ("revoked", ALL), ("assigned", kept)]
    return [("assigned", ALL), ("revoked", ALL - kept)]


# ---- the coordinator's


def test_the_reply_to_an_election_is_lost(lossy: Lossy) -> None:
    loss = lossy.proxy.drop_reply(has_step(CREATE, COORDINATOR))

    service = lossy.coordinator()

    assert lossy.world.elected(service) is service
    loss.wait()
    assert EpochRecord.parse("", lossy.world.data(COORDINATOR_EPOCH) or b"").epoch == 1, "it was elected once"
    lossy.ends_well(lossy.consumer("c1"), generation=1)


def test_the_reply_to_the_creation_of_a_groups_state_is_lost(lossy: Lossy) -> None:
    lossy.coordinator()
    loss = lossy.proxy.drop_reply(has_step(CREATE, PATHS.state))

    consumer = lossy.consumer("c1")

    loss.wait()
    lossy.ends_well(consumer, generation=1)
    assert lossy.world.created_commands("g", "c1") == 1, "the command was not sent twice"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_reply_to_a_stop_that_is_sent_is_lost(lossy: Lossy, strategy: str) -> None:
    lossy.coordinator()
    one = lossy.consumer("c1", protocols=(strategy,))
    lossy.world.stable("g", 1)
    loss = lossy.proxy.drop_reply(has_step(CREATE, PATHS.command_prefix("c1"), b"stop-fetcher"))

    two = lossy.consumer("c2", protocols=(strategy,))

    loss.wait()
    lossy.ends_well(one, two, generation=2)
    sent = {"range": 3, "cooperative-sticky": 2}  # start, stop; and a start, after a stop that was eager
    assert lossy.world.created_commands("g", "c1") == sent[strategy], "the stop was not sent twice"
    assert one.events == restarted(one, strategy)


def test_the_reply_to_the_end_of_a_dead_incarnation_is_lost(lossy: Lossy) -> None:
    lossy.coordinator()
    dies, stays = lossy.consumer("c1"), lossy.consumer("c2")
    before = lossy.world.stable("g", 2)
    loss = lossy.proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b'"ended":"'))

    dies.vanish()

    loss.wait()
    lossy.ends_well(stays, generation=before.generation + 1)
    assert lossy.world.channel("g", "c1").ended == "its session ended"


def test_the_reply_to_an_eviction_is_lost(lossy: Lossy, second_proxy: Proxy) -> None:
    world = lossy.world
    lossy.coordinator()
    zk = f"{second_proxy.hosts}/{world.zk.split('/')[1]}"
    hangs = lossy.consumer("c1", zk=zk, max_poll_interval_ms=1000, session_timeout_ms=3000)
    stays = lossy.consumer("c2")
    world.stable("g", 2)
    loss = lossy.proxy.drop_reply(has_step(DELETE, PATHS.id("c1")))
    second_proxy.hold()

    loss.wait()

    assert [mark.consumer for mark in world.state("g").marks] == ["c1"]
    generation = world.stable("g", 1).generation
    lossy.ends_well(stays, generation=generation)
    second_proxy.resume()
    world.stable("g", 2, above=generation)
    lossy.ends_well(hangs, stays, generation=generation + 1)


# ---- the consumer's


def acknowledges(option: str) -> Callable[[bytes], bool]:
    """The multi with which c1 acknowledges a command."""
    owner = has_step(CREATE if option == START_FETCHER else DELETE, PATHS.owners)
    return both(has_step(DELETE, PATHS.command_prefix("c1")), has_step(SET_DATA, PATHS.channel("c1")), owner)


stays_unsure = pytest.mark.parametrize("stays_unsure", [False, True])


@stays_unsure
def test_the_reply_to_a_claim_is_lost(lossy: Lossy, stays_unsure: bool) -> None:
    lossy.world.coordinator()
    loss = lossy.proxy.drop_reply(acknowledges("start-fetcher"))
    syncs = lossy.loses_syncs_after(loss) if stays_unsure else []

    consumer = lossy.at_risk()

    for lost in (loss, *syncs):
        lost.wait()
    lossy.ends_well(consumer, generation=1)
    assert consumer.events == [("assigned", ALL)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@stays_unsure
def test_the_reply_to_the_acknowledgement_of_a_stop_is_lost(lossy: Lossy, stays_unsure: bool, strategy: str) -> None:
    lossy.world.coordinator()
    one = lossy.at_risk(protocols=(strategy,))
    lossy.world.stable("g", 1)
    loss = lossy.proxy.drop_reply(acknowledges("stop-fetcher"))
    syncs = lossy.loses_syncs_after(loss) if stays_unsure else []

    two = lossy.consumer("c2", protocols=(strategy,))

    for lost in (loss, *syncs):
        lost.wait()
    lossy.ends_well(one, two, generation=2)
    assert one.events == restarted(one, strategy), "no fetcher starts in between"


@stays_unsure
def test_the_reply_to_a_commit_of_offsets_is_lost(lossy: Lossy, stays_unsure: bool) -> None:
    lossy.world.coordinator()
    lossy.log.end = 0
    one = lossy.at_risk()
    lossy.world.stable("g", 1)
    loss = lossy.proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b":80}"))
    syncs = lossy.loses_syncs_after(loss) if stays_unsure else []

    lossy.log.end = 80

    for lost in (loss, *syncs):
        lost.wait()
    lossy.ends_well(one, lossy.consumer("c2"), generation=2)


def test_the_reply_to_a_sign_of_life_is_lost(lossy: Lossy) -> None:
    lossy.world.coordinator()
    one = lossy.at_risk(max_poll_interval_ms=1000)
    lossy.world.stable("g", 1)
    eventually(lambda: len(one.records) == 400, 10, "all is read")

    lossy.proxy.drop_reply(has_step(SET_DATA, PATHS.channel("c1"), b'"touched":')).wait()

    lossy.ends_well(one, generation=1)


def test_the_reply_to_a_leave_is_lost(lossy: Lossy) -> None:
    lossy.world.coordinator()
    leaver, stays = lossy.at_risk(), lossy.consumer("c2")
    before = lossy.world.stable("g", 2)
    eventually(lambda: len(leaver.records) + len(stays.records) == 400, 10, "all is read")
    loss = lossy.proxy.drop_reply(has_step(DELETE, PATHS.id("c1")))

    leaver.close()

    loss.wait()
    lossy.ends_well(stays, generation=before.generation + 1)
    channel = lossy.world.channel("g", "c1")
    assert (channel.ended, dict(channel.running)) == ("left", {})
    record = OffsetRecord.parse("", lossy.world.data(PATHS.offset("t", 0)) or b"")
    assert (record.offset, record.generation) == (100, before.generation)


# ---- requests that are lost on their way there, and connections


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("option", ["start-fetcher", "stop-fetcher"])
def test_an_acknowledgement_that_is_lost_on_its_way_is_sent_again(lossy: Lossy, option: str, strategy: str) -> None:
    lossy.world.coordinator()
    loss = lossy.proxy.drop_request(acknowledges(option))
    one = lossy.at_risk(protocols=(strategy,))
    lossy.world.stable("g", 1)

    two = lossy.consumer("c2", protocols=(strategy,))

    loss.wait()
    lossy.ends_well(one, two, generation=2)


def test_connections_that_are_cut_again_and_again_leave_no_trace(lossy: Lossy) -> None:
    service, proxy = lossy.coordinator(), lossy.proxy
    one = lossy.at_risk()
    lossy.world.stable("g", 1)
    for number in range(5):
        links = proxy.connections
        proxy.cut()
        lossy.world.store.commit([Create(f"/mark-{number}")])
        eventually(lambda n=links: proxy.connections >= n, 5, "both are connected again")
        lossy.log.end += 10

    two = lossy.at_risk("c2")

    lossy.ends_well(one, two, generation=2)
    assert service.term is not None and service.term.epoch == 1
    assert (service.problems.count, service.problems.current()) == (0, {})
    assert one.consumer.position(TopicPartition("t", 0)) == lossy.log.end

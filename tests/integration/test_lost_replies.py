"""The reply to a commit is lost once: it has happened, its sender does not know, and all must end well.

Those of a turn and of a registration are in the `test_points_of_` files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog
from tests.support.multis import both, has_step
from tests.support.proxy import Loss, Match, Proxy
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER, EpochRecord
from zk_group.drills.faults.proxy import CREATE, DELETE, SET_DATA, SYNC, op_code

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
        eventually(lambda: sorted(p for c in consumers for p in c.held) == sorted(ALL), 5, "each has one holder")
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


OF_A_COORDINATOR = {
    "election": has_step(CREATE, COORDINATOR),
    "state": has_step(CREATE, PATHS.state),
    "stop": has_step(CREATE, PATHS.command_prefix("c1"), b"stop-fetcher"),
    "end of a dead incarnation": has_step(SET_DATA, PATHS.channel("c2"), b'"ended":"'),
}


@pytest.mark.parametrize(
    ("commit", "strategy"), [*((commit, "range") for commit in OF_A_COORDINATOR), ("stop", "cooperative-sticky")]
)
def test_reply_to_a_commit_of_a_coordinator_is_lost(lossy: Lossy, commit: str, strategy: str) -> None:
    world, loss = lossy.world, lossy.proxy.drop_reply(OF_A_COORDINATOR[commit])
    service = lossy.coordinator()
    assert world.elected(service) is service
    one = lossy.consumer("c1", protocols=(strategy,))
    world.stable("g", 1)

    two = lossy.consumer("c2", protocols=(strategy,))
    lossy.ends_well(one, two, generation=2)
    assert one.events == restarted(one, strategy)
    two.vanish()

    lossy.ends_well(one, generation=3)
    loss.wait()
    assert world.channel("g", "c2").ended == "its session ended"
    sent = {"range": 5, "cooperative-sticky": 3}  # start, stop; and starts, after a stop that was eager
    assert world.created_commands("g", "c1") == sent[strategy], "no command was sent twice"
    assert EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch == 1, "it was elected once"


def test_the_reply_to_an_eviction_is_lost(lossy: Lossy, stage: ManualStage) -> None:
    world = lossy.world
    lossy.coordinator()
    stage.puppet("g", "c1", {"t": 1}, lease_ms=2000, max_poll_interval_ms=1000).obey_until(ALL)
    loss = lossy.proxy.drop_reply(has_step(DELETE, PATHS.id("c1")))

    stays = lossy.consumer("c2")

    loss.wait()

    assert [mark.consumer for mark in world.state("g").marks] == ["c1"]
    lossy.ends_well(stays, generation=world.stable("g", 1).generation)


# ---- the consumer's


def acknowledges(option: str) -> Match:
    """The multi with which c1 acknowledges a command."""
    owner = has_step(CREATE if option == START_FETCHER else DELETE, PATHS.owners)
    return both(has_step(DELETE, PATHS.command_prefix("c1")), has_step(SET_DATA, PATHS.channel("c1")), owner)


OF_A_CONSUMER = {
    "claim": acknowledges(START_FETCHER),
    "stop": acknowledges(STOP_FETCHER),
    "offsets": has_step(SET_DATA, PATHS.channel("c1"), b":100}"),
    "sign of life": has_step(SET_DATA, PATHS.channel("c1"), b'"touched":'),
    "leave": has_step(DELETE, PATHS.id("c1")),
}
LOST = ("reply", "reply and syncs", "request")


@pytest.mark.parametrize(
    ("commit", "lost", "strategy"),
    [
        *(("claim", lost, "range") for lost in LOST),
        *(("stop", lost, strategy) for lost in LOST for strategy in STRATEGIES),
        *(("offsets", lost, "range") for lost in LOST[:2]),
        *((commit, "reply", "range") for commit in ("sign of life", "leave")),
    ],
)
def test_a_commit_of_a_consumer_is_lost_or_its_reply(lossy: Lossy, commit: str, lost: str, strategy: str) -> None:
    world, proxy, match = lossy.world, lossy.proxy, OF_A_CONSUMER[commit]
    world.coordinator()
    loss = proxy.drop_request(match) if lost == "request" else proxy.drop_reply(match)
    syncs = lossy.loses_syncs_after(loss) if lost == "reply and syncs" else []

    one = lossy.at_risk(protocols=(strategy,), **({"max_poll_interval_ms": 1000} if commit == "sign of life" else {}))
    eventually(lambda: len(one.records) == 400, 15, "all is read")
    if commit == "sign of life":
        loss.wait()
    two = lossy.consumer("c2", protocols=(strategy,))
    lossy.ends_well(one, two, generation=2)
    assert one.events == restarted(one, strategy), "no fetcher starts in between"
    one.close()

    lossy.ends_well(two, generation=3)
    for each in (loss, *syncs):
        each.wait()
    channel = world.channel("g", "c1")
    assert (channel.ended, dict(channel.running)) == ("left", {})

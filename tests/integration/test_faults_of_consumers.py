"""Consumers that die, hang, rejoin, are evicted, or join and leave all the time; and how a group starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.cli import run_ok
from tests.support.hand import ManualStage, Puppet
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.proxy import Proxy
from tests.support.wait import eventually, within
from tests.support.world import SESSION_MS, PollingConsumer, World, expire, parts
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.logs.base import Fetched
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.errors import Refused
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=100)


@pytest.fixture
def through(zookeeper_proxy: Proxy, zk: str) -> str:
    """The connect string that leads through the proxy. Ask for it before `served`, so that it outlives that."""
    return f"{zookeeper_proxy.hosts}/{zk.split('/')[1]}"


def all_came(log: MemoryLog, *consumers: PollingConsumer, partitions: int = 4) -> None:
    """Once `consumers` have committed everything in the log."""
    wanted = partitions * log.end

    def look() -> bool:
        return len({item for consumer in consumers for item in consumer.records}) == wanted

    eventually(look, 15, f"{wanted} records are delivered")


def test_consumer_rejoins_after_a_session_expiration_and_continues_at_its_offset(served: World, log: MemoryLog) -> None:
    consumer = served.consumer("g", "c1", {"t": 1}, log=log, session_timeout_ms=10_000)
    before = served.stable("g", 1)
    all_came(log, consumer)

    expire(consumer.consumer.member.store)  # type: ignore[arg-type]

    served.stable("g", 1, above=before.generation)
    assert ("lost", ALL) in consumer.events
    log.end = 250
    all_came(log, consumer)
    served.delivered_once("t", 4, 250)
    assert consumer.consumer.member.registrations == 2


def test_dead_consumer_is_replaced_without_lost_or_repeated_records(served: World, log: MemoryLog) -> None:
    dies = served.consumer("g", "c1", {"t": 1}, log=log)
    stays = served.consumer("g", "c2", {"t": 1}, log=log)
    before = served.stable("g", 2)
    log.end = 200

    dies.vanish()

    served.stable("g", 1, above=before.generation)
    all_came(log, dies, stays)
    served.delivered_once("t", 4, 200)
    eventually(lambda: stays.held == ALL, 5, "it holds the partitions of its channel")


def test_application_that_stops_polling_leaves_and_rejoins_when_it_polls(served: World, log: MemoryLog) -> None:
    stuck = served.consumer("g", "c1", {"t": 1}, log=log, session_timeout_ms=4000, max_poll_interval_ms=1000)
    other = served.consumer("g", "c2", {"t": 1}, log=log)
    before = served.stable("g", 2)
    store = stuck.consumer.member.store
    assert store is not None

    stuck.hang()

    after = served.stable("g", 1, above=before.generation)
    channel = served.channel("g", "c1")
    assert (channel.ended, channel.error) == (
        "left by itself: poll was not called for 1000 ms (raise max_poll_interval_ms, or lower max_poll_records)",
        UNKNOWN_MEMBER_ID,
    )
    assert not store.lost
    assert after.marks == (), "it has ended its fetchers itself: no lease is waited for"
    eventually(lambda: other.held == ALL, 5, "the other has everything")
    stuck.is_stuck.clear()
    served.stable("g", 2, above=after.generation)
    log.end = 200
    all_came(log, stuck, other)
    served.delivered_once("t", 4, 200)


def test_hanging_consumer_is_evicted_and_only_its_partitions_wait_for_its_lease(
    through: str, zookeeper_proxy: Proxy, served: World, log: MemoryLog
) -> None:
    options = {"session_timeout_ms": 9000, "max_poll_interval_ms": 1000}
    hangs = served.consumer("g", "c1", {"t": 1}, zk=through, log=log, **options)
    other = served.consumer("g", "c2", {"t": 1}, log=log)
    before = served.stable("g", 2)
    zookeeper_proxy.hold()
    cut_off_at = ThreadRuntime().monotonic()
    joiner = served.consumer("g", "c3", {"t": 1}, log=log)

    within(lambda: served.state("g").marks, 5, "the one that hangs is evicted, and not only when its session ends")
    (mark,) = served.state("g").marks
    assert (mark.consumer, mark.partitions) == ("c1", parts("t", 0, 1))
    within(lambda: len(other.held | joiner.held) >= 2, 2, "the other partitions continue meanwhile")
    assert not (other.held | joiner.held) & parts("t", 0, 1)
    served.stable("g", 2, above=before.generation)
    assert ThreadRuntime().monotonic() - cut_off_at >= 5.99, "not before its lease had lapsed"
    log.end = 200
    zookeeper_proxy.resume()

    served.stable("g", 3, above=served.state("g").generation - 1)
    all_came(log, hangs, other, joiner)
    served.delivered_once("t", 4, 200)


def test_briefly_disconnected_consumer_pauses_and_resumes_without_a_rebalance(
    through: str, zookeeper_proxy: Proxy, served: World, log: MemoryLog
) -> None:
    consumer = served.consumer("g", "c1", {"t": 1}, zk=through, log=log, session_timeout_ms=3000)
    before = served.stable("g", 1)
    all_came(log, consumer)
    member = consumer.consumer.member

    zookeeper_proxy.hold()
    eventually(lambda: not member.may_fetch, 5, "its lease has lapsed")
    log.end = 200
    assert len(consumer.records) == 400
    zookeeper_proxy.resume()

    all_came(log, consumer)
    assert (served.state("g").generation, member.registrations) == (before.generation, 1)
    served.delivered_once("t", 4, 200)


def test_churn_of_thirty_joins_and_leaves_converges_and_loses_nothing(world: World) -> None:
    world.coordinator()
    world.topic("t", 8)
    log = MemoryLog(end=100)
    members: list[PollingConsumer] = [world.consumer("g", "steady", {"t": 1}, log=log)]
    everybody = list(members)
    for number in range(30):
        if number % 3 == 2 and len(members) > 1:
            members.pop(1).close()
            continue
        if number % 7 == 6 and len(members) > 1:
            members.pop(1).vanish()
        members.append(world.consumer("g", f"c{number}", {"t": 1}, log=log))
        everybody.append(members[-1])
        log.end += 5

    state = world.stable("g", len(members), timeout_s=30)

    assert {part for target in state.target.values() for part in target.partitions} == parts("t", *range(8))
    all_came(log, *everybody, partitions=8)
    world.delivered_once("t", 8, log.end)


def test_churn_does_not_postpone_an_eviction(world: World, stage: ManualStage) -> None:
    world.coordinator(rebalance_debounce_ms=0)
    world.topic("t", 2)
    stuck = stage.puppet("g", "stuck", {"t": 1}, max_poll_interval_ms=1500)
    eventually(lambda: stuck.options() == ["start-fetcher"], 5, "it has its command")
    since = ThreadRuntime().monotonic()

    def evicted_amid_changes() -> bool:
        world.more_partitions("t", len(world.state("g").target) + 2 + int((ThreadRuntime().monotonic() - since) * 10))
        return world.data(PATHS.id("stuck")) is None

    eventually(evicted_amid_changes, 10, "it is evicted though its commands are replaced all the time", pause_s=0.05)
    assert ThreadRuntime().monotonic() - since > 1.4


def test_leaving_member_writes_its_offsets_and_its_share_moves_at_once(served: World, log: MemoryLog) -> None:
    leaver = served.consumer("g", "c1", {"t": 1}, log=log, session_timeout_ms=20_000)
    stays = served.consumer("g", "c2", {"t": 1}, log=log)
    before = served.stable("g", 2)
    all_came(log, leaver, stays)

    leaver.close()

    served.stable("g", 1, above=before.generation, timeout_s=5, wait=within)  # its lease would last 13 s
    eventually(lambda: stays.held == ALL, 5, "the rest has its share")
    channel = served.channel("g", "c1")
    assert (channel.ended, dict(channel.running)) == ("left", {})
    assert stays.consumer.position(TopicPartition("t", 0)) == 100
    served.delivered_once("t", 4, 100)


def test_records_after_a_lease_ended_in_a_sleep_are_not_returned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then another consumer has its partitions and reads the same records."""
    world.coordinator()
    world.topic("t", 1)
    log = MemoryLog(end=0)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", session_timeout_ms=SESSION_MS)
    with Consumer(config, Subscription({"t": 1}), source=log) as consumer:
        eventually(lambda: consumer.poll(20) == {} and consumer.assignment(), 10, "t-0 is assigned")
        store = consumer.member.store
        assert store is not None

        def sleep(*args: Any) -> Fetched:
            """As a process that is stopped between two of its instructions."""
            monkeypatch.undo()
            log.end = 50
            expire(store)
            eventually(lambda: not consumer.member.may_fetch, 10, "the lease is over")
            return log.fetch(*args)

        monkeypatch.setattr(log, "fetch", sleep)

        assert consumer.poll(0) == {}
        found = eventually(lambda: consumer.poll(20), 15, "it has rejoined")
        assert [record.offset for record in found[TopicPartition("t", 0)]] == list(range(50))


"""Neither this session timeout nor this poll interval is over before the test is."""


def test_a_hundred_consumers_within_a_second_cost_three_generations_at_most(world: World, stage: ManualStage) -> None:
    delay_ms = CoordinatorConfig(zk=world.zk).group_initial_rebalance_delay_ms
    world.coordinator(group_initial_rebalance_delay_ms=delay_ms)
    world.topic("t", 100)
    runtime = ThreadRuntime()
    started = runtime.monotonic()
    members: list[Puppet] = []

    def join(number: int) -> None:
        members.append(stage.puppet("g", f"c{number:03}", {"t": 1}))

    joining = [runtime.spawn(partial(join, number), "joins") for number in range(100)]
    for one in joining:
        one.join(10)
    assert runtime.monotonic() - started < 1
    assert len({member.store.session_id for member in members}) == 100

    def obeyed() -> bool:
        for member in members:
            member.obey()
        return world.state("g").state == STABLE

    eventually(obeyed, 60, "each member has its partition", ignoring=(Refused,))

    state = world.state("g")
    assert len(state.target) == 100
    assert state.generation <= 3
    assert frozenset().union(*(member.running for member in members)) == parts("t", *range(100))


def test_partitions_of_a_lifted_mark_are_started_at_once(world: World, zk: str) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = Liar(zk, "g", "bad", {"t": 1}, lease_ms=30_000, max_poll_interval_ms=2000)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))
    eventually(lambda: (bad.acknowledges() and bad.is_evicted) or bad.is_evicted, 5, "it is evicted")
    assert len(world.state("g").marks) == 1

    run_ok(zk, "groups", "lift-mark", "g", "bad", "--execute")

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")
    assert world.state("g").marks == ()
    bad.close()

"""The consumer as a library: what `poll`, `commit`, the callbacks and `close` promise an application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import CommitFailed
from coordinator.zk.errors import ZooKeeperUnreachable
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import WHITE_LIST, OffsetRecord
from tests.support.hand_polled import HandPolled
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, expire, parts

PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)
BOTH = parts("t", 0, 1)


Start = Callable[..., HandPolled]


@pytest.fixture
def coordinated(world: World) -> World:
    """A world with a coordinator and a topic of two partitions."""
    world.coordinator()
    world.topic("t", 2)
    return world


@pytest.fixture
def start(coordinated: World, polled: Start) -> Start:
    """Starts consumers, each with a log of ten records in either partition."""
    return lambda name="c1", **options: polled(name, MemoryLog(10), **options)


def test_poll_returns_at_most_max_records_and_continues_at_its_position(start: Start) -> None:
    app = start(max_poll_records=4)
    app.holds(BOTH)
    first = eventually(lambda: app.poll(most=3), 10, "records")
    second = eventually(app.poll, 10, "more")
    assert (sum(map(len, first.values())) <= 3, sum(map(len, second.values())) <= 4) == (True, True)

    app.has(20)

    assert app.found == {part: list(range(10)) for part in BOTH}


def test_an_empty_poll_returns_when_its_time_is_over(polled: Start, coordinated: World) -> None:
    app = polled("c1", MemoryLog(0))
    app.holds(BOTH)

    assert (app.poll(0), app.poll(30)) == ({}, {})


def test_records_committed_by_the_revocation_callback_are_not_read_again(start: Start) -> None:
    first = start()
    first.revokes = first.consumer.commit
    first.has(20)
    second = start("c2")
    eventually(lambda: first.poll() or second.poll() or second.consumer.assignment(), 10, "moved")

    assert second.consumer.position(TopicPartition("t", 1)) == 10
    assert ("revoked", BOTH) in first.events


def test_consumers_that_share_one_configuration_share_the_group(coordinated: World) -> None:
    config = ConsumerConfig(coordinated.zk, "g", session_timeout_ms=4000)
    consumers = [Consumer(config, Subscription({"t": 1}), source=MemoryLog()) for _ in range(2)]

    def each_has_one() -> bool:
        for consumer in consumers:
            consumer.poll(20)
        return [len(consumer.assignment()) for consumer in consumers] == [1, 1]

    eventually(each_has_one, 10, "each owns a partition")
    assert coordinated.names(PATHS.ids) == sorted(consumer.name for consumer in consumers)
    for consumer in consumers:
        consumer.close()


def test_a_second_pattern_replaces_the_first_and_finds_its_topics_at_once(coordinated: World) -> None:
    for topic in ("early", "late", "later"):
        coordinated.topic(topic, 1)
    config = ConsumerConfig(coordinated.zk, "g", "c1", session_timeout_ms=4000)
    consumer = Consumer(config, Subscription({"ear.*": 1}, WHITE_LIST), source=MemoryLog(5))

    def holds(*partitions: PartitionSet) -> None:
        wanted: PartitionSet = frozenset().union(*partitions)
        eventually(lambda: [consumer.poll(20)] and consumer.assignment() == wanted, 10, f"it has {wanted}")

    holds(parts("early", 0))
    consumer.subscribe(Subscription({"late.*": 1}, WHITE_LIST))
    holds(parts("late", 0), parts("later", 0))
    consumer.subscribe(Subscription({"early": 1}))
    holds(parts("early", 0))
    consumer.close()


def test_unreachable_zookeeper_is_reported_when_a_consumer_starts(world: World) -> None:
    config = ConsumerConfig("127.0.0.1:1", "g", "c1", connect_timeout_ms=200)
    consumer = Consumer(config, Subscription({"t": 1}), source=MemoryLog())

    with pytest.raises(ZooKeeperUnreachable, match="no ZooKeeper server answered"):
        consumer.poll(0)
    consumer.close()


def test_missing_topic_is_a_warning_once_and_says_what_to_do(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.coordinator()
    world.topic("known", 1)
    consumer = world.consumer("g", "c1", {"known": 1, "t": 1})
    world.stable("g", 1)
    expire(consumer.consumer.member.store)
    world.stable("g", 1)
    eventually(lambda: consumer.consumer.member.registrations == 2, 10, "it registers again")

    warnings = [record.getMessage() for record in caplog.records if "topic missing" in record.getMessage()]
    assert len(warnings) == 1
    assert "consumer=c1 topic=t path=/brokers/topics/t" in warnings[0]
    assert "zk-coordinator topics create t" in warnings[0]
    world.topic("t", 1)
    eventually(lambda: TopicPartition("t", 0) in consumer.consumer.assignment(), 10, "it is assigned once it exists")


class SlowToEnd(FrontStore):
    """Lets `meanwhile` run while the keeper is about to end the incarnation."""

    meanwhile: Callable[[], object] | None = None

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = super().get_many(paths, watch)
        meanwhile, is_keeper = self.meanwhile, threading.current_thread().name.startswith("keeper-")
        if meanwhile is not None and is_keeper and any("/offsets/" in path for path in paths):
            self.meanwhile = None
            self.task = ThreadRuntime().spawn(meanwhile, "meanwhile")
            self.task.join(0.5)
        return found


def test_late_commit_of_a_slow_application_either_fails_or_is_written(coordinated: World, start: Start) -> None:
    store = SlowToEnd(open_kazoo(coordinated.zk, 1000))
    app = start(max_poll_interval_ms=1000, opener=lambda: store)
    app.has(20)
    outcome: list[str] = []

    def commit() -> None:
        try:
            app.consumer.commit()
            outcome.append("committed")
        except CommitFailed:
            outcome.append("failed")

    store.meanwhile = commit
    eventually(lambda: coordinated.channel("g", "c1").ended, 10, "it has left by itself")
    store.task.join(10)

    node = coordinated.data(PATHS.offset("t", 0))
    offset = OffsetRecord.parse("", node).offset if node is not None else 0
    assert outcome == (["committed"] if offset == 10 else ["failed"]), "the reported outcome is the written one"


def test_an_application_that_polls_within_max_poll_interval_is_never_evicted(world: World, polled: Start) -> None:
    world.coordinator(sweep_interval_ms=100)  # it sees each sign of life at once, and counts from there
    world.topic("t", 2)
    app, runtime = polled("c1", MemoryLog(10), max_poll_interval_ms=2000), ThreadRuntime()
    app.has(20)
    app.consumer.commit()
    committed_at = runtime.monotonic()

    while runtime.monotonic() - committed_at < 0.6:  # too soon for a sign of life, were there none between polls
        app.poll(0)
        runtime.sleep(0.1)
    runtime.sleep(1.55)  # it processes its records
    app.poll(0)

    assert app.consumer.member.registrations == 1
    assert world.channel("g", "c1").is_live

"""The consumer as a library: what `poll`, `commit`, the callbacks and `close` promise an application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import CommitFailed
from coordinator.zk.errors import ZooKeeperUnreachable
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import WHITE_LIST, OffsetRecord
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, expire, parts

PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)


class Application(Callbacks):
    """A consumer that is polled only by the test."""

    def __init__(self, world: World, name: str = "c1", end: int = 10, **options: object) -> None:
        opener = options.pop("opener", None)
        config = ConsumerConfig(world.zk, "g", name, **{"session_timeout_ms": 4000, **options})  # type: ignore[arg-type]
        self.log = MemoryLog(end)
        self.events: list[tuple[str, PartitionSet]] = []
        self.commits_when_revoked = False
        self.consumer = Consumer(config, Subscription({"t": 1}), self, self.log, opener)  # type: ignore[arg-type]

    def poll_until(self, records: int, most: int | None = None) -> list[tuple[int, int]]:
        """Poll until so many records are returned: (partition, offset) of each."""
        found: list[tuple[int, int]] = []

        def is_enough() -> bool:
            left = None if most is None else most - len(found)
            for partition, some in self.consumer.poll(50, left).items():
                found.extend((partition.partition, record.offset) for record in some)
            return len(found) >= records

        eventually(is_enough, 10, f"{records} records")
        return found

    def polls_until_holds(self, partitions: PartitionSet) -> None:
        eventually(lambda: self.consumer.poll(20) is not None and self.consumer.assignment() == partitions, 10, "held")

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.events.append(("revoked", partitions))
        if self.commits_when_revoked:
            self.consumer.commit()

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self.events.append(("lost", partitions))


@pytest.fixture
def coordinated(world: World) -> Iterator[World]:
    """A world with a coordinator and a topic of two partitions."""
    world.coordinator()
    world.topic("t", 2)
    yield world


def test_poll_returns_at_most_max_records_and_continues_at_its_position(coordinated: World) -> None:
    app = Application(coordinated, max_poll_records=4)

    first = app.poll_until(3, most=3)
    assert len(first) == 3
    batch = eventually(lambda: app.consumer.poll(50), 5, "more")
    assert sum(map(len, batch.values())) <= 4
    rest = app.poll_until(20 - 3 - sum(map(len, batch.values())))

    found = [*first, *((part.partition, record.offset) for part, some in batch.items() for record in some), *rest]
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(10)]
    app.consumer.close()


def test_an_empty_poll_returns_when_its_time_is_over(coordinated: World) -> None:
    app = Application(coordinated, end=0)
    app.polls_until_holds(parts("t", 0, 1))

    assert app.consumer.poll(0) == {}
    assert app.consumer.poll(30) == {}
    app.consumer.close()


def test_uncommitted_records_are_delivered_again_to_the_next_consumer(coordinated: World) -> None:
    first = Application(coordinated)
    first.poll_until(20)
    first.consumer.commit()
    first.log.end = 15
    first.poll_until(10)
    first.consumer.close()

    second = Application(coordinated, name="c2", end=15)

    assert sorted(second.poll_until(10)) == [(partition, offset) for partition in (0, 1) for offset in range(10, 15)]
    second.consumer.close()


def test_records_committed_by_the_revocation_callback_are_not_read_again(coordinated: World) -> None:
    first = Application(coordinated)
    first.commits_when_revoked = True
    first.poll_until(20)
    second = Application(coordinated, name="c2")
    eventually(lambda: first.consumer.poll(20) or second.consumer.poll(20) or second.consumer.assignment(), 10, "moved")

    assert second.consumer.position(TopicPartition("t", 1)) == 10
    assert ("revoked", parts("t", 0, 1)) in first.events
    for app in (first, second):
        app.consumer.close()


def test_close_calls_the_revocation_callback_and_writes_the_offsets_down(coordinated: World) -> None:
    app = Application(coordinated)
    app.commits_when_revoked = True
    app.poll_until(20)

    app.consumer.close()

    assert app.events[-1] == ("revoked", parts("t", 0, 1))
    for number in (0, 1):
        assert OffsetRecord.parse("", coordinated.data(PATHS.offset("t", number)) or b"").offset == 10
    assert (coordinated.owners("g"), coordinated.names(PATHS.ids)) == ({}, [])


def test_commit_of_an_incarnation_that_is_over_fails_and_moves_nothing(coordinated: World) -> None:
    app = Application(coordinated)
    app.poll_until(20)
    store = app.consumer.member.store
    assert store is not None
    expire(store)
    eventually(lambda: store.lost, 5, "it knows")
    second = Application(coordinated, name="c2")
    second.poll_until(20)

    with pytest.raises(CommitFailed):
        app.consumer.commit()

    second.consumer.commit()
    assert coordinated.channel("g", "c2").running[T0] == 10
    app.consumer.poll(0)
    assert app.events[-1] == ("lost", parts("t", 0, 1))
    for consumer in (app.consumer, second.consumer):
        consumer.close()


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


def test_offsets_are_published_every_offsets_interval(coordinated: World) -> None:
    app = Application(coordinated, offsets_interval_ms=1)
    app.poll_until(20)

    app.consumer.commit()

    for number in (0, 1):
        assert OffsetRecord.parse("", coordinated.data(PATHS.offset("t", number)) or b"").offset == 10
    assert coordinated.channel("g", "c1").is_live
    app.consumer.close()


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


def test_late_commit_of_a_slow_application_either_fails_or_is_written(
    coordinated: World,
) -> None:
    store = SlowToEnd(open_kazoo(coordinated.zk, 1000))
    app = Application(coordinated, max_poll_interval_ms=1000, opener=lambda: store)
    app.poll_until(20)
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
    app.consumer.close()


def test_an_application_that_polls_within_max_poll_interval_is_never_evicted(world: World) -> None:
    world.coordinator(sweep_interval_ms=100)  # it sees each sign of life at once, and counts from there
    world.topic("t", 2)
    app = Application(world, max_poll_interval_ms=2000)
    app.poll_until(20)
    app.consumer.commit()
    committed_at = ThreadRuntime().monotonic()

    def polls_for_600_ms() -> bool:  # too soon for a sign of life, were there none between polls
        app.consumer.poll(0)
        return ThreadRuntime().monotonic() - committed_at > 0.6

    eventually(polls_for_600_ms, 5, "it has polled", pause_s=0.1)
    eventually(
        lambda: ThreadRuntime().monotonic() - committed_at > 2.15,
        5,
        "it has processed its records for 1.5 s",
        pause_s=0.1,
    )
    app.consumer.poll(0)

    assert app.consumer.member.registrations == 1
    assert world.channel("g", "c1").is_live
    app.consumer.close()

"""The consumer as a library: what `poll`, `commit`, the callbacks and `close` promise an application."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.event_group import EventGroup
from tests.support.hand_polled import HandPolled, Polling
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World, expire, parts
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import CommitFailed
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.membership.member import ConsumerMember
from zk_group.coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Node, Watch
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import WHITE_LIST, OffsetRecord

PATHS = GroupPaths("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = parts("t", 0, 1)
RECORDS = 1000


@pytest.fixture
def coordinated(world: World) -> World:
    """A world with a coordinator and a topic of two partitions."""
    world.coordinator()
    world.topic("t", 2)
    return world


@pytest.fixture
def reading(coordinated: World, polled: Polling) -> Polling:
    """Starts consumers, each with a log of ten records in either partition."""
    return lambda name="c1", **options: polled(name, MemoryLog(10), **options)


def test_poll_returns_at_most_max_records_and_nothing_when_its_time_is_over(reading: Polling) -> None:
    app = reading(max_poll_records=4)
    app.holds(BOTH)
    first = eventually(lambda: app.poll(most=3), 10, "records")
    second = eventually(app.poll, 10, "more")
    assert sum(map(len, first.values())) <= 3
    assert sum(map(len, second.values())) <= 4

    app.has(20)

    assert app.found == {part: list(range(10)) for part in BOTH}
    assert (app.poll(0), app.poll(30)) == ({}, {})


def test_records_committed_by_the_revocation_callback_are_not_read_again(reading: Polling) -> None:
    first = reading()
    first.revokes = first.consumer.commit
    first.has(20)
    second = reading("c2")
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


def test_late_commit_of_a_slow_application_either_fails_or_is_written(coordinated: World, reading: Polling) -> None:
    store = SlowToEnd(open_kazoo(coordinated.zk, 1000))
    app = reading(max_poll_interval_ms=1000, opener=lambda: store)
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


def test_an_application_that_polls_within_max_poll_interval_is_never_evicted(world: World, polled: Polling) -> None:
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


# ---- fetched records that no poll returned are never committed, and are dropped at a revocation


@pytest.fixture
def start(world: World, tmp_path: Path, polled: Polling) -> Polling:
    """Starts consumers of a topic of two partitions with `RECORDS` records each: they poll ten at a time."""
    world.coordinator()
    world.topic("t", 2)
    with Producer.for_store(world.store, tmp_path, world.brokers) as producer:
        for number in range(2 * RECORDS):
            producer.send("t", b"%d" % (number // 2), partition=number % 2, timestamp_ms=1000 * (number // 2))
    return lambda name="c1", **options: polled(name, log_dir=str(tmp_path), **{"max_poll_records": 10, **options})


def ends(app: HandPolled) -> dict[TopicPartition, int]:
    """Up to where polls have returned each partition's records."""
    return {T0: 0, T1: 0} | app.returned


def expires(app: HandPolled) -> None:
    """Its session, and it knows."""
    store = app.store
    expire(store)
    eventually(lambda: store.lost, 5, "it knows")


def test_commit_covers_returned_records_only_and_the_next_owner_resumes_there(world: World, start: Polling) -> None:
    first = start()
    first.polls(3)
    assert first.consumer.retained[0] > 100, "there is something that must not be committed"

    first.consumer.commit()

    assert world.channel("g", "c1").running == ends(first)
    assert {part: first.consumer.position(part) for part in BOTH} == ends(first)
    first.close()
    second = start("c2")
    eventually(lambda: second.poll() and set(second.begun) == BOTH, 15, "records of both")
    assert second.begun == ends(first)
    assert {part: second.consumer.committed(part) for part in BOTH} == ends(first)


def test_prefetched_records_of_a_moved_partition_are_returned_by_its_next_owner(world: World, start: Polling) -> None:
    first = start(enable_auto_commit=True, protocols=("cooperative-sticky",))
    first.polls(4)
    second = start("c2", enable_auto_commit=True, protocols=("cooperative-sticky",))
    eventually(lambda: [first.poll()] and second.poll(), 15, "it has moved")
    (moved,) = second.consumer.assignment()

    assert first.consumer.assignment() == BOTH - {moved}
    assert first.consumer.committed(moved) == first.returned[moved]
    assert second.begun == {moved: first.returned[moved]}, "no record is skipped or repeated"
    assert set(first.poll()) | set(first.poll()) == BOTH - {moved}


def test_auto_commit_at_a_rebalance_precedes_revocation_and_its_callback(world: World, start: Polling) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=600_000)
    committed: dict[TopicPartition, int] = {}
    first.revokes = lambda: committed.update(world.offsets("g"))
    first.polls(3)
    assert world.offsets("g") == {T0: 0, T1: 0}, "it is not due: these are where the group begins"
    second = start("c2")

    eventually(lambda: second.poll() or first.poll() is None or second.consumer.assignment(), 15, "moved")

    assert ("revoked", BOTH) in first.events
    assert sum(committed.values()) >= 30


@pytest.mark.parametrize(("is_enabled", "fails"), [(True, False), (True, True), (False, False)])
def test_clean_close_auto_commits_returned_records(world: World, start: Polling, is_enabled: bool, fails: bool) -> None:
    first = start(enable_auto_commit=is_enabled, auto_commit_interval_ms=600_000)

    with suppress(OSError), first.consumer:
        first.polls(3)
        if fails:
            raise OSError("the disk is full")

    assert world.offsets("g") == (ends(first) if is_enabled and not fails else {T0: 0, T1: 0})


def test_auto_commit_commits_records_of_earlier_polls_every_interval(world: World, start: Polling) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=1)

    def is_one_poll_behind() -> bool:
        before = dict(first.returned)
        first.poll()
        return bool(before) and world.offsets("g") == {T0: 0, T1: 0} | before != ends(first)

    eventually(is_one_poll_behind, 15, "what is committed is what the polls before have returned")


def test_session_expiry_drops_prefetched_records_and_resumes_at_committed_offsets(world: World, start: Polling) -> None:
    first = start()
    first.holds(BOTH)
    first.polls(2)
    first.consumer.commit()
    committed = world.offsets("g")
    first.polls(2)
    expires(first)
    assert first.consumer.retained[0] > 100

    first.found.clear()
    eventually(lambda: first.poll() and set(first.begun) == BOTH, 15, "it has rejoined")

    assert first.begun == committed


def test_fetched_records_are_not_returned_while_the_lease_is_expired(
    start: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    first.polls(2)
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerMember, "may_fetch", property(lambda member: False))
        assert first.consumer.retained[0] > 100
        assert first.poll() == {}

    assert first.poll() != {}


def test_offsets_that_are_given_are_committed_and_nothing_else(world: World, start: Polling) -> None:
    first = start()
    first.holds(BOTH)
    first.polls(3)

    first.consumer.commit({T1: 7})

    assert world.channel("g", "c1").running == {T0: 0, T1: 7}
    assert first.consumer.committed(T1) == 7
    with pytest.raises(CommitFailed, match="IllegalGeneration: u-3 is no longer this consumer's"):
        first.consumer.commit({TopicPartition("u", 3): 1})
    for wrong in (-1, True, "5"):
        with pytest.raises(UsageError, match="is no offset"):
            first.consumer.commit({T0: wrong})  # type: ignore[dict-item]


def test_a_pause_loses_no_record_and_a_seek_moves_the_position_of_the_next_poll(start: Polling) -> None:
    first = start()
    first.holds(BOTH)
    first.polls(2)
    consumer, before = first.consumer, first.returned.get(T0, 0)

    consumer.pause(T0)
    assert (consumer.paused(), {part for _ in range(5) for part in first.poll()}) == ({T0}, {T1})
    consumer.resume(T0)
    assert eventually(lambda: first.poll().get(T0), 15, "it is resumed")[0] == before
    consumer.seek_to_end()
    assert {part: consumer.position(part) for part in BOTH} == {T0: RECORDS, T1: RECORDS}
    assert (consumer.lag(T0), consumer.poll(0)) == (0, {})
    consumer.seek_to_beginning(T1)
    assert {part: consumer.position(part) for part in BOTH} == {T0: RECORDS, T1: 0}
    consumer.seek(T0, 700)
    assert consumer.lag(T0) == 300

    assert {part: offsets[0] for _ in range(2) for part, offsets in first.poll().items()} == {T0: 700, T1: 0}
    consumer.seek(T0, 5)
    consumer.commit()
    assert consumer.committed(T0) == 5, "also backwards"


def test_history_has_the_polled_records_and_each_seek_and_commit_elsewhere(start: Polling, tmp_path: Path) -> None:
    first = start(history_dir=str(tmp_path / "history"))
    first.holds(BOTH)
    first.polls(3)
    position = first.consumer.position(T0) or 0
    first.consumer.commit()
    first.consumer.commit({T0: position + 5})
    first.consumer.seek(T0, 0)
    first.consumer.commit({T0: 0, T1: first.returned.get(T1, 0)})

    (file,) = (tmp_path / "history").iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    ranges = [item for event in events if event["event"] == "returned" for item in event["ranges"]]
    assert all(item["next"] - item["first"] <= 10 for item in ranges)
    assert {item["partition"]: item["next"] for item in ranges} == {
        part.partition: first.returned[part] for part in first.returned
    }
    assert all(event["checked"] <= event["at"] for event in events if event["event"] in ("fetch", "returned"))
    sought = [event["partitions"]["t"]["0"] for event in events if event["event"] == "sought"]
    assert sought == [position + 5, 0, 0], "the commit beyond them, the seek, and the commit there"


def test_the_log_is_asked_as_with_kafkas_consumer(start: Polling) -> None:
    first = start()
    first.holds(BOTH)
    consumer = first.consumer

    assert consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: RECORDS, T1: RECORDS}
    assert consumer.offsets_for_times({T0: 400_500, T1: 10_000_000}) == {T0: (401, 401_000), T1: None}
    assert consumer.subscription() == {"t"}
    with pytest.raises(UsageError, match="no partition of topic u is assigned"):
        consumer.end_offsets([TopicPartition("u", 0)])
    with pytest.raises(UsageError, match="is no time"):
        consumer.offsets_for_times({T0: -1})


def test_unassigned_partition_cannot_be_paused_or_sought(start: Polling) -> None:
    consumer = start().consumer

    for change in (consumer.pause, consumer.resume, consumer.seek_to_end, lambda part: consumer.seek(part, 3)):
        with pytest.raises(UsageError, match="t-0 is not assigned to this consumer now"):
            change(T0)
    assert (consumer.position(T0), consumer.lag(T0), consumer.paused()) == (None, None, frozenset())
    with pytest.raises(UsageError, match="poll first"):
        consumer.committed(T0)


def test_zk_consumer_auto_commit_is_exact_over_rebalances_and_a_stop(group: EventGroup) -> None:
    group.world.coordinator()
    options = ("--enable-auto-commit", "--auto-commit-interval-ms", "600000", "--poll-order", "proportional")
    group.start(["c1"], *options)
    group.joined(["c1"])
    group.consumes()
    group.start(["c2"], *options, "--prefetch", "total", "--max-poll-records", "7")
    group.joined(["c1", "c2"])
    group.consumes()

    group.stop(["c1", "c2"])

    events = group.events()
    assert group.world.offsets("g") == events.position
    assert sum(events.position.values()) == events.consumed, "no record was repeated"
    assert events.committed == {}, "only commits after a poll are reported"

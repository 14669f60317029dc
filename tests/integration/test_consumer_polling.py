"""Polling in a group: fetched records that no poll returned are never committed, and are dropped at a revocation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import CommitFailed
from consumer.logs.embedded.producer import Producer
from consumer.membership.member import ConsumerMember
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from tests.support.event_group import EventGroup
from tests.support.wait import eventually
from tests.support.world import World, expire, parts

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = parts("t", 0, 1)
RECORDS = 1000


class Application(Callbacks):
    """A consumer that is polled only by the test, ten records at a time by default.

    :ivar begun: partition -> the offset of the first record that a poll returned.
    :ivar returned: partition -> the offset after the last record that a poll returned.
    """

    def __init__(self, world: World, log_dir: Path, name: str, **options: Any) -> None:
        options = {"session_timeout_ms": 4000, "max_poll_records": 10, **options}
        config = ConsumerConfig(world.zk, "g", name, log_dir=str(log_dir), **options)
        self.begun: dict[TopicPartition, int] = {}
        self.returned: dict[TopicPartition, int] = {}
        self.committed_when_revoked: dict[TopicPartition, int] = {}
        self.world = world
        self.events: list[tuple[str, PartitionSet]] = []
        self.consumer = Consumer(config, Subscription({"t": 1}), self)

    def poll(self) -> dict[TopicPartition, list[int]]:
        found = {
            partition: [record.offset for record in records] for partition, records in self.consumer.poll(20).items()
        }
        self.begun = {partition: offsets[0] for partition, offsets in found.items()} | self.begun
        self.returned |= {partition: offsets[-1] + 1 for partition, offsets in found.items()}
        return found

    def polls(self, times: int) -> None:
        """Poll until so many polls have returned records."""
        for _ in range(times):
            eventually(self.poll, 15, "records")

    def polls_until_holds(self, partitions: PartitionSet) -> None:
        eventually(lambda: self.poll() is not None and self.consumer.assignment() == partitions, 15, "assigned")

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.events.append(("revoked", partitions))
        self.committed_when_revoked = self.world.offsets("g")


Start = Callable[..., Application]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Start]:
    """Starts applications on a topic of two partitions with `RECORDS` records each."""
    world.coordinator()
    world.topic("t", 2)
    with Producer.for_store(world.store, tmp_path, world.brokers) as producer:
        for number in range(2 * RECORDS):
            producer.send("t", b"%d" % (number // 2), partition=number % 2, timestamp_ms=1000 * (number // 2))
    made: list[Application] = []

    def make(name: str = "c1", **options: Any) -> Application:
        made.append(Application(world, tmp_path, name, **options))
        return made[-1]

    yield make
    for application in made:
        application.consumer.close()


def test_commit_covers_returned_records_only_and_the_next_owner_resumes_there(world: World, start: Start) -> None:
    first = start()
    first.polls(3)
    assert first.consumer.retained[0] > 100, "there is something that must not be committed"

    first.consumer.commit()

    assert world.channel("g", "c1").running == {T0: 0, T1: 0} | first.returned
    assert {part: first.consumer.position(part) for part in BOTH} == {T0: 0, T1: 0} | first.returned
    first.consumer.close()
    second = start("c2")
    eventually(lambda: second.poll() and set(second.begun) == BOTH, 15, "records of both")
    assert second.begun == {T0: 0, T1: 0} | first.returned
    assert {part: second.consumer.committed(part) for part in BOTH} == {T0: 0, T1: 0} | first.returned


def test_prefetched_records_of_a_moved_partition_are_returned_by_its_next_owner(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, protocols=("cooperative-sticky",))
    first.polls(4)
    second = start("c2", enable_auto_commit=True, protocols=("cooperative-sticky",))
    returned: list[tuple[TopicPartition, int]] = []

    def has_moved() -> bool:
        first.poll()
        returned.extend((part, offset) for part, offsets in second.poll().items() for offset in offsets)
        return bool(returned)

    eventually(has_moved, 15, "it has moved")
    (moved,) = second.consumer.assignment()

    assert first.consumer.assignment() == BOTH - {moved}
    assert first.consumer.committed(moved) == first.returned[moved]
    assert returned[0] == (moved, first.returned[moved]), "no record is skipped or repeated"
    assert set(first.poll()) | set(first.poll()) == BOTH - {moved}


def test_auto_commit_at_a_rebalance_precedes_revocation_and_its_callback(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=600_000)
    first.polls(3)
    assert world.offsets("g") == {T0: 0, T1: 0}, "it is not due: these are where the group begins"
    second = start("c2")

    eventually(lambda: second.poll() or first.poll() is None or second.consumer.assignment(), 15, "moved")

    assert ("revoked", BOTH) in first.events
    assert first.committed_when_revoked[T0] > 0
    assert first.committed_when_revoked[T0] + first.committed_when_revoked[T1] >= 30


def test_auto_commit_on_close_commits_the_returned_records(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=600_000)
    first.polls(3)

    first.consumer.close()

    assert world.offsets("g") == {T0: 0, T1: 0} | first.returned


def test_auto_commit_commits_nothing_when_the_application_has_failed(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=600_000)

    with suppress(OSError), first.consumer:
        first.polls(3)
        raise OSError("the disk is full")

    assert set(world.offsets("g").values()) == {0}


def test_without_auto_commit_nothing_is_committed_but_by_commit(world: World, start: Start) -> None:
    first = start()
    first.polls(3)

    first.consumer.close()

    assert set(world.offsets("g").values()) == {0}


def test_auto_commit_commits_records_of_earlier_polls_every_interval(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=1)

    def is_one_poll_behind() -> bool:
        before = dict(first.returned)
        first.poll()
        return bool(before) and world.offsets("g") == {T0: 0, T1: 0} | before != {T0: 0, T1: 0} | first.returned

    eventually(is_one_poll_behind, 15, "what is committed is what the polls before have returned")


def test_auto_commit_after_a_session_expiration_moves_no_offset(world: World, start: Start) -> None:
    first = start(enable_auto_commit=True, auto_commit_interval_ms=1)
    first.polls(2)
    committed = world.offsets("g")
    store = first.consumer.member.store
    assert store is not None
    expire(store)
    eventually(lambda: store.lost, 5, "it knows")

    first.consumer.close()

    assert world.offsets("g") == committed


def test_session_expiry_drops_prefetched_records_and_resumes_at_committed_offsets(world: World, start: Start) -> None:
    first = start()
    first.polls_until_holds(BOTH)
    first.polls(2)
    first.consumer.commit()
    committed = world.offsets("g")
    first.polls(2)
    store = first.consumer.member.store
    assert store is not None
    expire(store)
    eventually(lambda: store.lost, 5, "it knows")
    assert first.consumer.retained[0] > 100

    first.begun.clear()
    eventually(lambda: first.poll() and set(first.begun) == BOTH, 15, "it has rejoined")

    assert first.begun == committed


def test_fetched_records_are_not_returned_while_the_lease_is_expired(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    first.polls(2)
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerMember, "may_fetch", property(lambda member: False))
        assert first.consumer.retained[0] > 100
        assert first.poll() == {}

    assert first.poll() != {}


def test_offsets_that_are_given_are_committed_and_nothing_else(world: World, start: Start) -> None:
    first = start()
    first.polls_until_holds(BOTH)
    first.polls(3)

    first.consumer.commit({T1: 7})

    assert world.channel("g", "c1").running == {T0: 0, T1: 7}
    assert first.consumer.committed(T1) == 7
    with pytest.raises(CommitFailed, match="IllegalGeneration: u-3 is no longer this consumer's"):
        first.consumer.commit({TopicPartition("u", 3): 1})
    for wrong in (-1, True, "5"):
        with pytest.raises(UsageError, match="is no offset"):
            first.consumer.commit({T0: wrong})  # type: ignore[dict-item]


def test_paused_partition_is_not_returned_until_resumed_and_loses_no_record(start: Start) -> None:
    first = start()
    first.polls_until_holds(BOTH)
    first.polls(2)
    before = first.returned.get(T0, 0)

    first.consumer.pause(T0)
    assert first.consumer.paused() == {T0}
    for _ in range(5):
        assert set(first.poll()) == {T1}
    first.consumer.resume(T0)

    found: list[int] = []
    while not found:
        found = first.poll().get(T0, [])
    assert found[0] == before


def test_seeks_move_the_position_and_the_next_poll_begins_there(start: Start) -> None:
    first = start()
    first.polls_until_holds(BOTH)
    first.polls(2)
    consumer = first.consumer

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


def test_seek_backwards_is_recorded_in_the_history(start: Start, tmp_path: Path) -> None:
    first = start(history_dir=str(tmp_path / "history"))
    first.polls_until_holds(BOTH)
    first.polls(2)
    first.consumer.commit()
    first.consumer.seek(T0, 0)
    first.consumer.commit({T0: 0, T1: first.returned.get(T1, 0)})

    (file,) = (tmp_path / "history").iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    own_choice = [event["partitions"] for event in events if event["event"] == "sought"]
    assert own_choice == [{"t": {"0": 0}}] * 2, "the seek, and the commit"


def test_history_has_the_polled_records_and_a_seek_beyond_them(start: Start, tmp_path: Path) -> None:
    first = start(history_dir=str(tmp_path / "history"), max_poll_records=10)
    first.polls_until_holds(BOTH)
    first.polls(3)
    position = first.consumer.position(T0) or 0
    first.consumer.commit()
    first.consumer.commit({T0: position + 5})

    (file,) = (tmp_path / "history").iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    ranges = [item for event in events if event["event"] == "returned" for item in event["ranges"]]
    ends = {item["partition"]: item["next"] for item in ranges}
    assert all(item["next"] - item["first"] <= 10 for item in ranges)
    assert ends == {part.partition: first.returned[part] for part in first.returned}
    assert all(event["checked"] <= event["at"] for event in events if event["event"] in ("fetch", "returned"))
    assert [event["partitions"] for event in events if event["event"] == "sought"] == [{"t": {"0": position + 5}}]


def test_the_log_is_asked_as_with_kafkas_consumer(start: Start) -> None:
    first = start()
    first.polls_until_holds(BOTH)
    consumer = first.consumer

    assert consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: RECORDS, T1: RECORDS}
    assert consumer.offsets_for_times({T0: 400_500, T1: 10_000_000}) == {T0: (401, 401_000), T1: None}
    assert consumer.subscription() == {"t"}
    with pytest.raises(UsageError, match="no partition of topic u is assigned"):
        consumer.end_offsets([TopicPartition("u", 0)])
    with pytest.raises(UsageError, match="is no time"):
        consumer.offsets_for_times({T0: -1})


def test_unassigned_partition_cannot_be_paused_or_sought(start: Start) -> None:
    consumer = start().consumer

    for change in (consumer.pause, consumer.resume, consumer.seek_to_end, lambda part: consumer.seek(part, 3)):
        with pytest.raises(UsageError, match="t-0 is not assigned to this consumer now"):
            change(T0)
    assert (consumer.position(T0), consumer.lag(T0), consumer.paused()) == (None, None, frozenset())
    with pytest.raises(UsageError, match="poll first"):
        consumer.committed(T0)


def test_zk_consumer_auto_commit_is_exact_over_rebalances_and_a_stop(
    group: EventGroup,
) -> None:
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

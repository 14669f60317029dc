"""The records of Kafka's source on modelled brokers: what is confirmed, dropped, bounded, and shared fairly."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from unittest.mock import Mock

import pytest

from consumer.logs.base import LogError, TopicIdPartition, UnknownTopic
from consumer.logs.kafka.client import CORRUPT, OTHER, Signal
from coordinator.zk.znodes.partitions import TopicPartition
from tests.unit.modelled_kafka import Brokers, Client, Place, Reader, modelled_kafka

IDLE = 1
"""A partition without records."""


@pytest.fixture
def kafka() -> Iterator[Brokers]:
    with modelled_kafka() as kafka:
        yield kafka


@pytest.fixture
def reader(kafka: Brokers) -> Reader:
    return Reader(kafka)


# ---- confirmation


def test_records_are_withheld_until_their_topic_is_confirmed_after_they_arrived(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 5
    kafka.is_holding = True
    reader.assign(0)
    assert reader.poll() == {}  # and the first request is sent
    kafka.ends["t", 0] = 10
    assert reader.poll() == {}
    assert reader.source.is_pending, "they are polled soon"

    kafka.answered = 1
    assert reader.poll() == {0: [0, 1, 2, 3, 4]}
    kafka.answered = 2
    assert reader.poll() == {0: [5, 6, 7, 8, 9]}
    assert not reader.source.is_pending


def test_recreated_topic_drops_unconfirmed_records_and_returns_confirmed_ones(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", 0): 5, ("t", 1): 0}
    reader.assign(0, 1)
    reader.poll(1)
    assert reader.offset(0) == 1  # four more are confirmed

    kafka.ids["t"], kafka.ends = "new", {("t", 0): 30, ("t", 1): 30}
    assert reader.polls(5.0) == 4
    assert (reader.offset(0), reader.offset(1)) == (5, 0)
    assert "another topic of this name, with id new" in reader.problem(1)
    assert (kafka.clients[-1].assigned, reader.source._queue.size) == ({}, 0)

    reader.assign(0, 1, topic_id="new")
    assert reader.polls(5.0) == 60
    assert reader.problem(0) == ""


def test_topic_that_does_not_exist_yet_is_fetched_once_it_does(kafka: Brokers, reader: Reader) -> None:
    kafka.ids["t"], kafka.ends["t", 0] = "", 5
    reader.assign(0)
    assert reader.polls(10.0) == 0
    assert "Kafka has no such topic" in reader.problem(0)
    assert len(kafka.described) <= 11

    kafka.ids["t"] = "id"
    assert reader.polls(2.0) == 5
    assert reader.problem(0) == ""


def test_topic_missing_for_a_moment_returns_each_record_once(kafka: Brokers, reader: Reader) -> None:
    """As in the metadata of a broker that has just started."""
    kafka.ends["t", 0] = 5
    reader.assign(0)
    reader.poll(1)
    kafka.ids["t"], kafka.ends["u", 0] = "", 25
    reader.assign(1)  # which asks for the topic
    reader.assign(0, topic="u")
    reader.poll()
    assert (reader.offset(0), set(kafka.clients[-1].assigned)) == (5, {("u", 0)})
    kafka.ids["t"], kafka.ends["t", 0] = "id", 10
    reader.polls(3.0)

    assert (reader.offset(0), reader.offset(0, "u"), kafka.fetched) == (10, 25, 35)


def test_confirmation_of_a_topic_confirms_no_record_of_its_predecessor(kafka: Brokers, reader: Reader) -> None:
    """Partitions of both are assigned while a group moves from one to the other."""
    kafka.ids["t"] = "old"
    reader.assign(1, topic_id="old")
    reader.poll(passes_s=0.0)  # it is not requested again at once
    kafka.ids["t"], kafka.ends = "new", {("t", 0): 5, ("t", 1): 5}
    kafka.is_unfair = True  # the partition 0 comes first
    reader.assign(0, topic_id="new")

    assert reader.poll(passes_s=0.0) == {0: [0, 1, 2, 3, 4]}
    assert reader.polls(1.0) == 0


def test_metadata_of_a_deleted_topic_affects_no_partition_of_its_successor(kafka: Brokers, reader: Reader) -> None:
    kafka.is_holding = True
    reader.assign(0, topic_id="old")
    reader.poll()  # the request is sent
    reader.assign(0)
    kafka.is_holding = False
    kafka.ends["t", 0] = 5

    assert reader.poll() == {0: [0, 1, 2, 3, 4]}


def test_topic_without_confirmation_for_ten_seconds_is_reported_with_the_reason(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 10
    kafka.is_mute = True
    reader.assign(0)
    began = kafka.now
    while not reader.problem(0) and kafka.now < began + 60:
        assert reader.poll(passes_s=0.5) == {}
    assert 9 < kafka.now - began < 15
    assert reader.problem(0) == "Kafka has not confirmed topic t with id id, asked again: no answer"

    kafka.is_mute = False
    assert reader.polls(2.0) == 10
    assert (reader.problem(0), reader.log.outages) == ("", 0)


def test_released_topic_is_not_requested_any_more(kafka: Brokers, reader: Reader) -> None:
    kafka.ids["gone"] = ""
    reader.assign(0, topic="gone")
    reader.assign(0)
    reader.polls(3.0)
    reader.release(0, topic="gone")
    reader.assign(1)
    reader.polls(1.0)
    kafka.described.clear()
    reader.polls(10.0)

    assert all("gone" not in topics for topics in kafka.described)


# ---- assigned and released partitions


def test_released_partition_is_unassigned_at_once_and_its_records_never_come(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", 0): 40, ("t", 1): 40}
    kafka.is_holding = True
    reader.assign(0, 1)
    reader.poll()
    held = reader.source._queue.size
    reader.release(0)

    assert (set(kafka.clients[-1].assigned), reader.source._queue.size) == ({("t", 1)}, held / 2)
    kafka.is_holding = False
    assert reader.polls(1.0) == 40  # of the other: the reader checks each
    reader.assign(0, offset=3)
    assert reader.polls(1.0) == 37


@pytest.mark.parametrize("rewind", [0, 3, 12], ids=["exactly", "from before", "from a look before"])
def test_reassigned_partition_continues_exactly_at_its_offset(kafka: Brokers, reader: Reader, rewind: int) -> None:
    kafka.ends["t", 0] = 100
    kafka.rewind = rewind
    kafka.is_holding = True
    reader.assign(0)
    reader.poll(2000)
    reader.assign(0, offset=50)  # unconfirmed ones from before are not of this assignment
    kafka.is_holding = False
    reader.poll(500)
    reader.assign(0, offset=20)

    assert reader.polls(1.0) == 80


def test_partition_is_released_without_a_client_and_after_the_close(kafka: Brokers, reader: Reader) -> None:
    reader.assign(0, 1)
    reader.poll()
    reader.log._connection.discard()
    reader.release(0)
    reader.source.release([TopicPartition("t", 7)])
    reader.poll()
    reader.log.close()
    reader.release(1)
    reader.poll()


def test_records_lost_to_an_unexpected_error_are_fetched_again(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", 0): 15, ("u", 0): 15}
    for topic in ("t", "u"):
        reader.assign(0, topic=topic)
    reader.poll(1)

    def spoil() -> None:
        kafka.spoil = lambda: None
        raise MemoryError("no memory for a batch")

    kafka.ends["t", 0], kafka.spoil = 30, spoil
    with pytest.raises(MemoryError):
        for _ in range(500):
            reader.poll(1)

    reader.polls(2.0)
    assert (reader.offset(0), reader.offset(0, "u")) == (30, 15)


def test_records_taken_before_an_unexpected_error_are_fetched_again(
    kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.ends = {("t", 0): 5, ("t", 1): 5}
    reader.assign(0, 1)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr("consumer.logs.kafka.source._joined", Mock(side_effect=[None, MemoryError]))
        reader.poll()

    assert reader.polls(1.0) == 10


@pytest.mark.parametrize("name", ["assign", "unassign"])
def test_failed_change_of_the_assignment_is_made_up_for(
    kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The reader checks that nothing comes of the released one."""
    kafka.ends = {("t", 0): 100, ("t", 1): 100}
    reader.assign(0, 1)
    reader.poll(500)

    def change_both(_: Client, places: Iterable[Place]) -> None:
        real(_, places)
        raise MemoryError

    real = getattr(Client, name)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(Client, name, change_both)
        reader.release(0)
        reader.assign(2)
        reader.poll()

    assert reader.polls(1.0) > 0
    reader.assign(0, 2, offset=40)
    reader.polls(2.0)
    assert (reader.offset(0), reader.offset(1)) == (100, 100)


def test_offsets_out_of_range_of_many_partitions_are_looked_up_in_two_requests(kafka: Brokers, reader: Reader) -> None:
    """One that is asked with others of a leader that hangs takes as long as it, and fetches nothing meanwhile."""
    kafka.ends = {("t", number): 10 for number in range(5)}
    kafka.begins = {("t", number): 5 for number in range(4)}
    reader.assign(0, 1, 2, 3, 4)
    kafka.asked.clear()
    reader.polls(0.5)

    assert reader.problem(3) == "offset 0 of t-3 is out of range: Kafka holds 5 to 10"
    assert kafka.asked == [{("t", number) for number in range(4)}] * 2


def test_leader_that_has_not_named_the_earliest_offset_is_not_asked_for_the_latest(
    kafka: Brokers, reader: Reader
) -> None:
    kafka.leaders["t", 1] = "b:2"
    kafka.ends = {("t", number): 10 for number in range(2)}
    kafka.begins = {("t", number): 5 for number in range(2)}
    reader.assign(0, 1)
    while len(reader.source._lost) < 2:
        reader.poll()
    kafka.asked.clear()
    kafka.down = {"b:2"}
    reader.poll()

    assert kafka.asked == [{("t", 0), ("t", 1)}, {("t", 0)}]
    assert reader.problem(1) == "offset 0 of t-1 is out of range in Kafka: no leader"


def test_records_taken_beside_a_failing_lookup_are_returned_once(
    kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of an offset out of range is looked up in the poll that returns others' records."""
    kafka.ends = {("t", 0): 10, ("t", 1): 5}
    kafka.is_holding = True
    reader.assign(0)
    reader.assign(1, offset=7)
    reader.poll()
    kafka.is_holding = False

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(reader.source._lookups, "many", Mock(side_effect=MemoryError))
        for _ in range(3):
            reader.poll()

    reader.polls(2.0)
    assert reader.offset(0) == 10


# ---- bounds


def test_poll_returns_at_most_its_bytes_and_cut_records_keep_their_order(kafka: Brokers, reader: Reader) -> None:
    """The reader checks order and bytes."""
    kafka.ends = {("t", 0): 200, ("t", 1): 200}
    reader.assign(0, 1)
    kafka.size = 1000
    for max_bytes in (1, 3500, 1, 12_345) * 200:
        reader.poll(max_bytes)

    assert (reader.offset(0), reader.offset(1)) == (200, 200)
    assert reader.source._queue.size == 0
    assert kafka.fetched == 400


def test_record_larger_than_the_limit_comes_alone(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0], kafka.size = 3, 10_000
    reader.assign(0)

    assert [reader.poll(5000) for _ in range(4)] == [{0: [0]}, {0: [1]}, {0: [2]}, {}]


def test_unconfirmed_records_are_bounded(kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer.logs.kafka.source.UNCONFIRMED_BYTES", 50_000)
    kafka.ends["t", 0], kafka.size, kafka.ahead = 4000, 1000, 1000
    kafka.is_mute = True
    reader.assign(0)
    reader.polls(60.0, 1.0)

    assert 50_000 <= reader.most <= 50_000 + 10 * 1100  # one look brings ten
    kafka.is_mute = False
    assert reader.polls(60.0, 1.0) > 500


def test_idle_source_closes_its_connection_and_continues_where_it_was(
    kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, turn = threading.Event(), threading.Event()

    def wait(_: float) -> bool:
        looked.set()
        assert turn.wait(60)
        turn.clear()
        return kafka.now > 2000

    monkeypatch.setattr(reader.log._connection.closed, "wait", wait)
    kafka.ends["t", 0] = 100
    reader.assign(0)
    reader.poll(1000)
    for passes_s in (29.0, 2.0, 1000.0):
        assert looked.wait(60)
        looked.clear()
        was_closed = kafka.clients[0].is_closed
        kafka.now += passes_s
        turn.set()
        assert (passes_s == 1000.0) == was_closed

    assert reader.polls(1.0) == 100 - 8
    assert len(kafka.clients) == 2


def test_source_without_partitions_is_idle(kafka: Brokers, reader: Reader) -> None:
    """Its connection would collect statistics that no poll reads."""
    reader.assign(0)
    reader.poll()
    reader.release(0)
    polled_at = reader.source._polled_at
    reader.polls(10.0)

    assert reader.source._polled_at == polled_at


# ---- fairness


@pytest.mark.long
def test_slow_application_fetches_each_record_once_while_another_partition_is_idle(
    kafka: Brokers, reader: Reader
) -> None:
    kafka.ends["t", 0] = 4000
    reader.assign(0, IDLE)
    while reader.offset(0) < 4000:
        reader.poll(2000, passes_s=0.2)
        assert ("t", 0) in kafka.clients[-1].assigned

    assert kafka.fetched == 4000
    assert {("t", IDLE)} in kafka.asked, "it might have had records"


@pytest.mark.long
@pytest.mark.parametrize(("max_bytes", "passes_s"), [(2000, 0.02), (40_000, 0.1)], ids=["slow", "fast"])
def test_every_partition_is_served_though_the_first_ones_fill_the_prefetch_queue(
    kafka: Brokers, reader: Reader, max_bytes: int, passes_s: float
) -> None:
    """librdkafka begins with the same ones again whenever its queue was full: before a slow reader it always is."""
    kafka.ends = {("t", partition): 1_000_000 for partition in range(19)} | {("t", 19): 10}
    kafka.is_unfair = True
    reader.assign(*range(20))
    began, gap, count = kafka.now, 0.0, 0
    last = dict.fromkeys(range(20), began)
    while kafka.now < began + 60:
        for partition, offsets in reader.poll(max_bytes, passes_s=passes_s).items():
            gap = max(gap, kafka.now - last[partition])
            last[partition], count = kafka.now, count + len(offsets)
    del last[19]

    assert max(gap, kafka.now - min(last.values())) < 8
    assert reader.offset(19) == 10
    assert kafka.fetched <= 1.1 * count + 200


def test_end_offsets_are_not_requested_again_while_all_partitions_are_idle(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 1000
    reader.assign(0, IDLE)
    reader.polls(20.0)
    kafka.asked.clear()
    reader.polls(60.0)

    assert len(kafka.asked) <= 1


@pytest.mark.parametrize("kind", [CORRUPT, OTHER])
@pytest.mark.long
def test_no_partition_yields_to_one_with_an_error(kafka: Brokers, reader: Reader, kind: str) -> None:
    kafka.ends = {("t", 0): 100_000, ("t", 1): 10}
    kafka.begins["t", 1] = 10
    kafka.signals["t", 1] = Signal(kind, "t", 1, 3, "it broke")
    reader.assign(0)
    reader.assign(1, offset=3)
    for _ in range(450):  # a damaged one is requested again after ten seconds
        kafka.clients[-1].reports_again(("t", 1))
        reader.poll(5000)
        assert ("t", 0) in kafka.clients[-1].assigned

    assert "it broke" in reader.problem(1)
    assert "it broke" not in reader.problem(0)


@pytest.mark.long
def test_no_partition_yields_to_one_without_a_leader(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", 0): 100_000, ("t", 1): 10}
    kafka.leaders["t", 1] = "b:2"
    kafka.down = {"b:2"}
    reader.assign(0, 1)
    for _ in range(500):
        reader.poll(5000)
        assert ("t", 0) in kafka.clients[-1].assigned


def test_full_reader_gets_wanted_records_one_by_one_while_others_yield(kafka: Brokers, reader: Reader) -> None:
    kafka.ends = {("t", 0): 1000, ("t", 1): 0}
    reader.assign(0, 1)
    reader.poll(5000)
    kafka.ends["t", 1] = 6
    found = [reader.poll(0, {1}, 0.1) for _ in range(60)]

    assert [offsets for each in found for offsets in each.values()] == [[n] for n in range(6)]
    assert set(kafka.clients[-1].assigned) == {("t", 1)}
    reader.poll(5000, {0, 1})
    assert set(kafka.clients[-1].assigned) == {("t", 0), ("t", 1)}
    assert reader.polls(10.0) > 900
    assert reader.offset(0) == 1000


def test_full_reader_makes_no_partition_yield_to_an_idle_one(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 1000
    reader.assign(0, IDLE)
    reader.poll(5000)
    for _ in range(100):
        assert reader.poll(0, {IDLE}, 0.1) == {}

    assert set(kafka.clients[-1].assigned) == {("t", 0), ("t", IDLE)}
    assert len(kafka.asked) <= 11


def test_answer_about_a_starved_partition_makes_none_yield_to_an_idle_one(kafka: Brokers, reader: Reader) -> None:
    """The reader has become full, and wants another one, before the end offsets arrived."""
    kafka.ends = {("t", 0): 10_000, ("t", 2): 10}
    kafka.ahead, kafka.is_unfair, kafka.is_holding = 10, True, True  # responses have records of the first one only
    reader.assign(0, IDLE, 2)
    for _ in range(100):
        reader.poll(40_000)
    kafka.is_holding = False
    reader.poll(0, {IDLE})

    assert kafka.asked[0] == {("t", IDLE), ("t", 2)}
    assert set(kafka.clients[-1].assigned) == {("t", 0), ("t", IDLE), ("t", 2)}


# ---- errors of a partition


def test_out_of_range_offset_is_reported_behind_the_records_before_it(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 8
    reader.assign(0)
    reader.poll(1)
    kafka.ends["t", 0] = 4  # cut off, as by an unclean election
    kafka.clients[-1].reports_again(("t", 0))
    while reader.offset(0) < 8:
        reader.poll(1)
        assert reader.offset(0) == 8 or not reader.problem(0)
    reader.polls(1.0)
    for _ in range(5):  # also of a reader that seldom polls
        assert reader.problem(0) == "offset 8 of t-0 is out of range: Kafka holds 0 to 4"
        reader.poll(passes_s=2.0)

    kafka.ends["t", 0] = 12  # they were written again
    assert reader.polls(5.0) == 4
    assert reader.problem(0) == ""


def test_valid_position_is_not_reported_out_of_range(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 4
    kafka.is_holding = True
    reader.assign(0, offset=6)
    reader.poll()
    kafka.is_holding = False
    kafka.ends["t", 0] = 10
    reader.polls(0.5)

    assert "Kafka holds" not in reader.problem(0)
    assert reader.polls(5.0) == 4
    assert reader.problem(0) == ""


def test_partition_error_is_reported_until_records_return_and_refetches_none(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 10
    kafka.signals["t", 0] = Signal(OTHER, "t", 0, -1001, "Broker: Unknown error")
    reader.assign(0)
    assert reader.polls(1.0) == 10
    assert reader.problem(0) == "t-0 cannot be read, tried again: Broker: Unknown error"

    kafka.signals.clear()
    kafka.ends["t", 0] = 50
    reader.poll(500)
    assert reader.problem(0) == ""
    reader.polls(1.0)
    assert (reader.offset(0), kafka.fetched) == (50, 50)


def test_error_behind_records_of_the_same_poll_is_reported_at_once(kafka: Brokers, reader: Reader) -> None:
    kafka.ends["t", 0] = 10
    kafka.signals["t", 0] = Signal(CORRUPT, "t", 0, 10, "bad CRC")
    kafka.is_holding = True
    reader.assign(0)
    reader.poll()
    reader.poll()
    kafka.is_holding = False

    assert reader.polls(1.0) == 10
    assert reader.problem(0) == "the records of t-0 from offset 10 on are damaged, asked for again: bad CRC"


def test_partition_that_kafka_does_not_have_is_reported_and_the_others_are_fetched(
    kafka: Brokers, reader: Reader
) -> None:
    kafka.ends["t", 0] = 100
    reader.assign(0, 20)

    assert reader.polls(5.0) == 100
    assert "ZooKeeper has a partition t-20, and Kafka has 20 of this topic" in reader.problem(20)
    assert reader.problem(0) == ""


# ---- lookups


def test_poll_waits_for_no_lookup_of_another_thread(
    kafka: Brokers, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.ends = {("t", 0): 10, ("t", 1): 10}
    reader.assign(0)
    reader.poll()
    asked, answer = threading.Event(), threading.Event()

    def find(*_: object) -> None:
        asked.set()
        assert answer.wait(60)
        raise LogError("no leader")

    def ask() -> None:
        with suppress(LogError):
            reader.log.latest("t", "id", 1)

    monkeypatch.setattr(kafka.clients[-1], "offsets", find)
    other = threading.Thread(target=ask)
    other.start()
    assert asked.wait(60)
    monkeypatch.undo()
    kafka.ends["t", 0] = 20

    assert reader.polls(1.0) == 10
    answer.set()
    other.join(60)
    assert not other.is_alive()


def test_topic_that_may_not_be_described_does_not_stop_the_lookups_of_others(kafka: Brokers) -> None:
    kafka.denied, kafka.ends = {"denied"}, {("good", 0): 3}
    log = kafka.log()

    for _ in range(2):
        with pytest.raises(LogError, match="not authorized"):
            log.latest("denied", "id", 0)
    assert log.latest("good", "id", 0) == 3
    assert kafka.described.count({"denied"}) == 1


def test_partition_of_another_topic_of_the_name_has_no_end(kafka: Brokers) -> None:
    kafka.ids["t"], kafka.ends["t", 0] = "new", 3
    old, new = (TopicIdPartition("t", topic_id, 0) for topic_id in ("old", "new"))
    found = kafka.log().latest_of([new, old])

    assert found[new] == 3
    assert isinstance(found[old], UnknownTopic)


def test_leaderless_topic_blocks_no_other_lookup_and_is_not_asked_again_at_once(kafka: Brokers) -> None:
    kafka.ends = {("bad", 0): 3, ("good", 0): 3}
    kafka.leaders, kafka.down = {("bad", number): "b:2" for number in range(20)}, {"b:2"}
    log = kafka.log()

    for partition in (0, IDLE):
        with pytest.raises(LogError, match="no leader"):
            log.latest("bad", "id", partition)
    assert log.latest("good", "id", 0) == 3
    with pytest.raises(LogError, match="no leader"):
        log.latest("bad", "id", 0)

    assert sum(("bad", 0) in places for places in kafka.asked) == 1

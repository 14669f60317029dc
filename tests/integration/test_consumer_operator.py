"""`ConsumerOperator`: a checkpoint holds exactly the processed records, also after failures (sources R6)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.client_side import Hooked, creates
from tests.support.memlog import MemoryLog
from tests.support.region import PATHS, Operating, OperatingRegion, running
from tests.support.stores import lost_reply
from tests.support.wait import PATIENCE, eventually
from tests.support.world import SESSION_MS, World, expire
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.errors import DrainFailed, ProcessFailed
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.logs.base import OffsetOutOfRange
from zk_group.consumer.membership.claims import PARTITIONS_A_STEP
from zk_group.consumer.operator.consumer_operator import ConsumerOperator, Processor
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Delete


@pytest.fixture
def o(o: OperatingRegion) -> OperatingRegion:
    """Of a topic with 2 partitions, in most tests here."""
    o.topic(2)
    return o


def stuck(o: OperatingRegion, queued: int = 0, **options: Any) -> Operating:
    """Operator c1 in the midst of its first record, with so many behind it; the region is Running."""
    one = o.member("c1", is_stuck=True, **options)
    running(o.world)
    is_stuck(one, queued)
    return one


def is_stuck(one: Operating, queued: int = 0) -> None:
    eventually(lambda: len(one.seen) == 1, 20, "a record is being processed")
    eventually(lambda: one.operator.queued >= queued, 20, f"{queued} records wait")


def is_draining(one: Operating) -> None:
    eventually(lambda: one.operator.state == "DRAINING", 20, "it drains")


def slows(one: Operating, seconds: float) -> None:
    """It goes on, and takes so long for a record."""
    never = ThreadRuntime().event()
    one.acts = lambda record: never.wait(seconds) or None
    one.gate.set()


def counted_in(o: OperatingRegion, sequence: int) -> tuple[int, int]:
    """The counts in the states of a checkpoint, and the records below its offsets."""
    given = o.given(sequence).values()
    offsets = sum(sum(each.offsets.values()) for each in given)
    texts = [text for each in given for text in each.states.values()]
    return sum(int(base64.b64decode(text).split(b" ")[0]) for text in texts), offsets


def a_session(o: OperatingRegion) -> Hooked:
    """For one operator, by `open_store=lambda: session`: it never opens another."""
    return Hooked(kazoo_factory(o.zk, SESSION_MS)())


@pytest.mark.parametrize("operator_driven", [False, True])
def test_cut_has_processed_records_and_not_those_that_poll_returned(o: OperatingRegion, operator_driven: bool) -> None:
    one = stuck(o, queued=2 * o.log.end - 1, operator_driven=operator_driven)

    one.operator.request_checkpoint()
    is_draining(one)
    one.gate.set()

    sequence = eventually(lambda: o.now.sequence, 20, "a checkpoint is complete")
    counted, offsets = counted_in(o, sequence)
    assert counted == offsets == (1 if operator_driven else 2 * o.log.end)
    assert one.metric("last_drain_seconds") == one.metric("longest_drain_seconds") > 0
    o.exact()


def test_slow_process_with_a_full_queue_has_checkpoints(o: OperatingRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.consumer.operator.consumer_operator.PROCESS_FIRST_S", 0.2)
    o.log.end = 100
    one = stuck(o, queued=199)
    slows(one, 0.02)

    counted, offsets = counted_in(o, o.checkpoint())

    assert 1 <= counted == offsets < 200, "what was left was set aside"
    one.acts = None
    o.exact()


def test_clean_stop_beside_a_backlog_has_its_checkpoint(o: OperatingRegion, caplog: pytest.LogCaptureFixture) -> None:
    one, two = o.member("c1"), o.member("c2", is_stuck=True)
    o.world.stable("g", 2)
    running(o.world)
    is_stuck(two, queued=o.log.end - 1)
    slows(two, 1.0)

    one.close()

    assert "leaving without checkpoint" not in caplog.text and o.now.sequence
    two.acts = None
    o.exact()


def test_slow_process_beyond_drain_and_poll_timeouts_costs_only_a_checkpoint(o: OperatingRegion) -> None:
    o.world.coordinator(drain_timeout_ms=500)
    o.log.end = 100
    one = stuck(o, queued=100, max_poll_records=1, max_poll_interval_ms=1000)
    stuck_at, before = one.consumer._runtime.monotonic(), o.now.reset

    o.asks("checkpoint")
    o.aborted(1)
    eventually(lambda: one.consumer._runtime.monotonic() > stuck_at + 2, 10, "two poll intervals are over")

    assert one.operator.queued == 100, "the message queue is full, and has no more"
    one.gate.set()
    o.exact()
    assert one.consumer.member.registrations == 1 and o.now.reset == before
    assert counted_in(o, o.checkpoint()) == (200, 200)


def test_nothing_of_a_full_queue_is_processed_after_a_reset(o: OperatingRegion) -> None:
    o.log.end = 100
    one = stuck(o, queued=100, max_poll_records=1)
    before = o.now.reset
    assert (one.metric("queued_records"), one.metric("consumed_topics")) == (100, 1)

    o.asks("reset")
    eventually(lambda: o.now.reset > before, 10, "the reset begins")
    eventually(lambda: not one.operator.queued, 10, "the message queue is cleared")
    stuck_on, resets = one.seen[-1], len(one.resets)
    one.gate.set()

    o.exact()
    assert len(one.resets) == resets + 1 == one.metric("region_resets_total")
    assert one.metric("queued_records") == 0
    after = one.seen[one.seen.index(stuck_on) + 1 :]
    assert after[0].offset == 0, "it begins again"
    assert len(after) == 200


def test_rebalance_with_a_full_queue_checkpoints_the_processed_records_exactly(o: OperatingRegion) -> None:
    o.topic(4)
    o.log.end = 100
    session = a_session(o)
    one = stuck(o, queued=100, max_poll_records=1, operator_driven=True, open_store=lambda: session)
    queued: list[int] = []
    gives_up = lambda done: any(isinstance(each, Delete) and "/owners/" in each.path for each in done)  # noqa: E731
    session.before(gives_up, lambda: queued.append(one.operator.queued))

    o.member("c2")
    is_draining(one)
    one.gate.set()

    o.settles()
    assert queued == [0], "records of revoked partitions are dropped before another member owns them"


def test_process_exception_ends_the_operator_uncheckpointed_and_names_the_record(o: OperatingRegion) -> None:
    one = o.member("c1")

    def refuses(record: Record) -> None:
        if record.offset == 7:
            raise ValueError("no number")

    one.acts = refuses
    with pytest.raises(ProcessFailed, match=r"t-[01] offset 7: ValueError: no number") as raised:
        one.operator.wait(20 * PATIENCE)

    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(ProcessFailed):
        one.close()
    assert o.now.sequence == 0
    o.joins("c2")


def test_reset_asked_in_a_drain_precedes_its_checkpoint(o: OperatingRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment when the member sees that all is processed, and its contribution."""
    one = stuck(o)
    before, drained = o.now, one.operator.on_drain

    def asks_just_then() -> bool:
        if not drained():
            return False
        monkeypatch.setattr(one.operator, "on_drain", drained)
        one.operator.request_reset("another thread's")
        return True

    monkeypatch.setattr(one.operator, "on_drain", asks_just_then)
    o.asks("checkpoint")
    is_draining(one)
    o.reset_by(one.gate.set)

    assert o.world.names(PATHS.checkpoint(before.next_sequence)) == ["aborted"], "it has not contributed"


def test_a_reset_that_is_requested_in_on_reset_is_another_one(o: OperatingRegion) -> None:
    one = o.joins("c1")
    before = o.now.reset

    def doubts_once() -> None:
        one.restores = None
        one.operator.request_reset("it cannot read its state yet")

    one.restores = doubts_once
    one.operator.request_reset("it does not add up")

    o.settles(above=before + 1)
    assert one.operator.state != "RESET_PENDING"


def test_an_application_may_call_its_operator_inside_process_and_inside_a_callback(o: OperatingRegion) -> None:
    one = o.member("c1", operator_driven=True)
    found: list[BaseException] = []

    def calls_back(record: Record) -> None:
        if record.offset == 10:
            one.operator.request_checkpoint()
        if record.offset == 20:
            try:
                one.operator.wait()
            except UsageError as error:
                found.append(error)
            one.operator.close()

    one.acts = calls_back
    one.drains = one.operator.request_checkpoint

    assert one.operator.wait(20 * PATIENCE)
    assert "call stop, and return" in str(found[0])
    counted, offsets = counted_in(o, o.now.sequence)
    assert counted == offsets >= 21


def test_close_during_a_drain_waits_for_the_current_record_and_loses_nothing(o: OperatingRegion) -> None:
    one = stuck(o)
    o.asks("checkpoint")
    is_draining(one)

    with pytest.raises(ProcessFailed, match=r"process has not returned within 0\.2 s"):
        one.operator.close(0.2)
    eventually(lambda: one.operator._messages._withheld, 10, "what waits is set aside")
    one.gate.set()
    one.close()

    counted, offsets = counted_in(o, o.now.sequence)
    assert counted == offsets == len(one.seen) == 1, "what waits is left to the next one"
    o.joins("c2")


def test_contribution_or_its_reply_lost_counts_once(o: OperatingRegion, caplog: pytest.LogCaptureFixture) -> None:
    session = a_session(o)
    one = o.joins("c1", open_store=lambda: session)
    before = o.now.reset
    for loses in (session.after, session.before):
        loses(creates("g~c1"), lost_reply)
        o.log.end += 20
        o.checkpoint()
        assert session.has_acted
        o.exact()

    one.operator.close()

    assert o.now.reset == before and "leaving without checkpoint" not in caplog.text
    assert counted_in(o, o.now.sequence) == (2 * o.log.end, 2 * o.log.end)


def test_session_that_ends_once_a_state_is_taken_costs_the_checkpoint_and_no_record(o: OperatingRegion) -> None:
    one, _ = o.starts("c1", "c2")
    before = o.now

    def expires() -> None:
        one.drains = None
        assert one.consumer.member.store is not None
        expire(one.consumer.member.store)

    one.drains = expires
    after = o.reset_by(lambda: o.asks("checkpoint"))

    assert after.sequence == before.sequence, "none is complete"
    assert o.checkpoint() > before.next_sequence and not one.operator.wait(0)
    o.counts_on()


def test_operator_that_finds_an_offset_lost_waits_and_runs_after_the_regions_reset(o: OperatingRegion) -> None:
    session = a_session(o)
    session.before(creates(PATHS.request), lost_reply)
    one = o.joins("c1", open_store=lambda: session)
    sequence = o.checkpoint()
    end, o.log.lost_below = o.log.end, o.log.end + 100
    o.log.end = o.log.lost_below + 10

    o.asks("reset")
    o.fails()
    eventually(lambda: not one.consumer.assignment(), 20, "its partitions are given up")

    assert session.has_acted and not one.operator.wait(0), "it has not ended"
    o.log.end, o.log.lost_below = end + 10, 0
    o.reset()
    assert one.resets[-1] == sequence


def test_start_that_stops_between_two_multis_goes_on_and_restores_the_state_once(o: OperatingRegion) -> None:
    o.log.end = 1
    o.topic(PARTITIONS_A_STEP + 5)
    session, claims = a_session(o), creates("/owners/")
    session.after(claims, lambda: session.before(claims, lost_reply))

    one = o.joins("c1", open_store=lambda: session)

    assert session.has_acted and len([commit for commit in session.commits if claims(commit)]) == 2
    assert one.resets == [0]


def test_on_checkpoint_error_ends_the_operator_and_the_last_checkpoint_is_resumed(o: OperatingRegion) -> None:
    one = o.joins("c1")
    sequence = o.checkpoint()
    one.fails_to_drain = True

    o.asks("checkpoint")

    with pytest.raises(DrainFailed, match="the disk is full"):
        one.operator.wait(20 * PATIENCE)
    two = o.member("c2")
    o.exact(two)
    assert two.resets[-1] == sequence


def test_an_on_reset_error_ends_the_operator_even_when_it_is_an_offset_out_of_range(o: OperatingRegion) -> None:
    one = o.joins("c1")

    def fails() -> None:
        raise OffsetOutOfRange("t-0: offset 7 is not in the application's own log")

    one.restores = fails
    one.operator.request_reset("it does not add up")

    with pytest.raises(OffsetOutOfRange, match="the application's own log"):
        one.operator.wait(20 * PATIENCE)


def test_an_operator_asks_for_a_region_is_started_once_and_may_be_closed_unstarted(world: World) -> None:
    def made(**options: Any) -> ConsumerOperator:
        config = ConsumerConfig(zk=world.zk, group="g", **options)
        return ConsumerOperator(config, Subscription({"t": 1}), Processor(), source=MemoryLog())

    with pytest.raises(UsageError, match="needs a consistent region: add region='NAME'"):
        made()
    operator = made(region="r")
    assert operator.state == "SUBSCRIBED"
    operator.close()
    with pytest.raises(UsageError, match="is started once"):
        operator.start()

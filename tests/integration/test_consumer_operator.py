"""`ConsumerOperator`: a checkpoint holds exactly the processed records, also after failures (seed 002)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.errors import DrainFailed, ProcessFailed
from consumer.fetching.record_buffer import Record
from consumer.logs.base import OffsetOutOfRange
from consumer.membership.claims import PARTITIONS_A_STEP
from consumer.operator.consumer_operator import ConsumerOperator, Processor
from coordinator.zk.errors import OutcomeUnknown, UsageError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create, Delete, Operation, Store
from tests.support.client_side import Hooked
from tests.support.memlog import MemoryLog
from tests.support.region import PATHS, Operating, checkpoint, contributions, exact, region, requested, running
from tests.support.stores import FrontStore
from tests.support.wait import PATIENCE, eventually
from tests.support.world import SESSION_MS, World


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=40)


def is_stuck(one: Operating) -> None:
    """Until the process thread is in the midst of its first record."""
    eventually(lambda: len(one.seen) == 1, 20, "a record is being processed")


def fills(one: Operating, records: int) -> None:
    eventually(lambda: one.operator.queued >= records, 20, f"{records} records wait")


def counted_in(world: World, sequence: int) -> tuple[int, int]:
    """The counts in the states of a checkpoint, and the records below its offsets."""
    given = contributions(world, sequence).values()
    offsets = sum(sum(each.offsets.values()) for each in given)
    texts = [text for each in given for text in each.states.values()]
    return sum(int(base64.b64decode(text).split(b" ")[0]) for text in texts), offsets


def test_states_are_exact_through_joins_kills_and_leaves(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = operating("c1")
    running(world)
    exact(log, 4, one)
    two = operating("c2")
    world.stable("g", 2)
    log.end = 60
    exact(log, 4, one, two)
    generation = world.state("g").generation

    two.vanish()
    world.stable("g", 1, above=generation)
    log.end = 80
    exact(log, 4, one)
    three = operating("c3", operator_driven=True)
    world.stable("g", 2, above=generation + 1)
    log.end = 100
    exact(log, 4, one, three)
    before = region(world)
    three.operator.close()

    world.stable("g", 1, above=generation + 2)
    exact(log, 4, one)
    assert region(world).sequence > before.sequence, "a leaving member takes a checkpoint first"
    assert one.operator.state in ("RESET_COMPLETE", "RECEIVING")


@pytest.mark.parametrize("operator_driven", [False, True])
def test_cut_has_the_processed_records_and_not_those_that_poll_returned(
    world: World, log: MemoryLog, operating: Callable[..., Operating], operator_driven: bool
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1", operator_driven=operator_driven, is_stuck=True)
    running(world)
    is_stuck(one)
    fills(one, 2 * log.end - 1)

    one.operator.request_checkpoint()
    eventually(lambda: one.operator.state == "DRAINING", 10, "it drains")
    one.gate.set()

    sequence = eventually(lambda: region(world).sequence, 20, "a checkpoint is complete")
    counted, offsets = counted_in(world, sequence)
    assert counted == offsets == (1 if operator_driven else 2 * log.end)
    assert one.metric("last_drain_seconds") == one.metric("longest_drain_seconds") > 0
    exact(log, 2, one)


def test_a_slow_process_with_a_full_queue_has_checkpoints_all_the_same(
    world: World, log: MemoryLog, operating: Callable[..., Operating], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.operator.consumer_operator.PROCESS_FIRST_S", 0.2)
    world.coordinator()
    world.topic("t", 2)
    log.end = 100
    one = operating("c1", is_stuck=True)
    running(world)
    is_stuck(one)
    fills(one, 199)
    never = ThreadRuntime().event()
    one.acts = lambda record: never.wait(0.02) or None
    one.gate.set()

    counted, offsets = counted_in(world, checkpoint(world))

    assert 1 <= counted == offsets < 200, "what was left was set aside"
    one.acts = None
    exact(log, 2, one)


def test_a_clean_stop_beside_a_slow_process_with_a_backlog_has_its_checkpoint(
    world: World, log: MemoryLog, operating: Callable[..., Operating], caplog: pytest.LogCaptureFixture
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one, two = operating("c1"), operating("c2", is_stuck=True)
    world.stable("g", 2)
    running(world)
    is_stuck(two)
    fills(two, log.end - 1)
    never = ThreadRuntime().event()
    two.acts = lambda record: never.wait(1.0) or None
    two.gate.set()

    one.operator.close()

    assert "leaving without checkpoint" not in caplog.text and region(world).sequence
    two.acts = None
    exact(log, 2, two)


def test_slow_process_beyond_drain_and_poll_timeouts_costs_only_a_checkpoint(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator(drain_timeout_ms=500)
    world.topic("t", 2)
    log.end = 100
    one = operating("c1", max_poll_records=1, max_poll_interval_ms=1000, is_stuck=True)
    running(world)
    is_stuck(one)
    fills(one, 100)
    stuck_at, before = one.consumer._runtime.monotonic(), region(world).reset

    requested(world, "checkpoint")
    eventually(lambda: "aborted" in world.names(PATHS.checkpoint(1)), 10, "it is aborted")
    eventually(lambda: one.consumer._runtime.monotonic() > stuck_at + 2, 10, "two poll intervals are over")

    assert one.operator.queued == 100, "the message queue is full, and has no more"
    one.gate.set()
    exact(log, 2, one)
    assert one.consumer.member.registrations == 1 and region(world).reset == before
    assert counted_in(world, checkpoint(world)) == (200, 200)


def test_nothing_of_a_full_queue_is_processed_after_a_reset(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    log.end = 100
    one = operating("c1", max_poll_records=1, is_stuck=True)
    running(world)
    is_stuck(one)
    fills(one, 100)
    before = region(world).reset
    assert (one.metric("queued_records"), one.metric("consumed_topics")) == (100, 1)

    requested(world, "reset")
    eventually(lambda: region(world).reset > before, 10, "the reset begins")
    eventually(lambda: not one.operator.queued, 10, "the message queue is cleared")
    stuck_on, resets = one.seen[-1], len(one.resets)
    one.gate.set()

    exact(log, 2, one)
    assert len(one.resets) == resets + 1 == one.metric("region_resets_total")
    assert one.metric("queued_records") == 0
    after = one.seen[one.seen.index(stuck_on) + 1 :]
    assert after[0].offset == 0, "it begins again"
    assert len(after) == 200


def test_rebalance_with_a_full_queue_checkpoints_the_processed_records_exactly(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    log.end = 100
    opened = kazoo_factory(world.zk, SESSION_MS)
    fronts: list[Hooked] = []
    one = operating(
        "c1",
        max_poll_records=1,
        operator_driven=True,
        is_stuck=True,
        open_store=lambda: fronts.append(Hooked(opened())) or fronts[-1],
    )
    running(world)
    is_stuck(one)
    fills(one, 100)
    queued: list[int] = []
    fronts[0].before(_gives_up_owners, lambda: queued.append(one.operator.queued))

    two = operating("c2")
    eventually(lambda: one.operator.state == "DRAINING", 20, "a checkpoint is first")
    one.gate.set()

    world.stable("g", 2)
    assert queued == [0], "records of revoked partitions are dropped before another member owns them"
    exact(log, 4, one, two)


def _gives_up_owners(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Delete) and "/owners/" in each.path for each in operations)


def test_process_exception_ends_the_operator_uncheckpointed_and_names_the_record(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1")

    def refuses(record: Record) -> None:
        if record.offset == 7:
            raise ValueError("no number")

    one.acts = refuses
    with pytest.raises(ProcessFailed, match=r"t-[01] offset 7: ValueError: no number") as raised:
        one.operator.wait(20 * PATIENCE)

    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(ProcessFailed):
        one.operator.close()
    assert region(world).sequence == 0
    two = operating("c2")
    exact(log, 2, two)


def test_checkpoint_excludes_records_processed_between_reset_request_and_reset(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator(checkpoint_interval_ms=100)
    world.topic("t", 2)
    one = operating("c1")
    running(world)
    exact(log, 2, one)

    def doubts(record: Record) -> None:
        one.acts = None
        one.count(next(iter(one.by_partition)), 1_000)
        one.operator.request_reset("it does not add up")
        assert one.operator.state == "RESET_PENDING"

    one.acts = doubts
    before = region(world).reset
    log.end = 60

    running(world, above=before)
    exact(log, 2, one)
    assert region(world).consecutive_resets <= 1
    eventually(lambda: region(world).sequence > one.resets[-1], 10, "checkpoints continue")
    exact(log, 2, one)


def test_reset_requested_by_another_thread_during_a_drain_precedes_its_checkpoint(
    world: World, log: MemoryLog, operating: Callable[..., Operating], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment when the member sees that all is processed, and its contribution."""
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1", is_stuck=True)
    running(world)
    is_stuck(one)
    before, drained = region(world), one.operator.on_drain

    def asks_just_then() -> bool:
        if not drained():
            return False
        monkeypatch.setattr(one.operator, "on_drain", drained)
        one.operator.request_reset("another thread's")
        return True

    monkeypatch.setattr(one.operator, "on_drain", asks_just_then)
    requested(world, "checkpoint")
    eventually(lambda: one.operator.state == "DRAINING", 10, "it drains")
    one.gate.set()

    running(world, above=before.reset)
    exact(log, 2, one)
    assert world.names(PATHS.checkpoint(before.next_sequence)) == ["aborted"], "it has not contributed"


def test_a_reset_that_is_requested_in_on_reset_is_another_one(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1")
    running(world)
    exact(log, 2, one)
    before = region(world).reset

    def doubts_once() -> None:
        one.restores = None
        one.operator.request_reset("it cannot read its state yet")

    one.restores = doubts_once
    one.operator.request_reset("it does not add up")

    running(world, above=before + 1)
    exact(log, 2, one)
    assert one.operator.state != "RESET_PENDING"


def test_an_application_may_call_its_operator_inside_process_and_inside_a_callback(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 1)
    one = operating("c1", operator_driven=True)
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
    counted, offsets = counted_in(world, region(world).sequence)
    assert counted == offsets >= 21


def test_close_during_a_drain_waits_for_the_current_record_and_loses_nothing(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1", is_stuck=True)
    running(world)
    is_stuck(one)
    requested(world, "checkpoint")
    eventually(lambda: one.operator.state == "DRAINING", 10, "it drains")

    with pytest.raises(ProcessFailed, match=r"process has not returned within 0\.2 s"):
        one.operator.close(0.2)
    eventually(lambda: one.operator._messages._withheld, 10, "what waits is set aside")
    one.gate.set()
    one.operator.close()

    counted, offsets = counted_in(world, region(world).sequence)
    assert counted == offsets == len(one.seen) == 1, "what waits is left to the next one"
    two = operating("c2")
    exact(log, 2, two)


def test_session_expiry_between_state_and_multi_leaves_no_contribution_or_duplicate(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1")
    running(world)
    exact(log, 2, one)
    before = region(world).reset

    def dies() -> None:
        one.drains = None
        store = one.consumer.member.store
        assert store is not None
        store.close()

    one.drains = dies
    requested(world, "checkpoint")

    running(world, above=before)
    assert "aborted" in world.names(PATHS.checkpoint(1))
    log.end = 60
    exact(log, 2, one)
    assert counted_in(world, checkpoint(world)) == (120, 120)


class _LosesReplies(FrontStore):
    """Loses the reply of the first multi with a contribution, and the second one itself."""

    contributions = 0

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        is_contribution = any(isinstance(each, Create) and "~" in each.path for each in operations)
        if is_contribution and self.contributions == 1:
            self.contributions += 1
            raise OutcomeUnknown("it was never sent")
        found = self.behind.commit(operations)
        if is_contribution and self.contributions == 0:
            self.contributions += 1
            raise OutcomeUnknown("the reply was lost")
        return found


def test_contribution_with_a_lost_reply_counts_once_and_a_lost_one_is_repeated(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    fronts: list[_LosesReplies] = []

    def opened() -> Store:
        fronts.append(_LosesReplies(kazoo_factory(world.zk, SESSION_MS)()))
        return fronts[-1]

    one = operating("c1", open_store=opened)
    running(world)
    exact(log, 2, one)
    before = region(world).reset

    for count in (1, 2):
        log.end += 20
        assert counted_in(world, checkpoint(world))[0] <= 2 * log.end
        assert [front.contributions for front in fronts] == [count]
        exact(log, 2, one)

    one.operator.close()
    assert region(world).reset == before
    assert counted_in(world, region(world).sequence) == (2 * log.end, 2 * log.end)


class _LosesTheFirstRequest(FrontStore):
    """Does not send the first request for a region, and says that there was no answer."""

    has_lost = False

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if not self.has_lost and any(isinstance(each, Create) and each.path == PATHS.request for each in operations):
            self.has_lost = True
            raise OutcomeUnknown("it was never sent")
        return self.behind.commit(operations)


def test_operator_that_finds_an_offset_lost_waits_and_runs_after_the_regions_reset(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    fronts: list[_LosesTheFirstRequest] = []

    def opened() -> Store:
        fronts.append(_LosesTheFirstRequest(kazoo_factory(world.zk, SESSION_MS)()))
        return fronts[-1]

    one = operating("c1", open_store=opened)
    running(world)
    exact(log, 2, one)
    sequence = checkpoint(world)
    end, log.lost_below = log.end, log.end + 100
    log.end = log.lost_below + 10

    requested(world, "reset")
    eventually(lambda: region(world).state == "Failed", 20, "the region has failed")
    eventually(lambda: not one.consumer.assignment(), 20, "its partitions are given up")

    assert [front.has_lost for front in fronts] == [True]
    assert not one.operator.wait(0), "it has not ended"
    log.end, log.lost_below = end + 10, 0
    requested(world, "reset")
    running(world)
    exact(log, 2, one)
    assert one.resets[-1] == sequence


class _StopsAtTheSecondClaim(FrontStore):
    """Does not send the second multi of a start, and says that there was no answer.

    :ivar claims: multis sent that create owner znodes.
    """

    claims = 0
    has_failed = False

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        is_claim = any(isinstance(each, Create) and "/owners/" in each.path for each in operations)
        if is_claim and self.claims == 1 and not self.has_failed:
            self.has_failed = True
            raise OutcomeUnknown("it was never sent")
        self.claims += is_claim
        return self.behind.commit(operations)


def test_start_that_stops_between_two_multis_goes_on_and_restores_the_state_once(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    log.end = 1
    world.coordinator()
    world.topic("t", PARTITIONS_A_STEP + 5)
    fronts: list[_StopsAtTheSecondClaim] = []

    def opened() -> Store:
        fronts.append(_StopsAtTheSecondClaim(kazoo_factory(world.zk, SESSION_MS)()))
        return fronts[-1]

    one = operating("c1", open_store=opened)

    running(world)
    exact(log, PARTITIONS_A_STEP + 5, one)
    assert [(front.has_failed, front.claims) for front in fronts] == [(True, 2)]
    assert one.resets == [0]


def test_on_checkpoint_error_ends_the_operator_and_the_last_checkpoint_is_resumed(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1")
    running(world)
    exact(log, 2, one)
    sequence = checkpoint(world)
    one.fails_to_drain = True

    requested(world, "checkpoint")

    with pytest.raises(DrainFailed, match="the disk is full"):
        one.operator.wait(20 * PATIENCE)
    two = operating("c2")
    exact(log, 2, two)
    assert two.resets[-1] == sequence


def test_an_on_reset_error_ends_the_operator_even_when_it_is_an_offset_out_of_range(
    world: World, log: MemoryLog, operating: Callable[..., Operating]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = operating("c1")
    running(world)
    exact(log, 2, one)

    def fails() -> None:
        raise OffsetOutOfRange("t-0: offset 7 is not in the application's own log")

    one.restores = fails
    one.operator.request_reset("it does not add up")

    with pytest.raises(OffsetOutOfRange, match="the application's own log"):
        one.operator.wait(20 * PATIENCE)


def test_an_operator_asks_for_a_region_is_started_once_and_may_be_closed_unstarted(
    world: World, log: MemoryLog
) -> None:
    with pytest.raises(UsageError, match="needs a consistent region: add region='NAME'"):
        ConsumerOperator(ConsumerConfig(zk=world.zk, group="g"), Subscription({"t": 1}), Processor(), source=log)
    config = ConsumerConfig(zk=world.zk, group="g", region="r")
    operator = ConsumerOperator(config, Subscription({"t": 1}), Processor(), source=log)
    assert operator.state == "SUBSCRIBED"
    operator.close()
    with pytest.raises(UsageError, match="is started once"):
        operator.start()

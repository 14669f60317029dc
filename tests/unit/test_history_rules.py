"""Durations and standstills of rebalances in a group's history."""

from __future__ import annotations

import json
from dataclasses import replace

from coordinator.planning.rebalance_history import history_of, in_order, replaced_of
from coordinator.planning.snapshot import AskView, Snapshot
from coordinator.zk.znodes.group_state import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    Ask,
    ClientSide,
    GroupState,
    Rebalance,
    Target,
)


def seen(now_ms: int, rebalance: Rebalance | None = None, generation: int = 1) -> Snapshot:
    target = {"a": Target("a1", {})}
    history = (rebalance.generation,) if rebalance else ()
    return Snapshot("g", 5, GroupState(COMPLETING, generation, 5, "range", target), 1, history=history,
                    rebalance=rebalance, now_ms=now_ms)  # fmt: skip


def state(name: str, generation: int) -> GroupState:
    return GroupState(name, generation, 5, "range", {"a": Target("a1", {})})


def begun(now_ms: int, stopping: bool, before: Rebalance | None = None, generation: int = 2) -> Rebalance:
    record = history_of(seen(now_ms, before, generation - 1), state(PREPARING, generation), True, stopping, "why")
    assert record is not None
    return record


def test_standstill_lasts_from_the_first_stop_sent_to_the_last_start_acknowledged() -> None:
    record = begun(1000, stopping=True)
    stopped = history_of(seen(1030, record, 2), state(COMPLETING, 2), False, False, "")
    assert stopped is not None
    finished = history_of(seen(1050, stopped, 2), state(STABLE, 2), False, False, "")

    assert record.standing_since_ms == 1000 and record.standstill_ms is None
    assert finished is not None
    assert (finished.to_last_stop_ms, finished.to_last_start_ms, finished.standstill_ms) == (30, 50, 50)
    assert history_of(seen(1060, finished, 2), state(STABLE, 2), False, False, "") is None


def test_standstill_is_zero_when_no_running_partition_had_to_stop() -> None:
    record = begun(1000, stopping=False)
    finished = history_of(seen(1050, record, 2), state(STABLE, 2), False, False, "")

    assert finished is not None
    assert (finished.to_last_stop_ms, finished.to_last_start_ms, finished.standstill_ms) == (0, 50, None)


def test_a_standstill_begins_with_the_first_stop_and_not_with_the_rebalance() -> None:
    record = begun(1000, stopping=False)
    later = history_of(seen(1020, record, 2), state(PREPARING, 2), False, True, "")
    assert later is not None
    finished = history_of(seen(1050, later, 2), state(STABLE, 2), False, False, "")

    assert finished is not None and finished.standstill_ms == 30


def test_standstill_of_rebalances_that_replace_each_other_begins_with_the_first() -> None:
    first = begun(1000, stopping=True)
    second = begun(1200, stopping=False, before=first, generation=3)
    third = begun(1300, stopping=True, before=second, generation=4)
    finished = history_of(seen(1350, third, 4), state(STABLE, 4), False, False, "")

    assert finished is not None and finished.standstill_ms == 350
    assert replaced_of(seen(1200, first, 2), 3) == Rebalance(
        2, 5, "why", 1000, joined=(), left=(), standing_since_ms=1000, replaced_by=3
    )


def test_finished_rebalance_is_replaced_by_none_and_passes_no_standstill_on() -> None:
    record = history_of(seen(1050, begun(1000, stopping=True), 2), state(STABLE, 2), False, False, "")
    assert record is not None

    after = begun(5000, stopping=False, before=record, generation=3)

    assert replaced_of(seen(5000, record, 2), 3) is None
    assert after.standing_since_ms is None


def test_last_sign_of_a_member_is_written_with_the_next_change_and_not_by_itself() -> None:
    record = begun(1000, stopping=False)
    died = replace(seen(1100, record, 2), silences={"a": 300})
    later = replace(seen(1200, record, 2), silences={"a": 400})

    assert history_of(died, state(COMPLETING, 2), False, False, "", ["a"]) is None
    finished = history_of(later, state(STABLE, 2), False, False, "", ["a"])
    assert finished is not None
    assert (finished.silent_since_ms, finished.standstill_ms) == (800, 400)


def test_group_that_becomes_empty_has_no_standstill() -> None:
    first = begun(1000, stopping=True)
    empty = history_of(seen(1100, first, 2), GroupState(EMPTY, 3, 5), True, False, "left a")

    assert empty is not None
    assert (empty.finished_ms, empty.standstill_ms) == (1100, None)


def test_records_of_an_older_release_are_read_with_their_replacement() -> None:
    old = {"version": 1, "epoch": 1, "trigger": "joined a", "started_ms": 10}
    data = [{**old, "generation": 13, "stopped_ms": 11, "finished_ms": 15}, {**old, "generation": 12}]
    records = [Rebalance.parse("where", json.dumps(values).encode()) for values in data]

    twelve, thirteen = in_order(records)

    assert (twelve.generation, twelve.replaced_by) == (12, 13)
    assert (thirteen.to_last_stop_ms, thirteen.to_last_start_ms, thirteen.standstill_ms) == (1, 5, None)
    assert thirteen.replaced_by is None


def test_zkcli_shows_the_durations() -> None:
    written = json.loads(Rebalance(2, 1, "why", 100, stopped_ms=120, finished_ms=150, standstill_ms=45).to_bytes())

    assert (written["to_last_stop_ms"], written["to_last_start_ms"], written["standstill_ms"]) == (20, 50, 45)


def asked(now_ms: int, adopted: str = "", attempt: int = 1) -> Snapshot:
    """A snapshot with an ask made at 1000."""
    client = ClientSide("consumer", adopted)
    ask = Ask("lag", "a", "a1", {}, attempt=attempt, since_ms=1000)
    return replace(seen(now_ms), state=replace(state(STABLE, 1), client=client), asks=(AskView("ask-0000000007", ask),))


def under_a_leader(generation: int, ask: str = "ask-0000000007") -> GroupState:
    return replace(state(COMPLETING, generation), client=ClientSide("consumer", ask))


def test_adoption_has_the_duration_of_the_assignment_and_the_number_of_asks() -> None:
    record = history_of(asked(1450, attempt=3), under_a_leader(2), True, False, "joined c2")

    assert record is not None
    assert (record.assignment_ms, record.attempts, record.trigger) == (450, 3, "joined c2")
    written = json.loads(record.to_bytes())
    assert (written["assignment_ms"], written["attempts"]) == (450, 3)
    assert Rebalance.parse("where", record.to_bytes()) == record


def test_generation_of_a_previously_adopted_answer_has_no_assignment_duration() -> None:
    record = history_of(asked(1450, "ask-0000000007"), under_a_leader(2), True, False, "owners changed")

    assert record is not None and (record.assignment_ms, record.attempts) == (None, None)


def test_clock_skew_gives_no_negative_assignment_duration() -> None:
    record = history_of(asked(900), under_a_leader(2), True, False, "")

    assert record is not None and record.assignment_ms == 0

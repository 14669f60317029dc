"""The conformance kit's rules for the lines of processes, for the multis of consumers, and for what ends a scenario."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.pages import ROOT
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.drills.conformance import event_lines
from zk_group.drills.conformance.bench import OPTIONAL, Scenario, each_runs_once
from zk_group.drills.conformance.cli import SCENARIOS, acted, multis_of_consumers
from zk_group.drills.conformance.event_lines import EventLines, NotConforming, Trial, Trials

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
T0 = {"topic": "t", "partition": 0}
ROOM = "/consumers/groups/g"


def line(name: str, **fields: Any) -> str:
    return json.dumps({"timestamp": 1, "name": name, **fields})


def consumed(first: int, count: int) -> str:
    batch = {**T0, "count": count, "minOffset": first, "maxOffset": first + count - 1}
    return line("records_consumed", count=count, partitions=[batch])


def committed(offset: int, success: bool = True) -> str:
    return line("offsets_committed", offsets=[{**T0, "offset": offset}], success=success)


BEGUN = [line("startup_complete"), line("partitions_assigned", partitions=[T0])]
LOST = line("partitions_lost", partitions=[T0])


def read(*lines: str) -> EventLines:
    events = EventLines("c1")
    for each in lines:
        events.take(each)
    return events


def test_lines_in_order_tell_what_a_consumer_holds_and_has_consumed() -> None:
    events = read(*BEGUN, consumed(5, 10), committed(15), consumed(15, 1), LOST, line("shutdown_complete"))

    assert events.held == set()
    assert events.ends == {ZERO: 16}
    assert (events.given_up(event_lines.LOST), events.given_up(event_lines.REVOKED)) == ({ZERO}, set())
    assert events.at_end({ZERO: 16}) == {ZERO}
    assert events.at_end({ZERO: 17}) == set()
    assert event_lines.ENDED in events.names


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "no event"),
        (["[]"], "no event"),
        (['{"name":"startup_complete"}'], "no event"),
        ([line("partitions_assigned", partitions=[])], "before startup_complete"),
        ([*BEGUN, line("shutdown_complete"), LOST], "after shutdown_complete"),
        ([*BEGUN, line("dance")], "unknown name"),
        ([*BEGUN, LOST, LOST], "which it does not have"),
        ([*BEGUN, LOST, consumed(0, 1)], "not assigned"),
        ([*BEGUN, consumed(0, 2), consumed(3, 1)], "its position is 2"),
        ([*BEGUN, consumed(0, 2), consumed(1, 2)], "its position is 2"),
        ([*BEGUN, consumed(0, 2), committed(3)], "its position is 2"),
        ([*BEGUN, committed(0)], "its position is None"),
        ([*BEGUN, consumed(0, 2), committed(2), committed(1)], "after 2"),
        ([*BEGUN, consumed(0, 2), LOST, committed(2)], "not assigned"),
    ],
)
def test_line_that_may_not_come_is_named(lines: list[str], message: str) -> None:
    with pytest.raises(NotConforming, match=message):
        read(*lines)


def test_commit_without_success_is_no_commit() -> None:
    events = read(*BEGUN, consumed(0, 2), committed(9, success=False))

    assert events.committed == {}
    assert "offsets_committed" not in events.names


@pytest.mark.parametrize(
    ("running", "settles"),
    [([ZERO, ONE], True), ([ONE, ZERO, TopicPartition("u", 0)], True), ([ZERO, TopicPartition("u", 0)], False),
     ([ZERO, ONE, ONE], False), ([], False)],
)  # fmt: skip
def test_group_is_settled_when_each_wanted_partition_runs_once(running: list[TopicPartition], settles: bool) -> None:
    assert each_runs_once(running, {ZERO, ONE}) == settles


AGAIN = [LOST, BEGUN[1]]


def trials(*lines: str) -> tuple[Trials, list[str]]:
    """One process that has printed these lines, and the list of them."""
    printed = [*BEGUN, *lines]
    found = Trials()
    process: Any = SimpleNamespace(name="c1", lines=lambda: list(printed))
    found["c1"] = Trial("c1", process)
    return found, printed


def test_records_of_a_removed_topic_do_not_count_for_the_next_one() -> None:
    seen, printed = trials(consumed(0, 10), *AGAIN)

    seen.forget()
    seen.written[ZERO] = 10
    assert seen.unconsumed() == ["t-0 from 0 to 9"]
    printed.append(consumed(0, 10))

    assert seen.unconsumed() == []
    seen.require_once()


def test_record_that_was_consumed_twice_is_named() -> None:
    seen, _ = trials(consumed(0, 10), *AGAIN, consumed(8, 4))

    seen.written[ZERO] = 12
    with pytest.raises(NotConforming, match="the records of t-0 from 8 to 9 were consumed twice"):
        seen.require_once()


def bench(act: Any, repeats: bool = False) -> Any:
    """One without processes, whose consumer has consumed two records twice."""
    found, _ = trials(consumed(0, 10), *AGAIN, consumed(8, 4))
    found.written[ZERO] = 12
    scenario = Scenario("any", "does anything", act, repeats=repeats)
    return SimpleNamespace(trials=found, scenario=scenario, start_all=lambda: None)


def raising(error: Exception) -> Any:
    return MagicMock(side_effect=error)


def test_unexpected_error_in_a_scenario_is_its_failure() -> None:
    assert acted(bench(raising(KeyError("a")))) == ["aborted: KeyError: 'a'"]


def test_error_of_the_machine_is_no_failure_of_a_scenario() -> None:
    with pytest.raises(OSError, match="the disk is full"):
        acted(bench(raising(OSError("the disk is full"))))


def test_records_are_consumed_once_except_in_a_scenario_that_may_repeat_them() -> None:
    assert acted(bench(lambda _: None)) == ["the records of t-0 from 8 to 9 were consumed twice"]
    assert acted(bench(lambda _: None, repeats=True)) == []


def multi(*ops: tuple[str, str], who: str = "stranger#1") -> dict[str, Any]:
    found = [{"op": op, "path": path, "data": "x"} for op, path in ops]
    return {"event": "commit", "who": who, "zxid": 1, "ops": found}


OWNER, CHANNEL = ("create", f"{ROOM}/owners/t/0"), ("set", f"{ROOM}/channel/c1")


@pytest.mark.parametrize(
    "event",
    [
        multi(CHANNEL, OWNER),
        multi(("check", f"{ROOM}/channel/c1"), ("delete", f"{ROOM}/channel/c1/command-0000000001")),
        multi(("create", "/consumers"), ("create", ROOM), ("create", f"{ROOM}/ids"), ("create", f"{ROOM}/owners/t")),
        multi(OWNER, who="node-1#7"),
    ],
)
def test_multi_under_a_channels_version_or_of_parents_is_in_order(event: dict[str, Any]) -> None:
    assert multis_of_consumers([event]) == []


def test_multi_of_a_node_without_a_history_is_none_of_a_consumer() -> None:
    listed = multi(("create", "/consumers/nodes/1"))

    assert multis_of_consumers([listed, multi(("create", "/consumers/coordinator"))]) == []


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (multi(OWNER), "neither sets nor checks a channel"),
        (multi(("delete", f"{ROOM}/channel/c1/command-0000000001")), "neither sets nor checks a channel"),
        (multi(("set", "/brokers/topics/t")), "neither sets nor checks a channel"),
        (multi(CHANNEL, *[OWNER] * 400), "401 operations"),
    ],
)
def test_multi_that_is_too_large_or_without_a_fence_is_named(event: dict[str, Any], message: str) -> None:
    (found,) = multis_of_consumers([event])

    assert message in found


def test_page_names_what_is_optional_what_may_repeat_and_how_many_scenarios() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text()

    assert [feature for feature in OPTIONAL if f"`{feature}`" not in page] == []
    assert f"{len(SCENARIOS)} scenarios" in page
    assert [name for name, each in SCENARIOS.items() if each.repeats and f"`{name}`" not in page] == []
    assert {each.needs for each in SCENARIOS.values()} == {"", *OPTIONAL}

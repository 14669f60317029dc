"""The conformance kit's rules for the lines of one process, and for the multis of consumers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.zk.znodes.partitions import TopicPartition
from drills.conformance.catalog import SCENARIOS
from drills.conformance.definition import OPTIONAL, NotConforming
from drills.conformance.event_lines import EventLines, read_lines
from drills.conformance.judge import multis_of_consumers
from tests.support.pages import ROOT

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
    return read_lines("c1", lines)


def test_lines_in_order_tell_what_a_consumer_holds_and_has_consumed() -> None:
    events = read(*BEGUN, consumed(5, 10), committed(15), consumed(15, 1), LOST, line("shutdown_complete"))

    assert events.held == set()
    assert events.ends == {TopicPartition("t", 0): 16}
    assert events.lost() == {TopicPartition("t", 0)}
    assert events.has_ended


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


def test_page_names_each_optional_feature_and_the_number_of_scenarios() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text()

    assert [feature for feature in OPTIONAL if f"`{feature}`" not in page] == []
    assert f"{len(SCENARIOS)} scenarios" in page
    assert {each.needs for each in SCENARIOS.values()} == {"", *OPTIONAL}

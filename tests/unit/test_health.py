"""Findings of `status --check` over constructed statuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.admin.groups import ShownCommand, ShownGroup, ShownMember
from coordinator.admin.health import GroupStatus, HealthFinding, Status, findings, summary
from coordinator.admin.regions import ShownCheckpoint, ShownRegion
from coordinator.admin.segments import SILENT, ShownQuery
from coordinator.zk.znodes.group_state import COMPLETING, FAILED, PREPARING, STABLE, GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import (
    START_FETCHER,
    Channel,
    Command,
    CoordinatorRecord,
    Pause,
    PausedRecord,
    Registration,
    Topic,
    TurnRequest,
)
from coordinator.zk.znodes.regions import CheckpointEnd, Region
from coordinator.zk.znodes.segments import SegmentsRecord

NOW_MS = 1_000_000
BOUND_MS = 60_000
LONG_AGO_MS, JUST_NOW_MS = NOW_MS - BOUND_MS, NOW_MS - BOUND_MS + 1
TOPIC = Topic("t", "t-1", (0, 1, 2, 3))
ALL = frozenset(TopicPartition("t", number) for number in TOPIC.partitions)
GROUP = ShownGroup(
    "g",
    GroupState(STABLE, 3, 7, "range", {"c1": Target("i1", {"c1-0": ALL})}, {"t": "t-1"}),
    (ShownMember("c1", None, None, ()),),
    (),
    state_ms=0,
)
HEALTHY = Status(
    CoordinatorRecord("a", "host", 7), 7, (GroupStatus(GROUP),), (TOPIC,), problems={}, coordinator_session=99
)


def of_group(shown: ShownGroup = GROUP, **changes: Any) -> Status:
    return replace(HEALTHY, groups=(GroupStatus(shown, **changes),))


def in_state(**changes: Any) -> ShownGroup:
    return replace(GROUP, state=replace(GROUP.state, **changes))


def found(status: Status) -> list[HealthFinding]:
    return findings(status, NOW_MS, BOUND_MS)


def the_one(status: Status) -> tuple[str, str | None]:
    """The check and the group of the only finding."""
    (finding,) = found(status)
    return finding.check, finding.group


def test_a_stable_group_under_an_elected_coordinator_is_healthy() -> None:
    assert found(HEALTHY) == []
    assert summary(HEALTHY) == "node a elected, epoch 7, 1 groups (1 with members), 1 topics"


def test_missing_coordinator_is_unhealthy() -> None:
    assert the_one(replace(HEALTHY, coordinator=None, coordinator_session=None)) == ("no-coordinator", None)


def test_persistent_coordinator_znode_is_unhealthy() -> None:
    assert the_one(replace(HEALTHY, coordinator_session=0)) == ("coordinator-persistent", None)


@pytest.mark.parametrize("epoch", [6, 8, None])
def test_coordinator_with_an_outdated_epoch_is_unhealthy(epoch: int | None) -> None:
    assert the_one(replace(HEALTHY, epoch=epoch)) == ("coordinator-epoch", None)


@pytest.mark.parametrize(
    ("segments", "size", "rows", "checks"),
    [
        (1, 1, 999_999, []),
        (1, 1, 1_000_000, ["query-silent"]),
        (5_000, 1, 1, ["query-silent"]),
        (1, 2**30, 1, ["query-silent"]),
    ],
)
def test_silent_query_that_is_far_behind_is_unhealthy(segments: int, size: int, rows: int, checks: list[str]) -> None:
    query = ShownQuery("g", "q", SILENT, "run", 7, segments, size, rows, NOW_MS - 200_000, None)

    unhealthy = found(of_group(silent=(query,)))

    assert [finding.check for finding in unhealthy] == checks
    assert all("query q is silent for 200 s" in str(finding) for finding in unhealthy)
    assert all(("at least" in str(finding)) == (segments == 5_000) for finding in unhealthy), "no more were counted"


def test_failed_rebalance_is_unhealthy_at_once_with_its_reason() -> None:
    (finding,) = found(of_group(in_state(state=FAILED, reason="no plan")))

    assert finding.check == "rebalance-failed"
    assert str(finding) == "group g: RebalanceFailed (no plan)"


@pytest.mark.parametrize("name", [PREPARING, COMPLETING])
@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Rebalance(3, 7, "", LONG_AGO_MS), ["rebalance-stuck"]),
        (Rebalance(3, 7, "", JUST_NOW_MS), []),
        (Rebalance(3, 7, "", JUST_NOW_MS, standing_since_ms=LONG_AGO_MS), ["rebalance-stuck"]),  # replaced ones count
        (
            Rebalance(3, 7, "", LONG_AGO_MS, finished_ms=LONG_AGO_MS),
            [],
        ),  # an old one: a failover sends its commands again
        (None, []),
    ],
)
def test_a_rebalance_is_unhealthy_when_it_takes_too_long(
    name: str, record: Rebalance | None, expected: list[str]
) -> None:
    group = replace(in_state(state=name), state_ms=JUST_NOW_MS)

    assert [finding.check for finding in found(of_group(group, rebalance=record))] == expected


def test_a_rebalance_without_a_record_counts_from_when_its_state_was_written() -> None:
    assert the_one(of_group(replace(in_state(state=PREPARING), state_ms=LONG_AGO_MS))) == ("rebalance-stuck", "g")


def test_left_out_partitions_are_unhealthy_with_one_line_per_reason() -> None:
    left_out = {f"t-{number}": "no room" for number in range(5)} | {"c9": "its registration cannot be read"}

    findings = [str(finding) for finding in found(of_group(in_state(left_out=left_out)))]

    assert findings == [
        "group g: c9 left out: its registration cannot be read",
        "group g: t-0, t-1, t-2 and 2 more left out: no room",
    ]


def test_unassigned_partitions_are_unhealthy() -> None:
    target = {"c1": Target("i1", {"c1-0": ALL - {TopicPartition("t", 2)}})}

    (finding,) = found(of_group(in_state(target=target)))

    assert str(finding) == "group g: t(2) unassigned"


def test_partitions_of_a_recreated_topic_or_an_empty_group_are_not_missing() -> None:
    assert found(of_group(in_state(target={}, topics={"t": "t-0"}))) == []
    assert found(of_group(in_state(target={}))) == []


def test_eviction_with_a_remaining_mark_is_unhealthy() -> None:
    mark = Mark("c2", "i2", frozenset([TopicPartition("t", 0)]), 6667, "evicted: it hangs")

    assert the_one(of_group(in_state(marks=(mark,)))) == ("eviction", "g")


@pytest.mark.parametrize(("sent_ms", "expected"), [(LONG_AGO_MS, ["unacknowledged"]), (JUST_NOW_MS, [])])
def test_command_is_unhealthy_when_unacknowledged_for_too_long(sent_ms: int, expected: list[str]) -> None:
    command = ShownCommand("c1", "command-0000000004", Command(START_FETCHER, 7, 3, "i1"), sent_ms)
    group = replace(GROUP, members=(ShownMember("c1", None, None, (command,)),))

    findings = found(of_group(group))

    assert [finding.check for finding in findings] == expected
    assert all("c1 has not acknowledged start-fetcher command-0000000004 for 60 s" in str(f) for f in findings)


@pytest.mark.parametrize(("since_ms", "expected"), [(LONG_AGO_MS, ["paused"]), (JUST_NOW_MS, [])])
def test_pause_by_an_operator_is_healthy_until_it_lasts_too_long(since_ms: int, expected: list[str]) -> None:
    pause = Pause("ann", since_ms, "a look")

    of_one = replace(HEALTHY, paused=PausedRecord(None, {"g": pause}))
    of_all = replace(HEALTHY, paused=PausedRecord(pause))

    assert [finding.check for finding in found(of_one)] == expected
    assert [finding.check for finding in found(of_all)] == expected
    assert all("by ann (a look)" in str(finding) for finding in found(of_one) + found(of_all))
    assert summary(of_one).endswith(", 1 paused")


def test_fetchers_that_back_pressure_has_paused_are_unhealthy_with_the_reason() -> None:
    (finding,) = found(of_group(segments=SegmentsRecord(paused="the backlog has 5 GiB")))

    assert str(finding) == "group g: its fetchers are paused: the backlog has 5 GiB"


@pytest.mark.parametrize(("since_ms", "expected"), [(LONG_AGO_MS, ["request"]), (JUST_NOW_MS, [])])
def test_requested_turn_that_does_not_start_is_unhealthy(since_ms: int, expected: list[str]) -> None:
    assert [f.check for f in found(of_group(request=TurnRequest("ann", since_ms)))] == expected


def test_unreadable_znode_is_unhealthy_with_its_path() -> None:
    status = replace(HEALTHY, problems={"/a": "/a holds no JSON", "/b": "its name is none"})

    assert [str(finding) for finding in found(status)] == ["/a holds no JSON", "/b: its name is none"]


# ---- consistent regions

RUNNING_REGION = Region(state="Running", sequence=7, groups=("g",), since_ms=0, interval_ms=1000)


def of_region(
    *ends: str, cut_ms: int | None = NOW_MS, cut_reset: int | None = None, members: int = 1, **changes: Any
) -> Status:
    """A status with one region, whose checkpoints have these outcomes, the oldest first."""
    checkpoints = [ShownCheckpoint(n, how, None, CheckpointEnd(reason=f"why {n}"), ()) for n, how in enumerate(ends, 1)]
    region = replace(RUNNING_REGION, **changes)
    shown = ShownRegion("r", region, {"g": members}, checkpoints, cut_ms, cut_reset)
    return replace(HEALTHY, regions=(shown,))


def test_failed_region_is_unhealthy_with_its_reason() -> None:
    (finding,) = found(of_region(state="Failed", reason="it has no offset"))

    assert (finding.check, finding.region) == ("region-failed", "r")
    assert str(finding) == "region r: Failed, its members have stopped (it has no offset)"


def test_three_checkpoints_aborted_in_a_row_are_unhealthy_with_count_and_reason() -> None:
    assert found(of_region("aborted", "completed", "aborted", "aborted", "open")) == []

    (finding,) = found(of_region("completed", "aborted", "aborted", "aborted", "aborted"))

    assert finding.check == "checkpoints-aborted"
    assert finding.message == "the last 4 checkpoints were aborted, last 5 (why 5)"


def test_unpaused_region_without_a_checkpoint_for_three_intervals_is_unhealthy() -> None:
    late = of_region("completed", cut_ms=NOW_MS - 3001)

    assert [each.check for each in found(late)] == ["checkpoint-late"]
    assert found(of_region("completed", cut_ms=NOW_MS - 3000)) == []
    assert found(of_region(cut_ms=None, since_ms=NOW_MS - 3000)) == [], "it has only just begun to run"
    assert [each.check for each in found(of_region(cut_ms=None))] == ["checkpoint-late"]
    assert found(of_region(cut_ms=None, interval_ms=0)) == [], "the interval is not known"
    paused = PausedRecord(groups={"g": Pause("ann", NOW_MS, None)})
    assert found(replace(late, paused=paused)) == []


def test_long_reset_is_unhealthy_if_a_member_waits_for_it() -> None:
    slow = of_region(state="Resetting", since_ms=LONG_AGO_MS)

    assert [each.check for each in found(slow)] == ["region-resetting"]
    assert found(of_region(state="Resetting", since_ms=JUST_NOW_MS)) == []
    assert found(of_region(state="Resetting", since_ms=LONG_AGO_MS, members=0)) == []


def test_region_without_members_takes_no_checkpoint_and_is_healthy() -> None:
    assert found(of_region("completed", cut_ms=NOW_MS - 3001, members=0)) == []


def test_region_that_is_reset_again_and_again_is_unhealthy_by_the_age_of_its_cut() -> None:
    restless = of_region(state="Resetting", since_ms=NOW_MS, cut_ms=NOW_MS - 3001, reset=9, cut_reset=6)

    (finding,) = found(restless)

    assert finding.check == "checkpoint-late"
    assert "reset 3 times since checkpoint 7 completed 3 s ago" in finding.message
    for changes in (
        {"cut_ms": NOW_MS - 3000},
        {"cut_reset": 7},  # as after a long stop
        {"cut_reset": None},
        {"cut_ms": None},
        {"members": 0},
        {"interval_ms": 0},
    ):
        values: dict[str, Any] = {"cut_ms": NOW_MS - 3001, "reset": 9, "cut_reset": 6, **changes}
        assert found(of_region(state="Resetting", since_ms=NOW_MS, **values)) == [], changes
    assert found(replace(restless, paused=PausedRecord(groups={"g": Pause("ann", NOW_MS, None)}))) == []


@pytest.mark.parametrize(
    ("registration", "channel", "why"),
    [
        ("", Channel(""), "the incarnation in its channel is empty"),
        ("", Channel("life"), "the incarnation in its ids is empty"),
        ("life", Channel("other"), "its channel is another incarnation's"),
        ("life", Channel("life", ended="left"), "its incarnation is over: left"),
    ],
    ids=["empty in both", "empty in ids", "of another incarnation", "ended while registered"],
)
def test_registration_that_does_not_fit_its_channel_is_unhealthy(registration: str, channel: Channel, why: str) -> None:
    member = ShownMember("odd", Registration(registration, {"t": 1}), channel, (), changed_ms=NOW_MS - 5_000)
    (finding,) = found(of_group(replace(GROUP, members=(member,))))

    assert (finding.check, finding.message) == ("not-live", f"odd has no part: it is registered, but {why}")
    young = replace(member, changed_ms=NOW_MS - 4_999)
    assert found(of_group(replace(GROUP, members=(young,)))) == []

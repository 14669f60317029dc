"""Findings of `status --check` over constructed statuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zk_group.coordinator.admin.groups import ShownCommand, ShownGroup, ShownMember
from zk_group.coordinator.admin.health import GroupStatus, Status, findings, summary
from zk_group.coordinator.admin.regions import ShownCheckpoint, ShownRegion
from zk_group.coordinator.admin.segments import SILENT, ShownQuery
from zk_group.coordinator.zk.znodes.group_state import (
    COMPLETING,
    FAILED,
    PREPARING,
    STABLE,
    GroupState,
    Mark,
    Rebalance,
    Target,
)
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import (
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
from zk_group.coordinator.zk.znodes.regions import CheckpointEnd, Region
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

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


def of_member(member: ShownMember) -> Status:
    return of_group(replace(GROUP, members=(member,)))


def preparing(state_ms: int, record: Rebalance | None = None, name: str = PREPARING) -> Status:
    return of_group(replace(in_state(state=name), state_ms=state_ms), rebalance=record)


def silent(segments: int, size: int, rows: int) -> Status:
    return of_group(silent=(ShownQuery("g", "q", SILENT, "run", 7, segments, size, rows, NOW_MS - 200_000, None),))


def unacknowledged(sent_ms: int) -> Status:
    command = ShownCommand("c1", "command-0000000004", Command(START_FETCHER, 7, 3, "i1"), sent_ms)
    return of_member(ShownMember("c1", None, None, (command,)))


def of_region(
    *ends: str, cut_ms: int | None = NOW_MS, cut_reset: int | None = None, members: int = 1, **changes: Any
) -> Status:
    """A status with one region, whose checkpoints have these outcomes, the oldest first."""
    checkpoints = [ShownCheckpoint(n, how, None, CheckpointEnd(reason=f"why {n}"), ()) for n, how in enumerate(ends, 1)]
    region = replace(RUNNING_REGION, **changes)
    shown = ShownRegion("r", region, {"g": members}, checkpoints, cut_ms, cut_reset)
    return replace(HEALTHY, regions=(shown,))


def restless(**changes: Any) -> Status:
    """Its region was reset three times since its last checkpoint, which is late."""
    given = {"state": "Resetting", "since_ms": NOW_MS, "cut_ms": NOW_MS - 3001, "reset": 9, "cut_reset": 6}
    return of_region(**given | changes)


def paused(since_ms: int, status: Status = HEALTHY) -> Status:
    return replace(status, paused=PausedRecord(None, {"g": Pause("ann", since_ms, "a look")}))


RUNNING_REGION = Region(state="Running", sequence=7, groups=("g",), since_ms=0, interval_ms=1000)
LATE = of_region("completed", cut_ms=NOW_MS - 3001)
LEFT_OUT = {f"t-{number}": "no room" for number in range(5)} | {"c9": "its registration cannot be read"}
STANDING = Rebalance(3, 7, "", JUST_NOW_MS, standing_since_ms=LONG_AGO_MS)
FINISHED = Rebalance(3, 7, "", LONG_AGO_MS, finished_ms=LONG_AGO_MS)
EVICTED = Mark("c2", "i2", frozenset([TopicPartition("t", 0)]), 6667, "evicted: it hangs")

OUTDATED = (
    "coordinator-epoch: node a holds the coordinator's znode with epoch 7, but the epoch's znode has {}: its writes "
    "are refused (`resign` triggers an election)"
)
BEHIND = (
    "query-silent: group g: query q is silent for 200 s and holds back {} segments (start it again, or release them: "
    "`queries remove g q --execute`)"
)
STUCK = "rebalance-stuck: group g: {} for 60 s, generation 3"
CHECKPOINT_LATE = "checkpoint-late: region r: no checkpoint since {} ago (checkpoint_interval_ms is 1000)"

CASES: dict[str, tuple[Status, *tuple[str, ...]]] = {
    "a stable group under an elected coordinator": (HEALTHY,),
    "missing coordinator": (
        replace(HEALTHY, coordinator=None, coordinator_session=None),
        "no-coordinator: no coordinator is elected: no group is rebalanced (run `zk-coordinator run`)",
    ),
    "persistent coordinator znode": (
        replace(HEALTHY, coordinator_session=0),
        "coordinator-persistent: /consumers/coordinator is persistent: no session holds it, and no node can be elected "
        "(`resign` removes it)",
    ),
    "coordinator with an older epoch": (replace(HEALTHY, epoch=6), OUTDATED.format("epoch 6")),
    "coordinator with a newer epoch": (replace(HEALTHY, epoch=8), OUTDATED.format("epoch 8")),
    "coordinator without an epoch": (replace(HEALTHY, epoch=None), OUTDATED.format("no epoch")),
    "silent query that is not far behind": (silent(1, 1, 999_999),),
    "silent query far behind by records": (silent(1, 1, 1_000_000), BEHIND.format("1,000,000 records in 1")),
    "silent query far behind by segments, no more of which were counted": (
        silent(5_000, 1, 1), BEHIND.format("at least 1 records in 5,000"),
    ),
    "silent query far behind by bytes": (silent(1, 2**30, 1), BEHIND.format("1 records in 1")),
    "failed rebalance, at once with its reason": (
        of_group(in_state(state=FAILED, reason="no plan")),
        "rebalance-failed: group g: RebalanceFailed (no plan)",
    ),
    **{
        f"{title}, {name}": (preparing(JUST_NOW_MS, record, name), *[one.format(name) for one in expected])
        for name in (PREPARING, COMPLETING)
        for title, record, *expected in (
            ("rebalance that takes too long", Rebalance(3, 7, "", LONG_AGO_MS), STUCK),
            ("young rebalance", Rebalance(3, 7, "", JUST_NOW_MS)),
            ("rebalance after replaced ones, which count", STANDING, STUCK),
            ("old rebalance whose commands a failover sends again", FINISHED),
            ("rebalance without a record", None),
        )
    },
    "rebalance without a record counts from when its state was written": (
        preparing(LONG_AGO_MS), STUCK.format(PREPARING),
    ),
    "left out partitions, one line per reason": (
        of_group(in_state(left_out=LEFT_OUT)),
        "left-out: group g: c9 left out: its registration cannot be read",
        "left-out: group g: t-0, t-1, t-2 and 2 more left out: no room",
    ),
    "unassigned partitions": (
        of_group(in_state(target={"c1": Target("i1", {"c1-0": ALL - {TopicPartition("t", 2)}})})),
        "not-assigned: group g: t(2) unassigned",
    ),
    "partitions of a recreated topic are not missing": (of_group(in_state(target={}, topics={"t": "t-0"})),),
    "partitions of an empty group are not missing": (of_group(in_state(target={})),),
    "eviction with a remaining mark": (
        of_group(in_state(marks=(EVICTED,))), "eviction: group g: t(0) of c2 wait for its lease: evicted: it hangs",
    ),
    "command unacknowledged for too long": (
        unacknowledged(LONG_AGO_MS),
        "unacknowledged: group g: c1 has not acknowledged start-fetcher command-0000000004 for 60 s",
    ),
    "command just sent": (unacknowledged(JUST_NOW_MS),),
    "pause that lasts too long": (paused(LONG_AGO_MS), "paused: group g: paused for 60 s by ann (a look)"),
    "young pause": (paused(JUST_NOW_MS),),
    "long pause of every group": (
        replace(HEALTHY, paused=PausedRecord(Pause("ann", LONG_AGO_MS, "a look"))),
        "paused: every group is paused for 60 s by ann (a look)",
    ),
    "young pause of every group": (replace(HEALTHY, paused=PausedRecord(Pause("ann", JUST_NOW_MS, "a look"))),),
    "fetchers paused by back pressure": (
        of_group(segments=SegmentsRecord(paused="the backlog has 5 GiB")),
        "fetching-paused: group g: its fetchers are paused: the backlog has 5 GiB",
    ),
    "requested turn that does not start": (
        of_group(request=TurnRequest("ann", LONG_AGO_MS)),
        "request: group g: no turn has succeeded for 60 s, though ann requested one",
    ),
    "young request": (of_group(request=TurnRequest("ann", JUST_NOW_MS)),),
    "unreadable znodes": (
        replace(HEALTHY, problems={"/a": "/a holds no JSON", "/b": "its name is none"}),
        "unreadable: /a holds no JSON", "unreadable: /b: its name is none",
    ),
    "failed region, with its reason": (
        of_region(state="Failed", reason="it has no offset"),
        "region-failed: region r: Failed, its members have stopped (it has no offset)",
    ),
    "two checkpoints aborted in a row": (of_region("aborted", "completed", "aborted", "aborted", "open"),),
    "four checkpoints aborted in a row, with count and reason": (
        of_region("completed", *["aborted"] * 4),
        "checkpoints-aborted: region r: the last 4 checkpoints were aborted, last 5 (why 5)",
    ),
    "three checkpoints aborted in a row": (
        of_region("completed", *["aborted"] * 3),
        "checkpoints-aborted: region r: the last 3 checkpoints were aborted, last 4 (why 4)",
    ),
    "region without a checkpoint for three intervals": (LATE, CHECKPOINT_LATE.format("checkpoint 7 completed 3 s")),
    "region just before that": (of_region("completed", cut_ms=NOW_MS - 3000),),
    "region that has only just begun to run": (of_region(cut_ms=None, since_ms=NOW_MS - 3000),),
    "region that has run for long without one": (
        of_region(cut_ms=None, since_ms=1), CHECKPOINT_LATE.format("it began to run 1000 s"),
    ),
    "region whose interval is not known": (of_region(cut_ms=None, interval_ms=0),),
    "paused region without a checkpoint": (paused(NOW_MS, LATE),),
    "region without members takes no checkpoint": (of_region("completed", cut_ms=NOW_MS - 3001, members=0),),
    "long reset": (
        of_region(state="Resetting", since_ms=LONG_AGO_MS),
        "region-resetting: region r: Resetting for 60 s: a member has not restored its state",
    ),
    "young reset": (of_region(state="Resetting", since_ms=JUST_NOW_MS),),
    "long reset for which no member waits": (of_region(state="Resetting", since_ms=LONG_AGO_MS, members=0),),
    "region that is reset again and again, by the age of its cut": (
        restless(),
        "checkpoint-late: region r: reset 3 times since checkpoint 7 completed 3 s ago: its members do not stay, or "
        "are reset",
    ),
    "one whose cut is younger": (restless(cut_ms=NOW_MS - 3000),),
    "two resets, as after a long stop": (restless(cut_reset=7),),
    "resets since a cut of unknown reset": (restless(cut_reset=None),),
    "resets without a cut": (restless(cut_ms=None),),
    "resets without members": (restless(members=0),),
    "resets while the interval is not known": (restless(interval_ms=0),),
    "paused region that is reset again and again": (paused(NOW_MS, restless()),),
}  # fmt: skip
"""Each status, and what `status --check` finds in it: the check, and its sentence."""


@pytest.mark.parametrize("title", CASES)
def test_status_has_the_findings(title: str) -> None:
    status, *expected = CASES[title]

    assert [f"{finding.check}: {finding}" for finding in findings(status, NOW_MS, BOUND_MS)] == expected


def test_status_is_summed_up_in_a_line() -> None:
    assert summary(HEALTHY) == "node a elected, epoch 7, 1 groups (1 with members), 1 topics"
    assert summary(paused(LONG_AGO_MS)).endswith(", 1 paused")


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
    (finding,) = findings(of_member(member), NOW_MS, BOUND_MS)

    assert (finding.check, finding.message) == ("not-live", f"odd has no part: it is registered, but {why}")
    assert findings(of_member(replace(member, changed_ms=NOW_MS - 4_999)), NOW_MS, BOUND_MS) == []

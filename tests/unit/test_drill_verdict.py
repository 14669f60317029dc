"""PASS, FAIL and INCONCLUSIVE; what is left of ended consumers, and who wrote what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.admin.groups import ShownCommand, ShownGroup, ShownMember, ShownPartition
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import STOP_FETCHER, Channel, Command
from drills.checker import check
from drills.evidence.files import merged_history, with_strangers
from drills.evidence.measurements import FAIL, INCONCLUSIVE, PASS, RecordCounts, counted, decided, together
from drills.testbed.commands import has_remnants
from tests.support.made_histories import BOUNDS

WHOLE = RecordCounts(produced=100, delivered=100, lost=0, duplicated=0, misplaced=0)
HELD: dict[str, Any] = {"S1": {"outcome": "held", "why": None, "is_due": False}}
KEPT = [{"name": "it acts", "rule": "2 s", "unit": "s", "bound": 2.0, "measured": 1.0, "held": True}]


def because(outcome: str, why: str, is_due: bool = False) -> dict[str, Any]:
    return {"outcome": outcome, "why": why, "is_due": is_due}


LATE = [{**KEPT[0], "measured": 3.5, "held": False}]
TOO_LATE = "it acts: 3.5 s, promised 2 (2 s)"
UNMEASURED = [{**KEPT[0], "measured": None, "held": None}]
IN_FLIGHT = RecordCounts(100, 0, 90, lost=10, duplicated=0, misplaced=0)

VERDICTS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "drill without violations passes": ({}, PASS, []),
    "a broken invariant fails it": (
        {"invariants": {"S1": because("broken", "two fetched t-0")}}, FAIL, ["S1: two fetched t-0"],
    ),
    "missed promise fails it with the excess": ({"promises": LATE}, FAIL, [TOO_LATE]),
    "failure observed by the drill fails it": ({"failures": ["node-1 has ended"]}, FAIL, ["node-1 has ended"]),
    "lost record fails it": ({"records": RecordCounts(100, 0, 100, 1, 0, 0)}, FAIL, ["1 records lost"]),
    "repeated record fails it": ({"records": RecordCounts(100, 0, 100, 0, 1, 0)}, FAIL, ["1 records duplicated"]),
    "misplaced record fails it": ({"records": RecordCounts(100, 0, 100, 0, 0, 1)}, FAIL, ["1 records misplaced"]),
    "no fault is never a pass": ({"missing": ["it did not fire"]}, INCONCLUSIVE, ["it did not fire"]),
    "no number is never a pass": ({"promises": UNMEASURED}, INCONCLUSIVE, ["it acts: not measured"]),
    "no DataFrame is never a pass": ({"records": RecordCounts(100)}, INCONCLUSIVE, ["the DataFrame is unreadable"]),
    "an undecided invariant is never a pass": (
        {"invariants": {"S7": because("not decided", "no lease", is_due=True)}},
        INCONCLUSIVE, ["S7 was not decided: no lease"],
    ),
    "invariant undecidable for this kind of history is no reason": (
        {"invariants": {"S7": because("not decided", "nothing was due")}}, PASS, [],
    ),
    "failure takes precedence over missing evidence": (
        {"promises": LATE, "missing": ["no recovery"]}, FAIL, [TOO_LATE, "no recovery"],
    ),
    "record in flight is not lost": (
        {"records": IN_FLIGHT, "missing": ["not all was sealed"]}, INCONCLUSIVE, ["not all was sealed"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", VERDICTS)
def test_verdict_of_a_drill(title: str) -> None:
    changes, verdict, why = VERDICTS[title]
    found = {"invariants": HELD, "promises": KEPT, "records": WHOLE, "missing": [], "failures": [], **changes}

    assert decided(*found.values()) == (verdict, why)


def row(partition: int, rows: int, distinct: int, most: int, misplaced: int = 0, topic_id: str = "i") -> dict[str, Any]:
    return {
        "topic": "t", "id": topic_id, "partition": partition, "rows": rows, "distinct": distinct, "most": most,
        "misplaced": misplaced,
    }  # fmt: skip


COUNTED: dict[str, tuple[dict[str, dict[str, int]], list[dict[str, Any]], int, tuple[int, ...]]] = {
    "records are compared with the produced ones": (
        {"i": {"0": 10, "1": 5}}, [row(0, 11, 9, 9), row(1, 5, 5, 4)], 0, (15, 16, 1, 2, 0),
    ),
    "records read by applications are not lost": ({"i": {"0": 10}}, [row(0, 6, 6, 9)], 4, (10, 6, 0, 0, 0)),
    "records read by applications are duplicates if repeated": (
        {"i": {"0": 10}}, [row(0, 8, 8, 9)], 4, (10, 8, 0, 2, 0),
    ),
    "repeated record of one partition does not offset a lost one of another": (
        {"i": {"0": 10, "1": 10}}, [row(0, 10, 10, 9), row(1, 6, 6, 9)], 4, (20, 16, 4, 4, 0),
    ),
    "records of a recreated topic are distinguished by topic id": (
        {"old": {"0": 10}, "new": {"0": 10}}, [row(0, 10, 10, 9, topic_id="old")], 0, (20, 10, 10, 0, 0),
    ),
    "unproduced records of a partition are misplaced": ({"i": {"0": 3}}, [row(0, 3, 3, 7)], 0, (3, 3, 0, 0, 3)),
    "unproduced records of a topic are misplaced": ({}, [row(0, 3, 3, 2)], 0, (0, 3, 0, 0, 3)),
}  # fmt: skip
"""What was produced by topic id, what was read, what applications read of t-0; and the counts as in `RecordCounts`."""


@pytest.mark.parametrize("title", COUNTED)
def test_count_of_records(title: str) -> None:
    produced, read, elsewhere, counts = COUNTED[title]

    found = counted({"t": produced} if produced else {}, read, elsewhere={("t", 0): elsewhere} if elsewhere else {})

    assert found == RecordCounts(counts[0], elsewhere, *counts[1:])


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ([PASS, PASS], PASS),
        ([PASS, INCONCLUSIVE], INCONCLUSIVE),
        ([INCONCLUSIVE, FAIL, PASS], FAIL),
        ([], INCONCLUSIVE),
    ],
)
def test_verdict_of_several_drills_is_the_worst_one(verdicts: list[str], worst: str) -> None:
    assert together(verdicts) == worst


# ---- leftovers of ended consumers


PART = TopicPartition("t", 0)
LIVE = Channel(incarnation="i2", running={PART: 5}, topics={"t": "id"})
OVER = replace(LIVE, running={}, ended="its session ended")
STOP = Command(STOP_FETCHER, 1, 3, "i2")


def group(channel: Channel, *commands: Command, owner: str | None = None) -> ShownGroup:
    sent = tuple(ShownCommand("c1", f"command-{number}", command) for number, command in enumerate(commands))
    owned = (ShownPartition(PART, "id", None, owner, 5),)
    return ShownGroup("g", GroupState(), (ShownMember("c1", None, channel, sent),), owned)


@pytest.mark.parametrize(
    ("shown", "has_any"),
    [
        pytest.param(group(LIVE, STOP, owner="c1"), False, id="live consumer has none"),
        pytest.param(group(OVER), False, id="consumer that left has none"),
        pytest.param(group(OVER, STOP), True, id="command for an ended consumer"),
        pytest.param(group(LIVE, STOP, replace(STOP, incarnation="i1")), True, id="command for an earlier incarnation"),
        pytest.param(group(replace(LIVE, ended="evicted")), True, id="running partition in an ended channel"),
        pytest.param(group(OVER, owner="c1"), True, id="owner of a partition although its channel has ended"),
        pytest.param(group(LIVE, owner="c2"), True, id="owner of a partition that it does not run"),
    ],
)
def test_leftovers_of_consumers(shown: ShownGroup, has_any: bool) -> None:
    assert has_remnants(shown) == has_any


# ---- authors of transactions


NODE, DRILL, NOBODYS = 1, 2, 255
STATE = {"op": "set", "path": "/consumers/groups/g/state", "data": GroupState().to_bytes().decode(), "version": 3}


def commit(session: int, who: str = "hand") -> dict[str, Any]:
    return {"at": 3.0, "who": who, "event": "commit", "session": session, "zxid": 9, "ops": [STATE]}


def test_history_begins_with_its_run_though_zookeeper_has_earlier_transactions(tmp_path: Path) -> None:
    zookeeper, drill = tmp_path / "zookeeper.jsonl", tmp_path / "drill.jsonl"
    zookeeper.write_text("".join(json.dumps({**commit(NODE), "at": at}) + "\n" for at in (1.0, 3.0, 9.0)))
    begun = {"at": 2.0, "who": "server", "event": "run", "version": 1, "seed": 1, "profile": "drill", "bounds": BOUNDS}
    frame = [begun, {"at": 8.0, "who": "server", "event": "end"}]
    drill.write_text("".join(json.dumps(event) + "\n" for event in frame))

    events, problems = merged_history([zookeeper, drill])

    assert [(event["at"], event["event"]) for event in events] == [(2.0, "run"), (3.0, "commit"), (8.0, "end")]
    assert problems == []


def test_writes_of_the_drill_are_manual_and_those_of_processes_have_their_name() -> None:
    events = [commit(NODE, "node-1#1"), commit(DRILL)]

    assert with_strangers(events, {NODE, DRILL}) == events


def test_unreported_session_is_a_stranger() -> None:
    closed = {"at": 4.0, "who": "hand", "event": "closed", "session": NOBODYS, "zxid": 10, "why": "closed", "paths": []}

    commits, closes = with_strangers([commit(NOBODYS), closed], {NODE, DRILL})

    assert commits["who"] == "stranger#ff"
    assert closes is closed


def test_unknown_session_writing_as_coordinator_breaks_s4_unlike_a_manual_edit() -> None:
    [stranger] = with_strangers([commit(NOBODYS)], {NODE, DRILL})

    assert [verdict.invariant for verdict in check([stranger]).broken] == ["S4"]
    assert not check([commit(DRILL)]).broken

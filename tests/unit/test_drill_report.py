"""The report of a drill in Markdown, and its verdict: PASS, FAIL or INCONCLUSIVE."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_drill import DRILLS, happened, history, run
from tests.support.made_histories import BOUNDS
from zk_group.coordinator.admin.groups import ShownCommand, ShownGroup, ShownMember, ShownPartition
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, Channel, Command
from zk_group.drills.evidence.files import merged_history, with_strangers
from zk_group.drills.evidence.measurements import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Measured,
    RecordCounts,
    counted,
    decided,
    together,
)
from zk_group.drills.reports.facts import MINUS, NUMBERS, amount, further_numbers, moment, numbers, seconds, sentences
from zk_group.drills.reports.page import code, markdown, plain
from zk_group.drills.testbed.commands import has_remnants

REPORTS = Path(__file__).with_name("drill_reports")


@pytest.mark.parametrize("drill", DRILLS)
def test_report_is_the_one_in_drill_reports(drill: str, request: pytest.FixtureRequest) -> None:
    """`--rewrite` writes what is found into the files: review the difference."""
    found, file = markdown(*DRILLS[drill]), REPORTS / f"{drill}.md"

    if request.config.getoption("--rewrite"):
        file.write_text(found)
    assert found == file.read_text()


def test_external_texts_add_no_markup_and_no_lines() -> None:
    nasty = "a | b\n# head <script>x</script> [l](u) `c` *d* \x1b[31m\u202e"
    lines = markdown(run(title=nasty, hypothesis=nasty, why=[nasty], drill=nasty), history()).splitlines()

    assert not any(line.startswith("# head") for line in lines)
    assert not any(re.search(r"(?<!\\)<script", line) for line in lines if not line.startswith("    "))
    assert not any(char in "".join(lines) for char in "\x1b\u202e")
    assert plain("a|b <i> `c`") == "a\\|b \\<i\\> \\`c\\`"
    assert code("a`b|c") == "`` a`b¦c ``"


STOOD = {"t-0": 0.05, "t-1": 2.16, "t-2": 0.05, "t-3": 2.1, "t-4": 0.05, "t-5": 0.05, "t-6": 0.0}


def test_every_number_of_a_measurement_has_a_name_and_no_row_is_a_field() -> None:
    measured = Measured({"T0": 1.0}, {("t", 0): 2.0}, 1, 1, 1, 0.0, 0)

    assert further_numbers({"numbers": measured.to_json()}) == []
    without = [label for label, _ in numbers({"numbers": measured.to_json()})]
    with_all = replace(measured, resumed_s=1.0, settled_s=2.0).to_json()
    named = dict(numbers({"numbers": with_all}))
    assert len(named) == len(without) + 2 == len(NUMBERS) + 2
    assert named["longest from a kill to Stable without the killed process"] == "2 s"
    assert not [label for label in named if "_" in label]


def counts(*numbers: int) -> dict[str, int]:
    return dict(zip(("produced", "delivered", "lost", "duplicated"), numbers, strict=True))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"records": counts(9, 11, 1, 3)}, "Of 9 records 1 were lost and 3 were duplicated."),
        ({"records": counts(9, 8, 0, 0)}, "Of 9 records 0 were lost and 0 were duplicated."),
        ({"records": counts(9, 9, 0, 0)}, "9 records delivered once."),
        ({"numbers": {"standstill": {"max_s": 0, "by_partition": {"t-0": 0}}}}, "No partition stood still."),
        ({"numbers": {"standstill": {"max_s": 2, "by_partition": {"t-0": 2}}}},
         "1 partition stood still for 2 s, from one fetcher to the next."),
        ({"numbers": {"standstill": {"max_s": 2.16, "by_partition": STOOD}}},
         "2 of 7 partitions stood still for 2.1 s to 2.16 s, 4 for 0.05 s and 1 not at all, "
         "from one fetcher to the next."),
        ({"numbers": {"standstill": {"max_s": 2}}}, "Partitions stood still for 2 s at most."),
        ({"promises": []}, "node-1 was killed; node-2 acted 4.1 s later."),
        ({"marks": {"T0": {"at": 10.0}}}, "node-1 was killed."),
    ],
)  # fmt: skip
def test_summary_is_derived_from_the_measurements(changes: dict[str, object], sentence: str) -> None:
    assert sentence in sentences(run(**changes), history())


WITH_T0 = run(marks={"T0": {"at": 10.0}})


@pytest.mark.parametrize(
    ("of", "faults", "sentence"),
    [
        (WITH_T0, "10 drill fault kind=pause process=c1#11 until=16.0", "c1 was paused for 6 s."),
        (
            run(),
            "10 drill fault kind=pause process=c1#11 until=16.0",
            "c1 was paused for 6 s; node-2 acted 4.1 s after it began (5.5 s promised).",
        ),
        (
            WITH_T0,
            "10.1 drill fault kind=sigkill process=c1#1; 10.2 drill fault kind=sigkill process=c2#1",
            "c1 and c2 were killed.",
        ),
        (WITH_T0, "10 drill fault kind=full-disk", "The fault was full-disk."),
        (
            run(),
            "10 server fault kind=cut-server server=2",
            "server 2 was cut off from its peers; node-2 acted 4.1 s later (5.5 s promised).",
        ),
    ],
    ids=["lasting", "lasting, with a promise", "several targets", "another kind", "a server"],
)
def test_fault_is_described_as_such(of: dict[str, Any], faults: str, sentence: str) -> None:
    events = [*happened(faults), *(each for each in history() if each["event"] != "fault")]

    assert sentences(of, events)[0] == sentence


def test_seconds_and_amounts_are_written_in_readable_units() -> None:
    assert [seconds(value) for value in (0, 0.0421, 4.1, 12.345, 1234.56, -2.0, None)] == [
        "0 s", "0.042 s", "4.1 s", "12.35 s", "1,234.6 s", f"{MINUS}2 s", "not measured",
    ]  # fmt: skip
    assert [amount(value) for value in (12000, 2.0, None, True)] == ["12,000", "2", "not counted", "not counted"]
    assert [moment(at, 10) for at in (10, 14.1, 9)] == ["0 s", "+4.1 s", f"{MINUS}1 s"]


# ---- verdicts


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

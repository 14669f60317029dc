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


def row(partition: int, rows: int, distinct: int, most: int, misplaced: int = 0, topic_id: str = "i") -> dict[str, Any]:
    return {
        "topic": "t", "id": topic_id, "partition": partition, "rows": rows, "distinct": distinct, "most": most,
        "misplaced": misplaced,
    }  # fmt: skip


def test_drill_without_violations_passes() -> None:
    assert decided(HELD, KEPT, WHOLE, []) == (PASS, [])


def test_a_broken_invariant_fails_it() -> None:
    broken = {"S1": {"outcome": "broken", "why": "two fetched t-0", "is_due": False}}

    assert decided(broken, KEPT, WHOLE, []) == (FAIL, ["S1: two fetched t-0"])


def test_missed_promise_fails_it_with_the_excess() -> None:
    late = [{**KEPT[0], "measured": 3.5, "held": False}]

    assert decided(HELD, late, WHOLE, []) == (FAIL, ["it acts: 3.5 s, promised 2 (2 s)"])


def test_failure_observed_by_the_drill_fails_it() -> None:
    assert decided(HELD, KEPT, WHOLE, [], ["node-1 has ended"]) == (FAIL, ["node-1 has ended"])


@pytest.mark.parametrize("what", ["lost", "duplicated", "misplaced"])
def test_lost_or_repeated_record_fails_it(what: str) -> None:
    counts = {"lost": 0, "duplicated": 0, "misplaced": 0} | {what: 1}

    assert decided(HELD, KEPT, RecordCounts(100, 0, 100, **counts), []) == (FAIL, [f"1 records {what}"])


@pytest.mark.parametrize(
    ("invariants", "promises", "records", "missing"),
    [
        (HELD, KEPT, WHOLE, ["the fault did not fire"]),
        (HELD, [{**KEPT[0], "measured": None, "held": None}], WHOLE, []),
        (HELD, KEPT, RecordCounts(100), []),
        ({"S7": {"outcome": "not decided", "why": "no lease", "is_due": True}}, KEPT, WHOLE, []),
    ],
    ids=["no fault", "no number", "no DataFrame", "undecided"],
)
def test_unknown_value_is_never_a_pass(invariants: Any, promises: Any, records: Any, missing: Any) -> None:
    verdict, why = decided(invariants, promises, records, missing)

    assert verdict == INCONCLUSIVE
    assert len(why) == 1


def test_invariant_undecidable_for_this_kind_of_history_is_no_reason() -> None:
    undecided = {"S7": {"outcome": "not decided", "why": "nothing was due", "is_due": False}}

    assert decided(undecided, KEPT, WHOLE, []) == (PASS, [])


def test_failure_takes_precedence_over_missing_evidence() -> None:
    late = [{**KEPT[0], "measured": 3.5, "held": False}]

    verdict, why = decided(HELD, late, WHOLE, ["no recovery"])

    assert verdict == FAIL
    assert why[-1] == "no recovery"


def test_records_are_compared_with_the_produced_ones() -> None:
    produced = {"t": {"i": {"0": 10, "1": 5}}}

    found = counted(produced, [row(0, 11, 9, 9), row(1, 5, 5, 4)])

    assert found == RecordCounts(produced=15, delivered=16, lost=1, duplicated=2, misplaced=0)


def test_records_read_by_applications_are_not_lost_and_are_duplicates_if_repeated() -> None:
    produced = {"t": {"i": {"0": 10}}}

    assert counted(produced, [row(0, 6, 6, 9)], elsewhere={("t", 0): 4}).lost == 0
    twice = counted(produced, [row(0, 8, 8, 9)], elsewhere={("t", 0): 4})
    assert (twice.lost, twice.duplicated) == (0, 2)


def test_repeated_record_of_one_partition_does_not_offset_a_lost_one_of_another() -> None:
    produced = {"t": {"i": {"0": 10, "1": 10}}}

    found = counted(produced, [row(0, 10, 10, 9), row(1, 6, 6, 9)], elsewhere={("t", 0): 4})

    assert (found.lost, found.duplicated) == (4, 4)


def test_record_in_flight_is_not_lost() -> None:
    late = RecordCounts(100, 0, 90, lost=10, duplicated=0, misplaced=0)

    assert decided(HELD, KEPT, late, ["not every record was sealed in time"])[0] == INCONCLUSIVE


def test_records_of_a_recreated_topic_are_distinguished_by_topic_id() -> None:
    produced = {"t": {"old": {"0": 10}, "new": {"0": 10}}}

    found = counted(produced, [row(0, 10, 10, 9, topic_id="old")])

    assert (found.lost, found.duplicated) == (10, 0)


def test_unproduced_records_are_misplaced() -> None:
    assert counted({"t": {"i": {"0": 3}}}, [row(0, 3, 3, 7)]).misplaced == 3
    assert counted({}, [row(0, 3, 3, 2)]).misplaced == 3


def test_verdict_of_several_drills_is_the_worst_one() -> None:
    assert together([PASS, PASS]) == PASS
    assert together([PASS, INCONCLUSIVE]) == INCONCLUSIVE
    assert together([INCONCLUSIVE, FAIL, PASS]) == FAIL
    assert together([]) == INCONCLUSIVE


# ---- leftovers of ended consumers


PART = TopicPartition("t", 0)
LIVE = Channel(incarnation="i2", running={PART: 5}, topics={"t": "id"})
OVER = replace(LIVE, running={}, ended="its session ended")
STOP = Command(STOP_FETCHER, 1, 3, "i2")


def group(channel: Channel, *commands: Command, owner: str | None = None) -> ShownGroup:
    sent = tuple(ShownCommand("c1", f"command-{number}", command) for number, command in enumerate(commands))
    owned = (ShownPartition(PART, "id", None, owner, 5),)
    return ShownGroup("g", GroupState(), (ShownMember("c1", None, channel, sent),), owned)


def test_live_consumer_has_no_leftovers() -> None:
    assert not has_remnants(group(LIVE, STOP, owner="c1"))


def test_consumer_that_left_has_no_leftovers() -> None:
    assert not has_remnants(group(OVER))


def test_command_for_an_ended_consumer_is_a_leftover() -> None:
    assert has_remnants(group(OVER, STOP))


def test_command_for_an_earlier_incarnation_is_a_leftover() -> None:
    assert has_remnants(group(LIVE, STOP, replace(STOP, incarnation="i1")))


def test_running_partition_in_an_ended_channel_is_a_leftover() -> None:
    assert has_remnants(group(replace(LIVE, ended="evicted")))


def test_owner_of_a_partition_that_it_does_not_run_is_a_leftover() -> None:
    assert has_remnants(group(OVER, owner="c1"))
    assert has_remnants(group(LIVE, owner="c2"))


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

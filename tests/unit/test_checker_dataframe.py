"""S5, second half: the DataFrame of a query holds exactly the sealed records."""

from __future__ import annotations

import json

import pytest

from drills.checker.invariants.s5_dataframe import rows_of
from tests.support.made_histories import Made
from tests.support.made_story import G
from tests.support.spoilt import breaks, changed, holds, names, only


def batch(events: list[Made], number: int) -> Made:
    """One of the story's batches: 0 and 1 of the first run, 1 again of the second, and 2."""
    return [event for event in events if event["event"] == "batch"][number]


@breaks(
    "S5", "delivered nothing of flights-2 (id T1), and sealed was 0 to 80", witness="s1#1 commit channel/s1, q#1 batch",
)  # fmt: skip
def test_a_batch_that_leaves_out_records_breaks_it(events: list[Made]) -> None:
    batch(events, 0)["rows"].pop()


@breaks(
    "S5", "delivered 0 to 100, 0 to 100 of flights-0 (id T1), and sealed was 0 to 100",
    witness="s0#1 commit channel/s0, q#1 batch",
)  # fmt: skip
def test_a_batch_that_delivers_records_twice_breaks_it(events: list[Made]) -> None:
    rows = batch(events, 0)["rows"]
    rows.append(rows[0])


@breaks("S5", "delivered 1 to 100 of flights-0 (id T1), and sealed was 0 to 100")
def test_a_batch_that_delivers_other_records_breaks_it(events: list[Made]) -> None:
    batch(events, 0)["rows"][0]["first"] = 1


@holds()
def test_batch_may_be_read_in_several_parts(events: list[Made]) -> None:
    rows = batch(events, 0)["rows"]
    whole = rows.pop(0)
    rows[:0] = [{**whole, "next": 40}, {**whole, "first": 40}]


def test_rows_are_the_same_wherever_ranges_that_overlap_were_cut() -> None:
    """As after a reset: two segments have the first offsets, cut in different places."""
    place = ("t", "id", 0)

    assert rows_of([(*place, 0, 27), (*place, 0, 72), (*place, 27, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 72), (*place, 0, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 45), (*place, 45, 72)]) == {place: [(0, 72)]}


def declares_gaps(events: list[Made], pieces: list[tuple[int, int]]) -> None:
    """The first segment has three offsets of flights-0 without a record, and is delivered in these pieces."""
    made = next(op for e in events if e["event"] == "commit" for op in e["ops"] if "/segment-" in op["path"])
    made["data"] = json.dumps({**json.loads(made["data"]), "missing": {"flights": {"0": 3}}})
    rows = batch(events, 0)["rows"]
    whole = rows.pop(0)
    assert (whole["partition"], whole["first"], whole["next"]) == (0, 0, 100)
    rows[:0] = [{**whole, "first": first, "next": following} for first, following in pieces]


@pytest.mark.parametrize("pieces", [[(0, 10), (13, 100)], [(0, 97)], [(1, 50), (52, 100)]])
@holds()
def test_batch_skips_the_gaps_declared_by_its_segment(events: list[Made], pieces: list[tuple[int, int]]) -> None:
    declares_gaps(events, pieces)


@pytest.mark.parametrize(
    "pieces", [[(0, 10), (14, 100)], [(0, 10), (12, 100)], [(0, 100)], [(0, 60), (20, 57)], [(0, 90), (95, 102)]]
)
@breaks("S5", "sealed was 0 to 100, 3 of them without a record", witness="s0#1 commit channel/s0, q#1 batch")
def test_batch_that_skips_other_offsets_or_repeats_records_breaks_it(
    events: list[Made], pieces: list[tuple[int, int]]
) -> None:
    declares_gaps(events, pieces)


@breaks(
    "S5", "batch 0 of query q of group g", "leaves out segment-0000000001", witness="s1#1 commit channel/s1, q#1 batch",
)  # fmt: skip
def test_a_batch_without_one_of_its_segments_breaks_it(events: list[Made]) -> None:
    batch(events, 0)["segments"].pop()


def without_last(batch: Made) -> None:
    """A batch of a run with `failOnDataLoss=false` leaves out its last segment, which has one range."""
    batch.update(fail_on_data_loss=False)
    batch["segments"].pop()
    batch["rows"].pop()


@breaks("S5", "leaves out segment-0000000001", witness="s1#1 commit channel/s1, q#1 batch")
def test_run_that_bears_data_loss_leaves_out_no_segment_that_exists(events: list[Made]) -> None:
    without_last(batch(events, 0))


@holds()
def test_run_that_bears_data_loss_may_leave_out_a_segment_with_a_damaged_file(events: list[Made]) -> None:
    made = [op for e in events if e["event"] == "commit" for op in e["ops"] if op["path"].endswith("-0000000001")]
    first = batch(events, 0)
    fault = {"at": first["at"], "who": "server", "event": "fault", "kind": "file-replaced"}
    events.insert(events.index(first), {**fault, "file": json.loads(made[0]["data"])["file"]})
    without_last(first)


@pytest.mark.parametrize(("number", "why"), [(2, "which is not in it"), (0, "twice")])
def test_batch_with_a_foreign_or_repeated_segment_breaks_it(number: int, why: str) -> None:
    name = f"segment-000000000{number}"
    finding = only(changed(lambda events: batch(events, 0)["segments"].append(name)), "S5")

    assert f"has {name} {why}" in finding.why and names(finding) == ["q#1 batch"]


@breaks("S5", "batch 2 of query q of group g begins after", "batch 1 ended at", witness="q#1 batch, q#1 batch")
def test_a_batch_that_does_not_begin_where_the_one_before_ended_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    name = last["segments"].pop(0)
    made = [e for e in events if e["event"] == "commit" and e["ops"][-1]["path"].endswith(name)]
    last["after"] = made[0]["zxid"]
    segment = json.loads(made[0]["ops"][-1]["data"])
    del last["rows"][: sum(len(parts) for parts in segment["ranges"].values())]


def test_replay_with_other_records_breaks_it() -> None:
    finding = only(changed(lambda events: batch(events, 2)["rows"].pop()), "S5")

    assert "batch 1 of query q" in finding.why
    assert finding.witness[-1]["run"] == "r2"


@breaks("S5", "segment-0000000003 is missing", witness="q#1 query-failed")
def test_a_query_that_fails_because_a_segment_has_lost_its_file_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    why = "query q of group g has lost records: the file of segment-0000000003 is missing: /segments/g/s0/x.arrow"
    failed = {"at": last["at"], "who": last["who"], "event": "query-failed", "group": G, "query": "q", "why": why}
    events.insert(events.index(last) + 1, failed)


@holds()
def test_query_may_fail_if_its_segments_were_collected_while_it_was_silent(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    why = "segments are gone: collected while query q was silent; the file of segment-0000000003 is missing"
    failed = {"at": last["at"], "who": last["who"], "event": "query-failed", "group": G, "query": "q", "why": why}
    events.insert(events.index(last) + 1, failed)

"""S5, second half: the DataFrame of a query holds exactly the sealed records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.zk.store import Delete
from drills.checker.invariants.s5_dataframe import rows_of
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, changed, holds, only, spoilt


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


@holds(at="joined", more={})
@breaks("S5", "leaves out segment-0000000005", at="joined", more={"segments": [], "rows": []})
def test_run_that_bears_data_loss_delivers_what_is_left_beside_removed_segments(
    history: StoryHistory, more: dict[str, Any]
) -> None:
    first, *_ = sorted(path for path in history.tree if path.startswith(G.segment_prefix))
    history.hand(Delete(first))
    history.batch("q#1", "g", "q", "r2", 2, history.finished_by("q"), fail_on_data_loss=False, **more)


def test_new_query_has_the_segments_that_existed_when_it_registered() -> None:
    """`collected`, which it begins after, may be lower by a hand: what was gone before is no loss of its own."""

    def registers(history: StoryHistory, is_late: bool) -> None:
        history.event("start", "n#1", kind="query", group="g", query="n")
        history.session("n#1")
        if not is_late:
            history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
        history.collect("g", history.finished_by("q"))
        if is_late:
            history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
        history.batch("n#1", "g", "n", "n1", 0, 0)

    early = spoilt("finished", lambda history: registers(history, is_late=False))["S5"]
    late = spoilt("finished", lambda history: registers(history, is_late=True))["S5"]
    assert any("leaves out" in each.why for each in early.findings)
    assert not any("leaves out" in each.why for each in late.findings)


@breaks("S5", "has segment-0000000002 which is not in it", witness="q#1 batch", segment="segment-0000000002")
@breaks("S5", "has segment-0000000000 twice", witness="q#1 batch", segment="segment-0000000000")
def test_batch_with_a_foreign_or_repeated_segment_breaks_it(events: list[Made], segment: str) -> None:
    batch(events, 0)["segments"].append(segment)


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


@holds(at="joined", goes_on=True)
def test_run_from_an_old_checkpoint_replaces_later_batches(history: StoryHistory) -> None:
    history.batch("q#1", "g", "q", "r2", 2, history.finished_by("q"))
    history.query("q#1", "g", "q", "r3", history.finished_by("q"))
    history.batch("q#1", "g", "q", "r3", 2, history.finished_by("q"))


@holds(at="joined")
def test_query_with_a_new_run_may_begin_anywhere(history: StoryHistory) -> None:
    history.query("q#2", "g", "q", "r3", history.zxid)
    after = history.zxid
    history.seal("s0", 10, 0)
    history.batch("q#2", "g", "q", "r3", 0, after)


@holds(at="joined")
def test_batches_over_manually_removed_segments_are_not_judged(history: StoryHistory) -> None:
    history.hand(Delete(max(path for path in history.tree if path.startswith(G.segment_prefix))))
    history.batch("q#1", "g", "q", "r2", 2, history.finished_by("q"))


@breaks("S5", "segment-0000000003 is missing", witness="q#1 query-failed")
def test_a_query_that_fails_because_a_segment_has_lost_its_file_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    why = "query q of group g has lost records: the file of segment-0000000003 is missing: /segments/g/s0/x.arrow"
    failed = {"at": last["at"], "who": last["who"], "event": "query-failed", "group": G, "query": "q", "why": why}
    events.insert(events.index(last) + 1, failed)


@breaks("S5", at="joined", witness="q#1 batch, q#1 query-failed", is_removed=False)
@holds(at="joined", is_removed=True)
def test_a_query_fails_because_of_segments_that_are_gone_only_if_one_is(
    history: StoryHistory, is_removed: bool
) -> None:
    first, last = sorted(path for path in history.tree if path.startswith(G.segment_prefix))
    if is_removed:
        history.hand(Delete(first))
    lost = f"query q of group g has lost records: {last}, the last segment of the batch, is gone"
    history.event("query-failed", "q#1", group="g", query="q", batch=2, why=lost)


@holds()
def test_query_may_fail_if_its_segments_were_collected_while_it_was_silent(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    why = "segments are gone: collected while query q was silent; the file of segment-0000000003 is missing"
    failed = {"at": last["at"], "who": last["who"], "event": "query-failed", "group": G, "query": "q", "why": why}
    events.insert(events.index(last) + 1, failed)


@breaks(
    "S5", "a run of query q of group g wrote its znode", at="joined",
    witness="q#1 commit queries/q, q#1 commit queries/q",
)  # fmt: skip
def test_a_run_that_was_replaced_writes_the_query_no_more(history: StoryHistory) -> None:
    history.finished("q#1", "g", "q", "r3", history.finished_by("q"))
    history.finished("q#1", "g", "q", "r2", history.finished_by("q"))


COLLECTED = "segments are gone: collected while query n was silent"


@breaks(
    "S5", "query n of group g failed, though its registration after 0 held back what it lacks", at="joined",
    expires=False,
)  # fmt: skip
@holds(at="joined", expires=True)
def test_what_a_registration_holds_back_is_not_collected(history: StoryHistory, expires: bool) -> None:
    """A query's only run registers, and fails because of segments that were collected."""
    history.session("n#1")
    history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
    if expires:
        history.close("n#1")
    history.event("query-failed", "n#1", group="g", query="n", why=COLLECTED)


@holds(at="joined", who="n#1")
@breaks("S5", at="joined", witness="n#2 commit g/queries, n#2 query-failed", who="n#2")
def test_registration_of_a_run_that_was_replaced_holds_nothing_back(history: StoryHistory, who: str) -> None:
    """What its successor finishes is collected; it may hear of that before it hears of its successor."""
    history.session("n#1")
    history.session("n#2")
    history.query("n#1", "g", "n", "n1", history.finished_by("q"))
    history.query("n#2", "g", "n", "n2", history.finished_by("q"))
    history.event("query-failed", who, group="g", query="n", why=COLLECTED)

"""S5, second half: the DataFrame of a query holds exactly the sealed records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.zk.store import Delete
from drills.checker import Verdicts
from drills.checker.invariants.s5_dataframe import rows_of
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, changed, held, holds, names, only, spoilt


def with_batch(number: int, change: Any) -> Verdicts:
    """The story with one of its batches changed: 0 and 1 of the first run, 1 again of the second, and 2."""

    def spoil(events: list[Made]) -> None:
        change([event for event in events if event["event"] == "batch"][number])

    return changed(spoil)


def test_a_batch_that_leaves_out_records_breaks_it() -> None:
    finding = only(with_batch(0, lambda batch: batch["rows"].pop()), "S5")

    assert names(finding) == ["s1#1 commit channel/s1", "q#1 batch"]
    assert "delivered nothing of flights-2 (id T1), and sealed was 0 to 80" in finding.why


def test_a_batch_that_delivers_records_twice_breaks_it() -> None:
    finding = only(with_batch(0, lambda batch: batch["rows"].append(batch["rows"][0])), "S5")

    assert names(finding) == ["s0#1 commit channel/s0", "q#1 batch"]
    assert "delivered 0 to 100, 0 to 100 of flights-0 (id T1), and sealed was 0 to 100" in finding.why


def test_a_batch_that_delivers_other_records_breaks_it() -> None:
    finding = only(with_batch(0, lambda batch: batch["rows"][0].update(first=1)), "S5")

    assert "delivered 1 to 100 of flights-0 (id T1), and sealed was 0 to 100" in finding.why


def test_batch_may_be_read_in_several_parts() -> None:
    def halve(batch: Made) -> None:
        whole = batch["rows"].pop(0)
        batch["rows"][:0] = [{**whole, "next": 40}, {**whole, "first": 40}]

    held(with_batch(0, halve))


def test_rows_are_the_same_wherever_ranges_that_overlap_were_cut() -> None:
    """As after a reset: two segments have the first offsets, cut in different places."""
    place = ("t", "id", 0)

    assert rows_of([(*place, 0, 27), (*place, 0, 72), (*place, 27, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 72), (*place, 0, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 45), (*place, 45, 72)]) == {place: [(0, 72)]}


def with_gaps(missing: int, *pieces: tuple[int, int]) -> Verdicts:
    """The story whose first segment has `missing` offsets of flights-0 without a record, delivered in these pieces."""

    def spoil(events: list[Made]) -> None:
        made = next(op for e in events if e["event"] == "commit" for op in e["ops"] if "/segment-" in op["path"])
        made["data"] = json.dumps({**json.loads(made["data"]), "missing": {"flights": {"0": missing}}})
        batch = next(event for event in events if event["event"] == "batch")
        whole = batch["rows"].pop(0)
        assert (whole["partition"], whole["first"], whole["next"]) == (0, 0, 100)
        batch["rows"][:0] = [{**whole, "first": first, "next": following} for first, following in pieces]

    return changed(spoil)


@pytest.mark.parametrize("pieces", [[(0, 10), (13, 100)], [(0, 97)], [(1, 50), (52, 100)]])
def test_batch_skips_the_gaps_declared_by_its_segment(
    pieces: list[tuple[int, int]],
) -> None:
    held(with_gaps(3, *pieces))


@pytest.mark.parametrize(
    "pieces", [[(0, 10), (14, 100)], [(0, 10), (12, 100)], [(0, 100)], [(0, 60), (20, 57)], [(0, 90), (95, 102)]]
)
def test_batch_that_skips_other_offsets_or_repeats_records_breaks_it(pieces: list[tuple[int, int]]) -> None:
    finding = only(with_gaps(3, *pieces), "S5")

    assert names(finding) == ["s0#1 commit channel/s0", "q#1 batch"]
    assert "sealed was 0 to 100, 3 of them without a record" in finding.why


def test_a_batch_without_one_of_its_segments_breaks_it() -> None:
    finding = only(with_batch(0, lambda batch: batch["segments"].pop()), "S5")

    assert names(finding) == ["s1#1 commit channel/s1", "q#1 batch"]
    assert "batch 0 of query q of group g" in finding.why and "leaves out segment-0000000001" in finding.why


def without_last(batch: Made) -> None:
    """A batch of a run with `failOnDataLoss=false` leaves out its last segment, which has one range."""
    batch.update(fail_on_data_loss=False)
    batch["segments"].pop()
    batch["rows"].pop()


def test_run_that_bears_data_loss_leaves_out_no_segment_that_exists() -> None:
    finding = only(with_batch(0, without_last), "S5")

    assert names(finding) == ["s1#1 commit channel/s1", "q#1 batch"]
    assert "leaves out segment-0000000001" in finding.why


@holds()
def test_run_that_bears_data_loss_may_leave_out_a_segment_with_a_damaged_file(events: list[Made]) -> None:
    made = [op for e in events if e["event"] == "commit" for op in e["ops"] if op["path"].endswith("-0000000001")]
    batch = next(event for event in events if event["event"] == "batch")
    fault = {"at": batch["at"], "who": "server", "event": "fault", "kind": "file-replaced"}
    events.insert(events.index(batch), {**fault, "file": json.loads(made[0]["data"])["file"]})
    without_last(batch)


def test_run_that_bears_data_loss_delivers_what_is_left_beside_removed_segments() -> None:
    def happen(history: StoryHistory, **more: object) -> None:
        first, *_ = sorted(path for path in history.tree if path.startswith(G.segment_prefix))
        history.hand(Delete(first))
        history.batch("q#1", "g", "q", "r2", 2, history.finished_by("q"), fail_on_data_loss=False, **more)

    held(spoilt("joined", happen))
    finding = only(spoilt("joined", lambda history: happen(history, segments=[], rows=[])), "S5")

    assert "leaves out segment-0000000005" in finding.why


def test_new_query_has_the_segments_that_existed_when_it_registered() -> None:
    """`collected`, which it begins after, may be lower by a hand: what was gone before is no loss of its own."""

    def is_lost(registers_late: bool) -> bool:
        def happen(history: StoryHistory) -> None:
            history.event("start", "n#1", kind="query", group="g", query="n")
            history.session("n#1")
            if not registers_late:
                history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
            history.collect("g", history.finished_by("q"))
            if registers_late:
                history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
            history.batch("n#1", "g", "n", "n1", 0, 0)

        return any("leaves out" in each.why for each in spoilt("finished", happen)["S5"].findings)

    assert is_lost(registers_late=False) and not is_lost(registers_late=True)


def test_batch_with_a_foreign_or_repeated_segment_breaks_it() -> None:
    alien = only(with_batch(0, lambda batch: batch["segments"].append("segment-0000000002")), "S5")
    twice = only(with_batch(0, lambda batch: batch["segments"].append("segment-0000000000")), "S5")

    assert "has segment-0000000002 which is not in it" in alien.why
    assert "has segment-0000000000 twice" in twice.why
    assert names(alien) == names(twice) == ["q#1 batch"]


@breaks("S5", "batch 2 of query q of group g begins after", "batch 1 ended at", witness="q#1 batch, q#1 batch")
def test_a_batch_that_does_not_begin_where_the_one_before_ended_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    name = last["segments"].pop(0)
    made = [e for e in events if e["event"] == "commit" and e["ops"][-1]["path"].endswith(name)]
    last["after"] = made[0]["zxid"]
    segment = json.loads(made[0]["ops"][-1]["data"])
    del last["rows"][: sum(len(parts) for parts in segment["ranges"].values())]


def test_replay_with_other_records_breaks_it() -> None:
    finding = only(with_batch(2, lambda batch: batch["rows"].pop()), "S5")

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


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_query_fails_because_of_segments_that_are_gone_only_if_one_is(is_removed: bool) -> None:
    def happen(history: StoryHistory) -> None:
        first, last = sorted(path for path in history.tree if path.startswith(G.segment_prefix))
        if is_removed:
            history.hand(Delete(first))
        lost = f"query q of group g has lost records: {last}, the last segment of the batch, is gone"
        history.event("query-failed", "q#1", group="g", query="q", batch=2, why=lost)

    verdicts = spoilt("joined", happen)

    if is_removed:
        held(verdicts)
    else:
        assert names(only(verdicts, "S5")) == ["q#1 batch", "q#1 query-failed"]


@holds()
def test_query_may_fail_if_its_segments_were_collected_while_it_was_silent(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    why = "segments are gone: collected while query q was silent; the file of segment-0000000003 is missing"
    failed = {"at": last["at"], "who": last["who"], "event": "query-failed", "group": G, "query": "q", "why": why}
    events.insert(events.index(last) + 1, failed)


@breaks(
    "S5",
    "a run of query q of group g wrote its znode",
    at="joined",
    witness="q#1 commit queries/q, q#1 commit queries/q",
)
def test_a_run_that_was_replaced_writes_the_query_no_more(history: StoryHistory) -> None:
    history.finished("q#1", "g", "q", "r3", history.finished_by("q"))
    history.finished("q#1", "g", "q", "r2", history.finished_by("q"))


def collected(expires: bool) -> Verdicts:
    """A query's only run registers, and fails because of segments that were collected."""

    def happen(history: StoryHistory) -> None:
        history.session("n#1")
        history.query("n#1", "g", "n", "n1", 0, ephemeral=True)
        if expires:
            history.close("n#1")
        why = "segments are gone: collected while query n was silent"
        history.event("query-failed", "n#1", group="g", query="n", why=why)

    return spoilt("joined", happen)


def test_what_a_registration_holds_back_is_not_collected() -> None:
    finding = only(collected(expires=False), "S5")

    assert "query n of group g failed, though its registration after 0 held back what it lacks" in finding.why
    held(collected(expires=True))


def test_registration_of_a_run_that_was_replaced_holds_nothing_back() -> None:
    """What its successor finishes is collected; it may hear of that before it hears of its successor."""

    def happen(history: StoryHistory) -> None:
        history.session("n#1")
        history.session("n#2")
        history.query("n#1", "g", "n", "n1", history.finished_by("q"))
        history.query("n#2", "g", "n", "n2", history.finished_by("q"))
        why = "segments are gone: collected while query n was silent"
        history.event("query-failed", who, group="g", query="n", why=why)

    who = "n#1"
    held(spoilt("joined", happen))
    who = "n#2"
    assert names(only(spoilt("joined", happen), "S5")) == ["n#2 commit g/queries", "n#2 query-failed"]

"""Back-pressure, decided from the znodes alone: pause, resume, and seal interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.planning.backpressure import (
    HURRY_BYTES,
    MOST_RETAINED,
    UNKNOWN,
    Backlog,
    Bounds,
    Finished,
    Retention,
    collectable,
    directions,
    finished_by_all,
    is_pressing,
    published_interval_ms,
    shortest_interval_ms,
    shortest_intervals_ms,
    shown_bytes,
)
from coordinator.zk.znodes.segments import SegmentsRecord

BOUNDS = Bounds(segments=100, size=1000)
FREE = SegmentsRecord(collected=7)


def directed(before: SegmentsRecord, segments: int, size: int = 0, **readers: int) -> SegmentsRecord:
    return directions(before, Backlog(segments, size), BOUNDS, readers, None)


def paused(segments: int = 101, size: int = 0, **readers: int) -> SegmentsRecord:
    record = directed(FREE, segments, size, **readers)
    assert record.paused
    return record


@pytest.mark.parametrize(("segments", "size"), [(100, 1000), (0, 0)])
def test_backlog_within_its_bounds_pauses_no_fetcher(segments: int, size: int) -> None:
    assert directed(FREE, segments, size, q=1) == FREE


@pytest.mark.parametrize(("segments", "size"), [(101, 0), (1, 1001)])
def test_backlog_over_either_bound_pauses_the_fetchers_with_the_amount_as_reason(segments: int, size: int) -> None:
    text = directed(FREE, segments, size, q=1).paused

    assert text == (
        f"the backlog is full: {segments} of at most 100 segments, {shown_bytes(size)} of at most 1000 bytes; "
        "query q has not finished them"
    )


def test_the_reason_names_the_query_that_is_farthest_behind() -> None:
    assert "query slow has" in str(paused(fast=30, slow=10, tied=10).paused)


def test_reason_reports_a_missing_query() -> None:
    assert "no query reads the group" in str(paused().paused)


def test_the_reason_names_a_query_whose_znode_cannot_be_read() -> None:
    assert "the znode of query bad cannot be read" in str(paused(bad=UNKNOWN, good=10).paused)


@pytest.mark.parametrize(
    ("segments", "size", "goes_on"), [(81, 0, False), (80, 800, True), (80, 801, False), (0, 0, True)]
)
def test_fetchers_resume_only_when_the_backlog_is_at_four_fifths_of_both_bounds(
    segments: int, size: int, goes_on: bool
) -> None:
    assert (directed(paused(q=1), segments, size, q=1).paused is None) == goes_on


def test_no_pause_is_lifted_before_the_bytes_of_all_segments_are_known() -> None:
    before = paused(q=1)

    assert directions(before, Backlog(50, 0, unread=10), BOUNDS, {"q": 1}, None) == before
    assert directions(FREE, Backlog(101, 0, unread=10), BOUNDS, {"q": 1}, None).paused
    assert directions(FREE, Backlog(50, 0, unread=10), BOUNDS, {"q": 1}, None) == FREE


def test_reason_is_unchanged_while_its_cause_is() -> None:
    before = paused(101, q=1)

    assert directed(before, 108, q=5) == before


def test_reason_is_updated_when_its_cause_changes() -> None:
    assert "query q has" in str(directed(paused(), 108, q=0).paused)


def test_manual_pause_is_kept() -> None:
    by_hand = SegmentsRecord(7, paused="the storage is being moved")

    assert directed(by_hand, 0, q=1) == by_hand
    assert directed(by_hand, 1000, q=1) == by_hand


def test_collected_position_is_kept_through_other_changes() -> None:
    assert paused().collected == 7
    assert directed(paused(), 0).collected == 7


def test_a_new_interval_is_published_also_while_fetchers_are_paused() -> None:
    before = paused(q=1)

    assert directions(before, Backlog(101, 0), BOUNDS, {"q": 1}, 500).seal_interval_ms == 500


@pytest.mark.parametrize(
    ("readers", "finished"),
    [({}, None), ({"a": 0, "b": 5}, None), ({"a": 3, "b": 5}, 3), ({"a": UNKNOWN, "b": 5}, None)],
)
def test_only_segments_finished_by_every_query_may_be_collected(readers: dict[str, int], finished: int | None) -> None:
    assert finished_by_all(readers) == finished


def test_bytes_are_shown_with_a_unit() -> None:
    shown = [shown_bytes(size) for size in (0, 1023, 1024, 3 << 30, 5 << 50)]
    assert shown == ["0 bytes", "1023 bytes", "1.0 KiB", "3.0 GiB", "5120.0 TiB"]


# ---- how often to seal


def test_fetchers_within_the_seal_rate_limit_keep_their_own_interval() -> None:
    assert shortest_interval_ms([200] * 100, 500) == 0
    assert shortest_interval_ms([], 1) == 0


def test_seal_rate_limit_is_shared_when_exceeded() -> None:
    assert shortest_interval_ms([200] * 101, 500) == 210
    assert shortest_interval_ms([200] * 200, 500) == 400


def test_fetcher_that_rarely_seals_leaves_the_others_more() -> None:
    assert shortest_interval_ms([100, 10_000], 5) == 210


def test_seal_interval_is_published_only_to_groups_that_would_seal_more_often() -> None:
    assert published_interval_ms([200, 1000], 400) == 400
    assert published_interval_ms([400, 1000], 400) is None
    assert published_interval_ms([200], 0) is None
    assert published_interval_ms([], 400) is None


def test_group_with_ten_thousand_fetchers_leaves_a_small_group_its_own_interval() -> None:
    assert shortest_intervals_ms({"big": [200] * 10_000, "small": [200, 200]}, 500) == {"big": 20_410, "small": 0}


def test_groups_over_their_share_seal_the_same_number_of_times() -> None:
    assert shortest_intervals_ms({"a": [10] * 10, "b": [100] * 10, "c": []}, 100) == {"a": 200, "b": 200, "c": 0}


@given(st.dictionaries(st.text(max_size=2), st.lists(st.integers(10, 60_000), max_size=20)), st.integers(1, 1000))
@pytest.mark.long
def test_shares_keep_the_bound_and_no_group_gets_less_than_an_equal_share(own: dict[str, list[int]], most: int) -> None:
    shortest = shortest_intervals_ms(own, most)

    rates = {group: sum(1000 / max(each, shortest[group]) for each in own[group]) for group in own}
    assert sum(rates.values()) <= most * 1.000001
    for group in own:
        assert shortest[group] <= shortest_interval_ms(own[group], most / len(own))


@given(st.lists(st.integers(1, 60_000), max_size=50), st.integers(1, 1000))
def test_shortest_interval_keeps_the_bound_and_a_shorter_one_would_break_it(own: list[int], most: int) -> None:
    def rate(shortest: float) -> float:
        return sum(1000 / max(interval, shortest) for interval in own)

    shortest = shortest_interval_ms(own, most)

    assert rate(shortest) <= most * 1.000001
    assert shortest == 0 or rate(shortest - 10) > most * 0.999999 or shortest == 10


# ---- retention of finished segments


def up_to(*finished: Finished, ms: int = 1000, size: int = 100, now_ms: int = 5000) -> int:
    return collectable(finished, now_ms, Retention(ms, size))


@pytest.mark.parametrize(
    ("retention", "limit"),
    [
        (Retention(3_600_000, 256 << 20), HURRY_BYTES + (256 << 20)),
        (Retention(0, 256 << 20), HURRY_BYTES),
        (Retention(3_600_000, 8 << 30), 2 << 30),
    ],
    ids=["the defaults", "nothing is retained", "more may be retained than half of the bound"],
)
def test_retained_segments_do_not_hurry_their_collection(retention: Retention, limit: int) -> None:
    bounds = Bounds(20_000, 4 << 30)

    assert not is_pressing(FREE, Backlog(1000, limit), bounds, retention)
    assert is_pressing(FREE, Backlog(1000, limit + 1), bounds, retention)


def test_finished_segments_are_retained_by_their_age() -> None:
    old, at_its_end, young = Finished(1, 1000, 1), Finished(2, 4000, 1), Finished(3, 4001, 1)

    assert up_to(old, at_its_end, young) == 2
    assert up_to(young) == 0
    assert up_to() == 0


def test_retention_time_spares_no_segment_before_an_unretained_one() -> None:
    assert up_to(Finished(1, 4900, 1), Finished(2, 1000, 1), Finished(3, 4900, 1)) == 2


def test_finished_segments_over_the_bound_in_bytes_are_not_retained() -> None:
    assert up_to(Finished(1, 5000, 1), Finished(2, 5000, 60), Finished(3, 5000, 40)) == 1
    assert up_to(Finished(1, 5000, 101)) == 1


def test_finished_segments_over_the_bound_in_number_are_not_retained() -> None:
    sealed = [Finished(czxid, 5000, 0) for czxid in range(1, MOST_RETAINED + 3)]

    assert up_to(*sealed) == 2


def test_no_retention_removes_also_what_was_sealed_after_now() -> None:
    assert up_to(Finished(1, 6000, 1), ms=0) == 1

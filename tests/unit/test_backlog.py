"""Back-pressure, decided from the znodes alone: pause, resume, and seal interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zk_group.coordinator.planning.backpressure import (
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
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

BOUNDS = Bounds(segments=100, size=1000)
FREE = SegmentsRecord(collected=7)


FULL = Backlog(101, 0)
PAUSED = directions(FREE, FULL, BOUNDS, {"q": 1}, None)
BY_HAND = SegmentsRecord(7, paused="the storage is being moved")
TEXT = "the backlog is full: {} of at most 100 segments, {} of at most 1000 bytes; query q has not finished them"
Q = {"q": 1}
DIRECTED: dict[str, tuple[SegmentsRecord, Backlog, dict[str, int], SegmentsRecord | str]] = {
    "a backlog at its bounds pauses no fetcher": (FREE, Backlog(100, 1000), Q, FREE),
    "an empty backlog pauses no fetcher": (FREE, Backlog(0, 0), Q, FREE),
    "more segments pause them with the amount as reason": (FREE, FULL, Q, TEXT.format(101, "0 bytes")),
    "more bytes pause them with the amount as reason": (FREE, Backlog(1, 1001), Q, TEXT.format(1, "1001 bytes")),
    "the query farthest behind is named": (FREE, FULL, {"fast": 30, "slow": 10, "tied": 10}, "query slow has"),
    "a missing query is named": (FREE, FULL, {}, "no query reads the group"),
    "an unreadable query is named": (FREE, FULL, {"bad": UNKNOWN, "good": 10}, "the znode of query bad cannot be read"),
    "above four fifths of the segments they stay": (PAUSED, Backlog(81, 0), Q, PAUSED),
    "above four fifths of the bytes they stay": (PAUSED, Backlog(80, 801), Q, PAUSED),
    "at four fifths of both they go on": (PAUSED, Backlog(80, 800), Q, FREE),
    "with no backlog they go on": (PAUSED, Backlog(0, 0), Q, FREE),
    "while bytes of some segments are unknown they stay": (PAUSED, Backlog(50, 0, unread=10), Q, PAUSED),
    "while bytes are unknown too many segments pause": (
        FREE,
        Backlog(101, 0, unread=10),
        Q,
        TEXT.format(101, "0 bytes"),
    ),
    "while bytes are unknown none else are paused": (FREE, Backlog(50, 0, unread=10), Q, FREE),
    "the reason is unchanged while its cause is": (PAUSED, Backlog(108, 0), {"q": 5}, PAUSED),
    "the reason changes with its cause": (directions(FREE, FULL, BOUNDS, {}, None), Backlog(108, 0), Q, "query q has"),
    "a manual pause is kept without a backlog": (BY_HAND, Backlog(0, 0), Q, BY_HAND),
    "a manual pause is kept beside a backlog": (BY_HAND, Backlog(1000, 0), Q, BY_HAND),
}


@pytest.mark.parametrize(("before", "backlog", "readers", "expected"), DIRECTED.values(), ids=DIRECTED)
def test_backlog_pauses_fetchers_with_a_reason_and_lets_them_go_on(
    before: SegmentsRecord, backlog: Backlog, readers: dict[str, int], expected: SegmentsRecord | str
) -> None:
    found = directions(before, backlog, BOUNDS, readers, None)

    if isinstance(expected, str):
        assert expected in str(found.paused)
        assert found == replace(before, paused=found.paused), "all else is kept"
    else:
        assert found == expected


def test_a_new_interval_is_published_also_while_fetchers_are_paused() -> None:
    assert directions(PAUSED, FULL, BOUNDS, Q, 500).seal_interval_ms == 500


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


@pytest.mark.parametrize(
    ("own", "most", "shortest"),
    [([200] * 100, 500, 0), ([], 1, 0), ([200] * 101, 500, 210), ([200] * 200, 500, 400), ([100, 10_000], 5, 210)],
    ids=["within the limit", "without fetchers", "over the limit", "twice the limit", "one seals rarely"],
)
def test_seal_rate_limit_is_shared_when_exceeded(own: list[int], most: int, shortest: int) -> None:
    assert shortest_interval_ms(own, most) == shortest


@pytest.mark.parametrize(
    ("own", "shortest", "published"),
    [([200, 1000], 400, 400), ([400, 1000], 400, None), ([200], 0, None), ([], 400, None)],
)
def test_interval_is_published_to_groups_that_seal_faster(own: list[int], shortest: int, published: int | None) -> None:
    assert published_interval_ms(own, shortest) == published


@pytest.mark.parametrize(
    ("own", "most", "shortest"),
    [
        ({"big": [200] * 10_000, "small": [200, 200]}, 500, {"big": 20_410, "small": 0}),
        ({"a": [10] * 10, "b": [100] * 10, "c": []}, 100, {"a": 200, "b": 200, "c": 0}),
    ],
    ids=["a small group keeps its own interval", "groups over their share seal equally often"],
)
def test_groups_share_the_limit(own: dict[str, list[int]], most: int, shortest: dict[str, int]) -> None:
    assert shortest_intervals_ms(own, most) == shortest


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


YOUNG = Finished(3, 4001, 1)
MANY = [Finished(czxid, 5000, 0) for czxid in range(1, MOST_RETAINED + 3)]
COLLECTED: dict[str, tuple[list[Finished], int, int]] = {
    "those of their age": ([Finished(1, 1000, 1), Finished(2, 4000, 1), YOUNG], 1000, 2),
    "none that is young": ([YOUNG], 1000, 0),
    "none of none": ([], 1000, 0),
    "also a young one before an old one": (
        [Finished(1, 4900, 1), Finished(2, 1000, 1), Finished(3, 4900, 1)], 1000, 2,
    ),
    "those over the bound in bytes": ([Finished(1, 5000, 1), Finished(2, 5000, 60), Finished(3, 5000, 40)], 1000, 1),
    "one that is over it alone": ([Finished(1, 5000, 101)], 1000, 1),
    "those over the bound in number": (MANY, 1000, 2),
    "without retention, also what was sealed after now": ([Finished(1, 6000, 1)], 0, 1),
}  # fmt: skip


@pytest.mark.parametrize(("finished", "ms", "up_to"), COLLECTED.values(), ids=COLLECTED)
def test_finished_segments_are_collected_up_to(finished: list[Finished], ms: int, up_to: int) -> None:
    assert collectable(finished, 5000, Retention(ms, 100)) == up_to

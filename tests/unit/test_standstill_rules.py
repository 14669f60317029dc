"""Since when partitions have had no fetcher: from the last signs of life of members, and from stops."""

from __future__ import annotations

from dataclasses import replace

from coordinator.planning.membership import End
from coordinator.planning.rebalance_history import history_of
from coordinator.planning.snapshot import ChannelView, Member, Snapshot
from coordinator.rebalance.member_clocks import LastSigns
from coordinator.zk.znodes.group_state import COMPLETING, STABLE, GroupState, Rebalance, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import Channel, Registration

PART = TopicPartition("t", 0)
STATE = GroupState(STABLE, 1, 5, "range", {"a": Target("a1", {"a-0": frozenset([PART])})})
REGISTERED = Registration("a1", {"t": 1}, lease_ms=6_667, max_poll_interval_ms=300_000)
AT_MS = 1_000_000


def channel(written_ms: int, incarnation: str = "a1", ended: str | None = None) -> dict[str, ChannelView]:
    running = {PART: 7} if ended is None and incarnation == "a1" else {}
    return {"a": ChannelView("a", 1, Channel(incarnation, running=running, ended=ended), written_ms=written_ms)}


def member(registration: Registration = REGISTERED, created_ms: int = 0) -> dict[str, Member]:
    return {"a": Member("a", 1, registration, created_ms=created_ms)}


def seen_live(written_ms: int, now_ms: int) -> LastSigns:
    signs = LastSigns()
    signs.observed(STATE, channel(written_ms), member(), now_ms, now_ms)
    return signs


def test_expired_session_of_a_busy_member_ended_with_its_last_commit() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)

    found, _ = signs.observed(STATE, channel(AT_MS + 100), {}, AT_MS + 11_000, AT_MS + 10_950)

    # Last heard by ZooKeeper a timeout (10 s) before, at the latest, and it renews every sixth of it.
    assert found == {"a": 10_900}
    assert signs.observed(STATE, channel(AT_MS + 100), {}, AT_MS + 12_000, AT_MS + 12_000)[0] == {"a": 11_900}


def test_expired_session_of_an_idle_member_ended_no_earlier_than_ticks_allow() -> None:
    signs = seen_live(AT_MS - 90_000, AT_MS)

    found, _ = signs.observed(STATE, channel(AT_MS - 90_000), {}, AT_MS + 9_000, AT_MS + 9_000)

    assert found == {"a": 14_500}


def test_new_coordinator_has_only_the_last_write_of_a_departed_member() -> None:
    found, _ = LastSigns().observed(STATE, channel(AT_MS - 60_000), {}, AT_MS, AT_MS)

    assert found == {"a": 60_000}


def test_member_that_leaves_has_fetched_until_then() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)

    assert signs.observed(STATE, channel(AT_MS + 50, ended="closed"), {}, AT_MS + 70, AT_MS + 70)[0] == {"a": 20}


def test_last_write_of_an_evicted_member_is_its_own_and_not_the_eviction() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)
    signs.deciding((_end(channel(AT_MS - 5_000)["a"]),))

    found, _ = signs.observed(STATE, channel(AT_MS + 10, ended="evicted: it hangs"), {}, AT_MS + 2_000, AT_MS + 2_000)

    assert found == {"a": 7_000}


def test_member_whose_name_is_taken_over_has_fetched_until_its_last_commit() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)
    successor = Registration("a2", {"t": 1}, took_over_ms=AT_MS + 1_000)

    found, _ = signs.observed(
        STATE, channel(AT_MS + 4_000, "a2"), member(successor, AT_MS + 4_000), AT_MS + 4_100, AT_MS + 4_100
    )
    unseen, _ = LastSigns().observed(
        STATE, channel(AT_MS + 4_000, "a2"), member(successor, AT_MS + 4_000), AT_MS + 4_100, AT_MS + 4_100
    )

    assert found == unseen == {"a": 3_100}


def test_member_that_has_run_nothing_leaves_nothing_standing_still() -> None:
    views = {"a": ChannelView("a", 1, Channel("a1"), written_ms=AT_MS)}
    signs = LastSigns()
    signs.observed(STATE, views, member(), AT_MS, AT_MS)

    assert signs.observed(STATE, views, {}, AT_MS + 9_000, AT_MS + 9_000) == ({}, {})


def test_unknown_time_of_zookeeper_tells_nothing() -> None:
    assert LastSigns().observed(STATE, channel(AT_MS), {}, 0, 0) == ({}, {})


def test_member_that_comes_back_has_stood_still_until_the_group_is_stable() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)
    successor, now_ms = Registration("a2", {"t": 1}, took_over_ms=AT_MS + 1_000), AT_MS + 4_100
    signs.observed(STATE, channel(AT_MS + 4_000, "a2"), member(successor, AT_MS + 4_000), now_ms, now_ms)
    starting = replace(STATE, state=COMPLETING, target={"a": Target("a2", {"a-0": frozenset([PART])})})

    _, returned = signs.observed(starting, channel(AT_MS + 4_000, "a2"), member(successor), now_ms + 100, now_ms)
    _, after = signs.observed(
        replace(starting, state=STABLE), channel(AT_MS + 4_000, "a2"), member(successor), now_ms + 200, now_ms
    )

    assert (returned, after) == ({"a": 3_200}, {})


def test_a_lying_registration_dates_no_death_before_its_poll_interval() -> None:
    liar = Registration("a2", {"t": 1}, max_poll_interval_ms=9_000, took_over_ms=1)

    found, _ = LastSigns().observed(STATE, channel(AT_MS, "a2"), member(liar, AT_MS), AT_MS + 100, AT_MS + 100)

    assert found == {"a": 9_100}
    assert standing(seen(50, None, {"a": 9_100}), ["a"], False) == (None, 0)


def test_returns_of_members_that_left_again_are_forgotten() -> None:
    signs = seen_live(AT_MS - 5_000, AT_MS)
    successor = Registration("a2", {"t": 1}, took_over_ms=AT_MS + 1_000)
    views, members = channel(AT_MS + 4_000, "a2"), member(successor, AT_MS + 4_000)
    signs.observed(STATE, views, members, AT_MS + 4_100, AT_MS + 4_100)
    starting = replace(STATE, state=COMPLETING, target={"a": Target("a2", {"a-0": frozenset([PART])})})
    assert signs.observed(starting, views, members, AT_MS + 4_200, AT_MS + 4_200)[1]

    left = replace(starting, target={})

    assert signs.observed(left, {}, {}, AT_MS + 4_300, AT_MS + 4_300) == ({}, {})


def test_return_of_a_static_member_is_in_its_generation_when_it_is_longer() -> None:
    record = Rebalance(1, 5, "joined a", 1_000, finished_ms=1_100, standstill_ms=40)
    snapshot = replace(seen(AT_MS, record, {}), returned={"a": 3_200})
    longer = replace(record, standstill_ms=5_000)

    assert history_of(snapshot, replace(STATE, state=COMPLETING), False, False, "") is None
    assert history_of(snapshot, STATE, False, False, "") == replace(
        record, silent_since_ms=AT_MS - 3_200, standstill_ms=3_200
    )
    assert history_of(replace(snapshot, rebalance=longer), STATE, False, False, "") is None


def seen(now_ms: int, record: Rebalance | None, silences: dict[str, int]) -> Snapshot:
    return Snapshot("g", 5, STATE, 1, rebalance=record, now_ms=now_ms, silences=silences)


def standing(snapshot: Snapshot, gone: list[str], are_stopping: bool) -> tuple[int | None, int | None]:
    """`standing_since_ms` and `silent_since_ms` of a rebalance that begins."""
    record = history_of(snapshot, replace(STATE, generation=2), True, are_stopping, "", gone)
    assert record is not None
    return record.standing_since_ms, record.silent_since_ms


def test_standstill_begins_with_the_earliest_of_deaths_and_stops() -> None:
    silences = {"a": 10_000, "b": 3_000, "c": 99_000}

    assert standing(seen(AT_MS, None, silences), ["a", "b"], are_stopping=True) == (AT_MS, AT_MS - 10_000)


def test_standstill_of_an_unfinished_rebalance_is_continued() -> None:
    record = Rebalance(1, 5, "left a", AT_MS, silent_since_ms=AT_MS - 10_000)

    assert standing(seen(AT_MS + 500, record, {"b": 11_000}), ["b"], are_stopping=False) == (None, AT_MS - 10_500)


def _end(view: ChannelView) -> End:
    return End(view, "evicted: it hangs", True, frozenset([PART]))

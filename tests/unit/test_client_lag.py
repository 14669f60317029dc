"""The client assignor `lag`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from consumer.assignment.base import Assignment
from consumer.assignment.lag import LagAssignor
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.partitions import TopicPartition
from tests.unit.test_client_cluster import (
    KnownOffsets,
    assigned_by,
    holding,
    part,
    settled,
    subscribes,
    texts,
    with_lags,
)

TWO = {"a": subscribes("t"), "b": subscribes("t")}


def loads(found: Mapping[str, Assignment], lags: Mapping[str, int]) -> dict[str, int]:
    """Thread -> records behind."""
    known = {part(name): lag for name, lag in lags.items()}
    return {thread: sum(known[one] for one in has) for each in found.values() for thread, has in each.threads.items()}


def test_its_name_is_lag_and_it_is_cooperative() -> None:
    assert (LagAssignor().name, LagAssignor().is_cooperative) == ("lag", True)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_invalid_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        LagAssignor(tolerance)


def test_one_hot_partition_is_alone_and_the_others_go_to_the_other_member() -> None:
    found = assigned_by(LagAssignor(), "t:5", TWO, with_lags({"t-0": 1000, **{f"t-{n}": 100 for n in range(1, 5)}}))

    assert texts(found) == {"a-0": "t-0", "b-0": "t-1 t-2 t-3 t-4"}


def test_records_behind_are_level_where_counts_would_not_be() -> None:
    lags = {f"t-{n}": lag for n, lag in enumerate([900, 800, 100, 100, 100, 100, 100, 100])}

    found = assigned_by(LagAssignor(), "t:8", TWO, with_lags(lags))

    assert sorted(loads(found, lags).values()) == [1100, 1200]


def test_idle_partitions_are_spread_by_their_number() -> None:
    found = assigned_by(LagAssignor(), "t:6 u:3", {name: subscribes("t u") for name in "abc"}, with_lags({}))

    assert [len(one.partitions) for one in found.values()] == [3, 3, 3]


def test_a_new_member_gets_idle_partitions_although_another_one_is_hot() -> None:
    members = {"a": holding("a-0=t:0"), "b": holding("b-0=t:1-10")}
    lookup = with_lags({"t-0": 1_000_000, **{f"t-{n}": 0 for n in range(1, 11)}})

    found = assigned_by(LagAssignor(), "t:11", {**TWO, "c": subscribes("t")}, lookup, members)

    assert [len(one.partitions) for one in found.values()] == [1, 5, 5]


def test_partitions_stay_while_the_spread_is_within_the_tolerance() -> None:
    members = {"a": holding("a-0=t:0-4"), "b": holding("b-0=t:5-9")}
    lags = {"t-0": 25, **{f"t-{n}": 100 if n < 5 else 75 for n in range(1, 10)}}

    within = assigned_by(LagAssignor(0.2), "t:10", TWO, with_lags(lags), members)
    beyond = assigned_by(LagAssignor(0.01), "t:10", TWO, with_lags(lags), members)

    assert texts(within) == {"a-0": "t-0 t-1 t-2 t-3 t-4", "b-0": "t-5 t-6 t-7 t-8 t-9"}
    assert loads(beyond, lags) == {"a-0": 400, "b-0": 400}


def test_no_more_moves_than_level_the_load() -> None:
    members = {"a": holding("a-0=t:0-5"), "b": holding("b-0=t:6-9")}

    found = assigned_by(LagAssignor(), "t:10", TWO, with_lags({f"t-{n}": 50 for n in range(10)}), members)

    assert {name: len(one.partitions) for name, one in found.items()} == {"a": 5, "b": 5}
    assert found["b"].partitions > members["b"].running


def test_only_partitions_of_the_departed_member_move() -> None:
    members = {"a": holding("a-0=t:0-2"), "b": holding("b-0=t:3-5")}

    found = assigned_by(LagAssignor(), "t:8", TWO, with_lags({f"t-{n}": 70 for n in range(8)}), members)

    assert all(found[name].partitions > held.running for name, held in members.items())
    assert {len(one.partitions) for one in found.values()} == {4}


def test_of_equal_partitions_unowned_ones_and_the_fewest_others_move() -> None:
    members = {"a": holding("a-0=t:0-1"), "b": holding("b-0=t:2-3"), "c": holding("c-0=t:4-9")}
    three = {name: subscribes("t") for name in "abc"}

    found = assigned_by(LagAssignor(), "t:12", three, with_lags({}), members)

    assert found["a"].partitions > members["a"].running
    assert found["b"].partitions > members["b"].running
    assert found["c"].partitions < members["c"].running


def test_members_get_only_partitions_of_topics_that_they_subscribe_to() -> None:
    lags = {"t-0": 10, "t-1": 10, "u-0": 1000, "u-1": 900}

    found = assigned_by(LagAssignor(), "t:2 u:2", {"a": subscribes("t"), "b": subscribes("t u")}, with_lags(lags))

    assert texts(found) == {"a-0": "t-0 t-1", "b-0": "u-0 u-1"}


def test_a_hot_topic_of_some_members_does_not_excuse_a_bad_balance_among_others() -> None:
    lags = {"t-0": 10**6, "t-1": 10**6, **{f"u-{n}": 10 for n in range(6)}}
    metadata = {"a": subscribes("t"), "b": subscribes("t"), "c": subscribes("u"), "d": subscribes("u")}

    found = assigned_by(LagAssignor(), "t:2 u:6", metadata, with_lags(lags), {"c": holding("c-0=u:0-5")})

    assert [len(one.partitions) for one in found.values()] == [1, 1, 3, 3]


def test_threads_of_a_member_share_its_records() -> None:
    lags = {"t-0": 90, "t-1": 50, "t-2": 40, "t-3": 90}

    found = assigned_by(LagAssignor(), "t:4", {"a": subscribes("t:2"), "b": subscribes("t")}, with_lags(lags))

    assert loads(found, lags) == {"a-0": 90, "a-1": 90, "b-0": 90}


def test_thread_is_assigned_only_topics_with_that_many_threads() -> None:
    lags = {"t-0": 100, **{f"u-{n}": 10 for n in range(4)}}

    found = assigned_by(LagAssignor(), "t:1 u:4", {"a": subscribes("t u:3")}, with_lags(lags))

    assert texts(found) == {"a-0": "t-0", "a-1": "u-0 u-2", "a-2": "u-1 u-3"}


def test_without_a_committed_offset_all_records_are_behind() -> None:
    lookup = KnownOffsets(
        ends={part(f"t-{n}"): 1000 for n in range(4)},
        commits={part("t-1"): 900, part("t-2"): 900, part("t-3"): 900},
        beginnings={part("t-0"): 700},
    )

    assert texts(assigned_by(LagAssignor(), "t:4", TWO, lookup)) == {"a-0": "t-0", "b-0": "t-1 t-2 t-3"}
    assert lookup.asked[2] == ("beginnings", (TopicPartition("t", 0),))


@pytest.mark.parametrize("knows_the_end", [False, True])
def test_partition_with_an_unknown_end_counts_as_the_mean_of_the_others(knows_the_end: bool) -> None:
    lags = {"t-1": 350, "t-2": 100, "t-3": 100, "t-4": 100, "t-5": 100}  # in the mean 150
    lookup = with_lags(lags)
    if knows_the_end:
        lookup.ends = {**lookup.ends, part("t-0"): 10**9}  # of a log without a commit or a beginning

    found = assigned_by(LagAssignor(), "t:6", TWO, lookup)

    assert sorted(loads(found, {"t-0": 150, **lags}).values()) == [450, 450]


def test_partition_counts_are_balanced_when_the_log_has_no_ends() -> None:
    found = assigned_by(LagAssignor(), "t:9", {name: subscribes("t") for name in "abc"})

    assert [len(one.partitions) for one in found.values()] == [3, 3, 3]


def test_commit_beyond_the_end_gives_no_negative_lag() -> None:
    lookup = KnownOffsets(ends={part("t-0"): 5, part("t-1"): 5}, commits={part("t-0"): 500, part("t-1"): 5})

    assert texts(assigned_by(LagAssignor(), "t:2", TWO, lookup)) == {"a-0": "t-0", "b-0": "t-1"}


def test_a_second_assignment_changes_nothing_while_the_lags_are_the_same() -> None:
    lookup = with_lags({f"t-{n}": (n * 7919) % 1009 for n in range(60)})
    metadata = {name: subscribes("t:2") for name in "abcde"}
    first = assigned_by(LagAssignor(), "t:60", metadata, lookup)

    again = assigned_by(LagAssignor(), "t:60", metadata, lookup, settled(first, dict.fromkeys(metadata, holding(""))))

    assert again == first


def test_a_hot_partition_stays_if_its_move_gains_under_the_tolerance() -> None:
    members = {"a": holding("a-0=t:0-2"), "b": holding(""), "c": holding("c-0=t:3-6")}
    lookup = with_lags({"t-0": 1000, "t-1": 1, "t-2": 1, **{f"t-{n}": 100 for n in range(3, 7)}})

    found = assigned_by(LagAssignor(), "t:7", {**TWO, "c": subscribes("t")}, lookup, members)

    assert texts(found) == {"a-0": "t-0", "b-0": "t-1 t-2 t-3 t-6", "c-0": "t-4 t-5"}


def test_many_idle_partitions_move_though_each_is_less_than_the_tolerance() -> None:
    members = {"a": holding("a-0=t:0-99"), "b": holding("b-0=t:100-199")}

    found = assigned_by(LagAssignor(), "t:200", {**TWO, "c": subscribes("t")}, with_lags({}), members)

    assert {len(one.partitions) // 4 for one in found.values()} <= {15, 16, 17}


def test_a_topic_of_few_members_in_a_large_group_is_level_among_them() -> None:
    metadata = {"a": subscribes("t u"), "b": subscribes("t u"), **{name: subscribes("u") for name in "cdef"}}

    lags = {"t-0": 90, **{f"t-{n}": 30 for n in range(1, 4)}, **{f"u-{n}": 10 for n in range(4)}}

    found = assigned_by(LagAssignor(), "t:4 u:4", metadata, with_lags(lags))

    assert list(loads(found, lags).values()) == [90, 90, 10, 10, 10, 10]


def test_a_member_with_unreadable_metadata_gets_nothing() -> None:
    found = assigned_by(LagAssignor(), "t:2", {"a": subscribes("t"), "b": b"no"}, with_lags({}))

    assert texts(found) == {"a-0": "t-0 t-1"}
    assert found["b"] == Assignment({})


def test_a_group_without_members_or_topics_has_an_empty_assignment() -> None:
    assert assigned_by(LagAssignor(), "t:1", {}) == {}
    assert assigned_by(LagAssignor(), "", {"a": subscribes("t")}) == {"a": Assignment({})}

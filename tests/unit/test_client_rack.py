"""The client assignor `rack` (KIP-881)."""

from __future__ import annotations

from collections.abc import Mapping

from consumer.assignment.adapter import CoordinatorStrategy
from consumer.assignment.base import Assignment
from consumer.assignment.rack import RackAssignor
from tests.unit.strategies import STRATEGIES
from tests.unit.test_client_cluster import (
    KnownOffsets,
    assigned_by,
    holding,
    settled,
    subscribes,
    texts,
    with_racks,
)

RACKS = {"a": subscribes("t", "r1"), "b": subscribes("t", "r2"), "c": subscribes("t", "r3")}


def matches(found: Mapping[str, Assignment], racks: Mapping[str, str], lookup: KnownOffsets) -> int:
    """Partitions whose holder's rack has a replica."""
    return sum(racks[name] in lookup.racks(part) for name, one in found.items() for part in one.partitions)


def test_its_name_is_rack_and_it_is_cooperative() -> None:
    assert (RackAssignor().name, RackAssignor().is_cooperative) == ("rack", True)


def test_consumers_get_the_partitions_that_have_a_replica_in_their_rack() -> None:
    lookup = with_racks({"t-0": "r3", "t-1": "r1", "t-2": "r2"})

    assert texts(assigned_by(RackAssignor(), "t:3", RACKS, lookup)) == {"a-0": "t-1", "b-0": "t-2", "c-0": "t-0"}


def test_balance_takes_precedence_over_racks() -> None:
    lookup = with_racks({f"t-{n}": "r1" for n in range(6)})

    found = assigned_by(RackAssignor(), "t:6", RACKS, lookup)

    assert [len(one.partitions) for one in found.values()] == [2, 2, 2]


def test_member_with_a_replica_in_its_rack_gets_the_extra_partition() -> None:
    lookup = with_racks({"t-0": "r2", "t-1": "r2", "t-2": "r1"})

    found = assigned_by(RackAssignor(), "t:3", {"a": RACKS["a"], "b": RACKS["b"]}, lookup)

    assert texts(found) == {"a-0": "t-2", "b-0": "t-0 t-1"}


def test_partitions_with_fewer_racks_are_matched_first() -> None:
    lookup = with_racks({"t-0": "r2 r3", "t-1": "r1 r3", "t-2": "r2"})

    assert texts(assigned_by(RackAssignor(), "t:3", RACKS, lookup)) == {"a-0": "t-1", "b-0": "t-2", "c-0": "t-0"}


def test_a_rack_grows_for_a_match_while_another_one_shrinks() -> None:
    """The match moves to r3, whose quota r2 gives up, and a partition of r2 takes the place of the match."""
    metadata = {"a": subscribes("t"), "b": subscribes("t"), "c": subscribes("t", "r3"), "d": subscribes("t", "r2")}
    members = {"a": holding("a-0=t:0,2,3,4"), "d": holding("d-0=t:1")}
    lookup = with_racks({"t-2": "r2", "t-3": "r3", "t-4": "r3"})

    found = assigned_by(RackAssignor(), "t:5", metadata, lookup, members)

    assert matches(found, {"a": "", "b": "", "c": "r3", "d": "r2"}, lookup) == 3


def test_one_partition_moves_where_an_exchange_would_move_two() -> None:
    members = {"a": holding("a-0=t:0-1"), "b": holding("b-0=t:2")}

    found = assigned_by(RackAssignor(), "t:3", {n: RACKS[n] for n in "ab"}, with_racks({"t-1": "r2"}), members)

    assert texts(found) == {"a-0": "t-0", "b-0": "t-1 t-2"}


def test_unowned_partition_moves_before_an_owned_partition() -> None:
    members = {"a": holding("a-0=t:0,3"), "b": holding("b-0=t:1")}
    lookup = with_racks({"t-0": "r2", "t-3": "r1"})

    found = assigned_by(RackAssignor(), "t:4", {n: RACKS[n] for n in "ab"}, lookup, members)

    assert texts(found) == {"a-0": "t-2 t-3", "b-0": "t-0 t-1"}


def test_members_that_lose_nothing_in_a_shrinking_rack_keep_their_partitions() -> None:
    metadata = {"a": RACKS["a"], "b": subscribes("t", "r1"), "c": RACKS["b"]}
    members = {"a": holding("a-0=t:0-1"), "b": holding("b-0=t:2-3"), "c": holding("c-0=t:4")}
    lookup = with_racks({"t-0": "r1", "t-1": "r2", "t-2": "r1", "t-3": "r1", "t-4": "r2"})

    found = assigned_by(RackAssignor(), "t:5", metadata, lookup, members)

    assert texts(found) == {"a-0": "t-0", "b-0": "t-2 t-3", "c-0": "t-1 t-4"}


def test_partition_that_matches_or_has_no_possible_match_stays() -> None:
    members = {"a": holding("a-0=t:0,3"), "b": holding("b-0=t:1,4"), "c": holding("c-0=t:2,5")}
    lookup = with_racks({"t-0": "r1", "t-1": "r2 r1", "t-2": "r9", "t-3": "", "t-4": "r1", "t-5": "r2"})

    found = assigned_by(RackAssignor(), "t:6", RACKS, lookup, members)

    assert matches(found, {"a": "r1", "b": "r2", "c": "r3"}, lookup) == 4
    assert {f"{part}" for name, held in members.items() for part in held.running - found[name].partitions} == {
        "t-3",
        "t-4",
        "t-5",
    }


def test_result_without_racks_equals_cooperative_sticky() -> None:
    members = {"a": holding("a-0=t:0-4")}
    no_racks = {name: subscribes("t") for name in "abc"}
    sticky = CoordinatorStrategy(STRATEGIES["cooperative-sticky"])
    wanted = assigned_by(sticky, "t:7", RACKS, members=members)

    assert assigned_by(RackAssignor(), "t:7", RACKS, members=members) == wanted
    assert assigned_by(RackAssignor(), "t:7", no_racks, with_racks({"t-0": "r1"}), members) == wanted


def test_member_without_a_rack_gets_partitions_without_a_match() -> None:
    metadata = {"a": subscribes("t"), "b": subscribes("t", "r2")}

    found = assigned_by(RackAssignor(), "t:4", metadata, with_racks({"t-0": "r2", "t-2": "r2"}))

    assert texts(found) == {"a-0": "t-1 t-3", "b-0": "t-0 t-2"}


def test_consumers_get_only_partitions_of_topics_that_they_subscribe_to() -> None:
    metadata = {"a": subscribes("t", "r1"), "b": subscribes("t u", "r2"), "c": subscribes("u:2", "r1")}
    lookup = with_racks({**{f"t-{n}": "r2" for n in range(4)}, **{f"u-{n}": "r1" for n in range(4)}})

    found = assigned_by(RackAssignor(), "t:4 u:4", metadata, lookup)

    assert {part.topic for part in found["a"].partitions} == {"t"}
    assert {part.topic for part in found["c"].partitions} == {"u"}
    assert sum(len(one.partitions) for one in found.values()) == 8


def test_consumers_of_one_rack_keep_their_partitions() -> None:
    metadata = {"a": RACKS["a"], "b": subscribes("t", "r1"), "c": RACKS["c"]}
    members = {"a": holding("a-0=t:0-1"), "b": holding("b-0=t:2-3"), "c": holding("c-0=t:4-5")}
    lookup = with_racks({f"t-{n}": "r3" if n == 3 else "r1" for n in range(6)})

    found = assigned_by(RackAssignor(), "t:6", metadata, lookup, members)

    assert found["a"] == Assignment({"a-0": members["a"].running})
    assert texts(found)["b-0"].startswith("t-2 t-")
    assert "t-3" in texts(found)["c-0"]


def test_a_second_assignment_changes_nothing() -> None:
    lookup = with_racks({f"t-{n}": f"r{n * 7 % 4} r{n * 5 % 3}" for n in range(50)})
    metadata = {name: subscribes("t:2", f"r{n % 4}") for n, name in enumerate("abcdefg")}
    first = assigned_by(RackAssignor(), "t:50", metadata, lookup)

    again = assigned_by(RackAssignor(), "t:50", metadata, lookup, settled(first, dict.fromkeys(metadata, holding(""))))

    assert again == first


def test_a_group_without_members_or_topics_has_an_empty_assignment() -> None:
    assert assigned_by(RackAssignor(), "t:1", {}) == {}
    assert assigned_by(RackAssignor(), "", {"a": RACKS["a"]}) == {"a": Assignment({})}

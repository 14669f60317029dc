"""The client assignors `lag` and `rack`; most of their assignments are in `client_assignors.txt`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from consumer.assignment.adapter import CoordinatorStrategy
from consumer.assignment.base import Assignment, ClientAssignor
from consumer.assignment.lag import LagAssignor
from consumer.assignment.rack import RackAssignor
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from tests.unit.strategies import STRATEGIES, parts
from tests.unit.test_client_cluster import (
    KnownOffsets,
    assigned_by,
    holding,
    holds,
    part,
    settled,
    subscribes,
    texts,
    with_lags,
    with_racks,
)

TWO = {"a": subscribes("t"), "b": subscribes("t")}
RACKS = {"a": subscribes("t", "r1"), "b": subscribes("t", "r2"), "c": subscribes("t", "r3")}
BOTH = pytest.mark.parametrize("assignor", [LagAssignor(), RackAssignor()], ids=lambda assignor: assignor.name)
GIVEN = {"topics", "members", "lags", "racks", "held", "tolerance", "why"}


def loads(found: Mapping[str, Assignment], lags: Mapping[str, int]) -> dict[str, int]:
    """Thread -> records behind."""
    known = {part(name): lag for name, lag in lags.items()}
    return {thread: sum(known[one] for one in has) for each in found.values() for thread, has in each.threads.items()}


# ---- the cases of the file


def pairs(line: str) -> dict[str, str]:
    """`a-0=t:0,2 a-1=t:1`."""
    return {name: value for name, _, value in (word.rpartition("=") for word in line.split())}


def by_partition(line: str) -> dict[str, str]:
    """`t:0-1=r1,r2` as the words of t-0 and t-1."""
    return {str(one): value.replace(",", " ") for text, value in pairs(line).items() for one in parts(text)}


def of_threads(line: str) -> dict[str, PartitionSet]:
    return {thread: parts(text) for thread, text in pairs(line).items()}


class Case:
    """What is given, and what the assignor has found."""

    def __init__(self, words: Mapping[str, str], assignor: ClientAssignor) -> None:
        wants = {name: text.partition("@") for name, text in pairs(words["members"]).items()}
        metadata = {name: subscribes(topics.replace(",", " "), rack) for name, (topics, _, rack) in wants.items()}
        threads: dict[str, dict[str, PartitionSet]] = defaultdict(dict)
        for thread, has in of_threads(words.get("held", "")).items():
            threads[thread.partition("-")[0]][thread] = has
        members = {name: holds(Assignment(has)) for name, has in threads.items()}
        self.held = {name: has.running for name, has in members.items()}
        self.lags = {name: int(lag) for name, lag in by_partition(words.get("lags", "")).items()}
        lookup = with_racks(by_partition(words["racks"])) if "racks" in words else with_lags(self.lags)
        self.found = assigned_by(assignor, words["topics"], metadata, lookup, members)
        self.matches = sum(
            wants[name][2] in lookup.racks(one) for name, has in self.found.items() for one in has.partitions
        )


FOUND: dict[str, tuple[Callable[[Case], object], Callable[[str], object]]] = {
    "assigns": (
        lambda case: {thread: has for one in case.found.values() for thread, has in one.threads.items()},
        of_threads,
    ),
    "counts": (
        lambda case: [len(one.partitions) for one in case.found.values()],
        lambda line: [*map(int, line.split())],
    ),
    "loads": (
        lambda case: sorted(loads(case.found, case.lags).values()),
        lambda line: [*map(int, line.split())],
    ),
    "loads-of": (
        lambda case: {thread: str(load) for thread, load in loads(case.found, case.lags).items()},
        pairs,
    ),
    "matches": (lambda case: case.matches, int),
    "moves": (
        lambda case: {one for name, has in case.held.items() for one in has - case.found[name].partitions},
        parts,
    ),
    "grows": (
        lambda case: {name for name, has in case.held.items() if case.found[name].partitions > has},
        lambda line: set(line.split()),
    ),
    "shrinks": (
        lambda case: {name for name, has in case.held.items() if case.found[name].partitions < has},
        lambda line: set(line.split()),
    ),
}
"""Word -> what is found, and how the file's values are read."""
CASES = Path(__file__).with_name("client_assignors.txt").read_text().split("\n== ")[1:]


@pytest.mark.parametrize("text", CASES, ids=lambda text: text.partition("\n")[0])
def test_assignment_is_that_of_the_case(text: str) -> None:
    title, *lines = text.strip().splitlines()
    words = {word: values for word, _, values in (line.partition(" ") for line in lines)}
    expected = words.keys() - GIVEN
    assert expected and expected <= FOUND.keys()
    tolerance = [float(value) for value in words.get("tolerance", "").split()]

    case = Case(words, LagAssignor(*tolerance) if title.startswith("lag: ") else RackAssignor())

    for word in expected:
        find, read = FOUND[word]
        assert find(case) == read(words[word]), word


# ---- other properties


def test_their_names_are_lag_and_rack_and_they_are_cooperative() -> None:
    assert {one.name: one.is_cooperative for one in (LagAssignor(), RackAssignor())} == {"lag": True, "rack": True}


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_invalid_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        LagAssignor(tolerance)


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


def test_commit_beyond_the_end_gives_no_negative_lag() -> None:
    lookup = KnownOffsets(ends={part("t-0"): 5, part("t-1"): 5}, commits={part("t-0"): 500, part("t-1"): 5})

    assert texts(assigned_by(LagAssignor(), "t:2", TWO, lookup)) == {"a-0": "t-0", "b-0": "t-1"}


def test_many_idle_partitions_move_though_each_is_less_than_the_tolerance() -> None:
    members = {"a": holding("a-0=t:0-99"), "b": holding("b-0=t:100-199")}

    found = assigned_by(LagAssignor(), "t:200", {**TWO, "c": subscribes("t")}, with_lags({}), members)

    assert {len(one.partitions) // 4 for one in found.values()} <= {15, 16, 17}


def test_a_member_with_unreadable_metadata_gets_nothing() -> None:
    found = assigned_by(LagAssignor(), "t:2", {"a": subscribes("t"), "b": b"no"}, with_lags({}))

    assert texts(found) == {"a-0": "t-0 t-1"}
    assert found["b"] == Assignment({})


@BOTH
def test_a_group_without_members_or_topics_has_an_empty_assignment(assignor: ClientAssignor) -> None:
    assert assigned_by(assignor, "t:1", {}) == {}
    assert assigned_by(assignor, "", {"a": RACKS["a"]}) == {"a": Assignment({})}


LAGS = with_lags({f"t-{n}": (n * 7919) % 1009 for n in range(60)})
SCATTERED = with_racks({f"t-{n}": f"r{n * 7 % 4} r{n * 5 % 3}" for n in range(50)})


@pytest.mark.parametrize(
    ("assignor", "topics", "names", "lookup"),
    [(LagAssignor(), "t:60", "abcde", LAGS), (RackAssignor(), "t:50", "abcdefg", SCATTERED)],
    ids=["lag", "rack"],
)
def test_a_second_assignment_changes_nothing(
    assignor: ClientAssignor, topics: str, names: str, lookup: KnownOffsets
) -> None:
    metadata = {name: subscribes("t:2", f"r{n % 4}") for n, name in enumerate(names)}
    first = assigned_by(assignor, topics, metadata, lookup)

    again = assigned_by(assignor, topics, metadata, lookup, settled(first, dict.fromkeys(metadata, holding(""))))

    assert again == first


def test_result_without_racks_equals_cooperative_sticky() -> None:
    members = {"a": holding("a-0=t:0-4")}
    no_racks = {name: subscribes("t") for name in "abc"}
    sticky = CoordinatorStrategy(STRATEGIES["cooperative-sticky"])
    wanted = assigned_by(sticky, "t:7", RACKS, members=members)

    assert assigned_by(RackAssignor(), "t:7", RACKS, members=members) == wanted
    assert assigned_by(RackAssignor(), "t:7", no_racks, with_racks({"t-0": "r1"}), members) == wanted


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

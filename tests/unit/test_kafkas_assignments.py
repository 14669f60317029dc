"""Kafka's own cases of its assignors: RoundRobinAssignorTest, AbstractStickyAssignorTest, StickyAssignorTest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from coordinator.assignors import Assignment, Subscriber
from coordinator.zk.znodes.partitions import PartitionSet
from tests.support.turns import cases
from tests.unit.strategies import (
    STICKY,
    STRATEGIES,
    after,
    by_consumer,
    given,
    improvable,
    member,
    numbered,
    parts,
    shares,
)


def wanted(table: Mapping[str, str]) -> dict[str, PartitionSet]:
    return {consumer: parts(text) for consumer, text in table.items()}


# ---- the cases of `kafkas_assignments.txt`

BOTH = "t1 t2"
TWO = [member("c1", BOTH), member("c2", BOTH)]
SOME = {"every": tuple(STRATEGIES), "both sticky": STICKY, "each sticky": STICKY}
CASES = {case.title: case.text for case in cases(Path(__file__).with_name("kafkas_assignments.txt").read_text())[1]}


def strategies_of(case: str) -> tuple[str, ...]:
    name = CASES[case].partition(":")[0]
    return SOME.get(name, (name,))


def column(text: str) -> str:
    return text.strip().removesuffix("-" if text.strip() == "-" else "")


def row(line: str) -> tuple[Subscriber, str]:
    """A member, and what it gets."""
    name, topics, claims, gets = map(column, line.split("|"))
    consumer, _, instance = name.partition("/")
    owns, _, generation = claims.partition(" in ")
    return member(consumer, column(topics), column(owns), int(generation or 0), instance), gets


@pytest.mark.parametrize(("case", "strategy"), [(case, each) for case in CASES for each in strategies_of(case)])
def test_assignments_equal_those_of_kafkas_assignors(case: str, strategy: str) -> None:
    first, _, blocks = CASES[case].strip().partition("\n")
    topics = numbered(column(first.partition(":")[2]))
    found: Assignment = {}
    for block in blocks.split("\nthen\n"):
        rows = [row(line) for line in block.splitlines()]
        members = [one for one, _ in rows]
        members = after(members, found) if found else members
        expected = wanted({one.consumer: gets for one, gets in rows})

        found = given(strategy, members, topics)
        assert by_consumer(found) == expected
        if first.startswith("both sticky"):
            assert by_consumer(given(strategy, members[::-1], topics)) == expected


STATIC_SHARES = {
    "range": {"i1": "t1:0-1 t2:0-1", "i2": "t1:2-3 t2:2-3", "i3": "t1:4 t2:4"},
    "round-robin": {"i1": "t1:0,3 t2:1,4", "i2": "t1:1,4 t2:2", "i3": "t1:2 t2:0,3"},
}


@pytest.mark.parametrize("strategy", STATIC_SHARES)
def test_static_consumers_keep_their_shares_under_any_names(strategy: str) -> None:
    for names in permutations(("c1", "c2", "c3")):
        instances = dict(zip(names, ("i1", "i2", "i3"), strict=True))

        found = shares(strategy, [member(name, BOTH, instance=i) for name, i in instances.items()], "t1:5 t2:5")

        assert {instances[name]: has for name, has in found.items()} == wanted(STATIC_SHARES[strategy])


# ---- claims


@pytest.mark.parametrize("strategy", STICKY)
def test_conflicting_claims_of_three_generations_and_unequal_subscriptions_balance(strategy: str) -> None:
    for generations in permutations((8, 9, 10)):
        topics = ("t1 t2", "t1 t2 t3", "t2 t3")
        members = [
            member(f"c{n}", wants, "t1:0 t2:0 t3:0", generation)
            for n, (wants, generation) in enumerate(zip(topics, generations, strict=True))
        ]

        found = given(strategy, members, numbered("t1:1 t2:2 t3:1"))

        assert improvable(members, found) == []
        assert sorted(map(len, by_consumer(found).values())) == [1, 1, 2]


@pytest.mark.parametrize("strategy", STICKY)
def test_claims_of_an_older_generation_count_only_if_no_newer_one_exists(strategy: str) -> None:
    """StickyAssignorTest, ConflictingPreviousGenerations and MultipleGenerations."""
    topics = "t1:4 t2:4 t3:4"
    three = given(strategy, [member(name, "t1 t2 t3") for name in ("c1", "c2", "c3")], numbered(topics))
    first = {one.consumer: one for one in after([member(n, "t1 t2 t3") for n in ("c1", "c2", "c3")], three, 1)}
    two = [replace(first["c2"], generation=2), replace(first["c3"], generation=2)]
    later = after(two, given(strategy, two, numbered(topics)), 2)

    found = shares(strategy, [first["c1"], *later], topics)

    assert [len(has) for has in found.values()] == [4, 4, 4]
    assert all(found[one.consumer] <= one.running for one in later)


# ---- one change after another


def changed(strategy: str, was: list[Subscriber], members: list[Subscriber], topics: str) -> Assignment:
    """The assignment after `was` have run theirs."""
    running = {one.consumer: one.running for one in after(was, given(strategy, was, numbered(topics)))}
    now = [replace(one, running=running.get(one.consumer, frozenset()), generation=1) for one in members]
    return given(strategy, now, numbered(topics))


@pytest.mark.parametrize("strategy", STICKY)
def test_every_topic_stays_evenly_spread_while_consumers_join_and_leave(strategy: str) -> None:
    topics = numbered("t1:12 t2:12")
    four = [member(f"c{n}", BOTH) for n in range(4)]
    found: Assignment = {}
    for count, each in ((1, 12), (2, 6), (4, 3), (2, 6)):
        found = given(strategy, after(four[:count], found), topics)
        spread = [sum(part.topic == topic for part in has) for has in by_consumer(found).values() for topic in topics]
        assert spread == [each] * (2 * count)


@pytest.mark.parametrize("strategy", STICKY)
def test_a_topic_is_added_and_the_old_one_removed(strategy: str) -> None:
    first = given(strategy, TWO, numbered("t1:3"))
    second = given(strategy, after(TWO, first), numbered("t1:3 t2:3"))
    third = given(strategy, after(TWO, second), numbered("t2:3"))

    assert all(by_consumer(first)[name] <= has for name, has in by_consumer(second).items())
    assert sorted(map(len, by_consumer(second).values())) == [3, 3]
    assert all(by_consumer(second)[name] & parts("t2:0-2") <= has for name, has in by_consumer(third).items())


@pytest.mark.parametrize("strategy", STICKY)
def test_when_one_of_four_leaves_the_others_keep_theirs(strategy: str) -> None:
    four = [member(f"c{n}", "t1") for n in (1, 2, 3, 4)]
    before = by_consumer(given(strategy, four, numbered("t1:3")))

    now = by_consumer(changed(strategy, four, four[1:], "t1:3"))

    assert sorted(map(len, now.values())) == [1, 1, 1]
    assert all(before[name] <= has for name, has in now.items())


UNEQUAL: dict[str, tuple[list[Subscriber], list[Subscriber], str]] = {
    "a group that round-robin serves badly": (
        [],
        [member(name, "t1 t2 t3 t4 t5") for name in ("c1", "c4")] + [member(name, "t1 t3 t5") for name in ("c2", "c3")],
        "t1:2 t2:1 t3:2 t4:1 t5:2",
    ),
    "one of nineteen that want ever more leaves": (
        [member(f"c{i:02}", " ".join(f"t{j:02}" for j in range(1, i + 1))) for i in range(1, 20)],
        [member(f"c{i:02}", " ".join(f"t{j:02}" for j in range(1, i + 1))) for i in range(1, 20) if i != 10],
        " ".join(f"t{i:02}:{i}" for i in range(1, 20)),
    ),
    "one joins nine": (
        [member(f"c{i}", "t") for i in range(1, 10)], [member(f"c{i}", "t") for i in range(10)], "t:20",
    ),
    "one of eight with the same fourteen topics leaves": (
        [member(f"c{i}", " ".join(f"t{j:02}" for j in range(1, 15))) for i in range(1, 9)],
        [member(f"c{i}", " ".join(f"t{j:02}" for j in range(1, 15))) for i in range(1, 9) if i != 5],
        " ".join(f"t{i:02}:{i}" for i in range(1, 15)),
    ),
    "another subscription": (
        [member("c1", "t1"), member("c2", "t2 t3 t4")],
        [member("c1", "t1 t2"), member("c2", "t2 t3 t4")],
        "t1:1 t2:2 t3:3 t4:4",
    ),
    "what is there has to be moved": (
        [],
        [member("c1", "t1 t2", "t1:0", 1), member("c2", "t1 t2 t3 t4", "t2:0 t3:0", 1),
         member("c3", "t2 t3 t4 t5 t6", "t4:0 t5:0 t6:0", 1)],
        "t1:1 t2:1 t3:1 t4:1 t5:1 t6:1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("strategy", STICKY)
@pytest.mark.parametrize("case", UNEQUAL)
def test_unequal_subscriptions_end_in_balance_and_little_moves(strategy: str, case: str) -> None:
    was, members, topics = UNEQUAL[case]
    before = by_consumer(given(strategy, was, numbered(topics)))
    found = changed(strategy, was, members, topics) if was else given(strategy, members, numbered(topics))

    assert improvable(members, found) == []
    assert_no_exchange(before, by_consumer(found))


def assert_no_exchange(before: Mapping[str, PartitionSet], now: Mapping[str, PartitionSet]) -> None:
    """Kafka's `isSticky`: of two members not both have lost something to the other."""
    ways = {(old, new) for old, had in before.items() for new, has in now.items() if old != new and had & has}
    assert not {(new, old) for old, new in ways} & ways


@pytest.mark.parametrize("strategy", STICKY)
def test_random_subscriptions_that_change_and_many_that_leave_end_in_balance(strategy: str) -> None:
    random = Random(7)
    topics = [f"t{i:02}" for i in range(15)]
    sizes = {topic: range(i + 1) for i, topic in enumerate(topics)}
    members = [member(f"c{i:02}", " ".join(random.sample(topics, random.randint(1, 15)))) for i in range(30)]
    found: Assignment = {}
    for _ in range(3):
        members = after(members, found)
        found = given(strategy, members, sizes)
        assert improvable(members, found) == []
        members = [
            replace(one, threads=dict.fromkeys(random.sample(topics, random.randint(1, 15)), 1)) for one in members
        ]
    left = after(members, found)[::4]
    assert improvable(left, given(strategy, left, sizes)) == []


# ---- threads


@pytest.mark.parametrize("strategy", STICKY)
def test_a_partition_stays_on_its_thread(strategy: str) -> None:
    """Partitions that a member keeps stay on their threads, where its threads lose equally many."""
    was = {"a-0": parts("t:0,3,5"), "a-1": parts("t:1,2,4")}
    on_thread = {part: thread for thread, has in was.items() for part in has}
    members = [
        Subscriber("a", {"t": 2}, parts("t:0-5"), 1, on_thread=on_thread),
        Subscriber("b", {"t": 1}),
    ]

    found = given(strategy, members, numbered("t:6"))

    assert found == {"a": {"a-0": parts("t:0,3"), "a-1": parts("t:1-2")}, "b": {"b-0": parts("t:4-5")}}


@pytest.mark.parametrize("strategy", STICKY)
def test_removed_thread_leaves_its_partitions_to_other_threads_of_its_consumer(strategy: str) -> None:
    on_thread = {part: "a-1" for part in parts("t:0-1")}
    members = [Subscriber("a", {"t": 1}, on_thread=on_thread), Subscriber("b", {"t": 1})]

    assert given(strategy, members, numbered("t:4")) == {"a": {"a-0": parts("t:0-1")}, "b": {"b-0": parts("t:2-3")}}


@pytest.mark.parametrize("strategy", STICKY)
def test_partitions_move_to_other_threads_of_a_member_before_other_members(strategy: str) -> None:
    members = [
        Subscriber("a", {"t": 2}, on_thread=dict.fromkeys(parts("t:0-3"), "a-0")),
        Subscriber("b", {"t": 1, "u": 1}, on_thread=dict.fromkeys(parts("u:0-1"), "b-0")),
    ]

    found = given(strategy, members, numbered("t:4 u:2"))

    assert by_consumer(found) == wanted({"a": "t:0-3", "b": "u:0-1"})
    assert sorted(map(len, found["a"].values())) == [2, 2]


def test_round_robin_alternates_threads_and_skips_those_not_subscribed_to_the_topic() -> None:
    members = [Subscriber("a", {"t": 2, "u": 1}), Subscriber("b", {"t": 1})]

    found = given("round-robin", members, numbered("t:4 u:2"))

    assert found == {"a": {"a-0": parts("t:0,3 u:0-1"), "a-1": parts("t:1")}, "b": {"b-0": parts("t:2")}}


@pytest.mark.parametrize("strategy", STICKY)
def test_new_partitions_are_assigned_to_other_members_before_other_threads(strategy: str) -> None:
    members = [Subscriber("a", {"t": 2}), Subscriber("b", {"t": 2})]

    found = by_consumer(given(strategy, members, numbered("t:2")))

    assert found == wanted({"a": "t:0", "b": "t:1"})

"""Kafka's own cases of its assignors: RoundRobinAssignorTest, AbstractStickyAssignorTest, StickyAssignorTest.

And CooperativeStickyAssignorTest: nothing is given to one member in the round in which it is taken from another, and
after four rounds at most no partition is revoked any more. A round is the stops and starts of a turn's plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.terms import only
from tests.support.turns import Lines, Reader, carried_out, cases, lines_of
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
from zk_group.coordinator.assignors import Assignment, Assignor, Subscriber
from zk_group.coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from zk_group.coordinator.planning.plan import Plan, plan
from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition, united


def wanted(table: Mapping[str, str]) -> dict[str, PartitionSet]:
    return {consumer: parts(text) for consumer, text in table.items()}


# ---- the cases of `kafkas_assignments.txt`

BOTH = "t1 t2"
SOME = {"every": tuple(STRATEGIES), "both sticky": STICKY, "each sticky": STICKY}
CASES = {case.title: case.text for case in cases(Path(__file__).with_name("kafkas_assignments.txt").read_text())[1]}


def strategies_of(case: str) -> tuple[str, ...]:
    name = CASES[case].partition(":")[0]
    return SOME.get(name) or tuple(name.split(", "))


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


# ---- one change after another


@pytest.mark.parametrize("strategy", STICKY)
def test_every_topic_stays_evenly_spread_while_consumers_join_and_leave(strategy: str) -> None:
    topics = numbered("t1:12 t2:12")
    four = [member(f"c{n}", BOTH) for n in range(4)]
    found: Assignment = {}
    for count, each in ((1, 12), (2, 6), (4, 3), (2, 6)):
        found = given(strategy, after(four[:count], found), topics)
        spread = [sum(part.topic == topic for part in has) for has in by_consumer(found).values() for topic in topics]
        assert spread == [each] * (2 * count)


# ---- threads

T03, T12, T05 = parts("t:0,3"), parts("t:1-2"), parts("t:0-5")
OF_A = {part: "a-1" if part in parts("t:1,2,4") else "a-0" for part in T05}
THREADS: dict[str, tuple[list[Subscriber], str, Assignment]] = {
    "a partition stays on its thread, where threads lose equally many": (
        [Subscriber("a", {"t": 2}, T05, 1, on_thread=OF_A), Subscriber("b", {"t": 1})], "t:6",
        {"a": {"a-0": T03, "a-1": T12}, "b": {"b-0": parts("t:4-5")}},
    ),
    "a removed thread leaves its partitions to others of its consumer": (
        [Subscriber("a", {"t": 1}, on_thread=dict.fromkeys(parts("t:0-1"), "a-1")), Subscriber("b", {"t": 1})], "t:4",
        {"a": {"a-0": parts("t:0-1")}, "b": {"b-0": parts("t:2-3")}},
    ),
    "new partitions are assigned to other members before other threads": (
        [Subscriber("a", {"t": 2}), Subscriber("b", {"t": 2})], "t:2",
        {"a": {"a-0": parts("t:0")}, "b": {"b-0": parts("t:1")}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("strategy", STICKY)
@pytest.mark.parametrize("case", THREADS)
def test_threads_of_sticky_strategies(strategy: str, case: str) -> None:
    members, topics, expected = THREADS[case]

    assert given(strategy, members, numbered(topics)) == expected


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


# ---- the rounds of a cooperative rebalance

MOST_ROUNDS = 4
Wants = Mapping[str, str]


class Group:
    """Members that apply commands at once: each round is one complete plan.

    :ivar running: what each runs.  :ivar disturbed: members that a round has stopped or started.
    """

    def __init__(self, topics: str, assignor: Assignor | None = None) -> None:
        self._assignor = assignor or CooperativeStickyAssignor()
        self.running: dict[str, PartitionSet] = {}
        self.generations: dict[str, int] = {}
        self.disturbed: set[str] = set()
        self.wants: Wants = {}
        self._state = GroupState()
        self.topics = topics

    def run(self, **owned: str) -> None:
        """Their running partitions, of one generation, as read by a coordinator without a target."""
        self.running = {name: parts(text) for name, text in owned.items()}
        self.generations = dict.fromkeys(owned, 1)
        self._state = GroupState(generation=1)

    def rebalance(self, wants: Wants, topics: str = "") -> dict[str, PartitionSet]:
        """Rounds until no partition is revoked; returns the running partitions."""
        self.wants, self.topics = wants, topics or self.topics
        self.running = {name: self.running.get(name, NONE) for name in wants}
        self.disturbed = set()
        for number in range(MOST_ROUNDS + 1):
            decided = self.plan()
            revoked = self.carry_out(decided)
            if not revoked and self._state.state == STABLE:
                return self.running
            assert number < MOST_ROUNDS, "it never ends"
        raise AssertionError

    def plan(self) -> Plan:
        """The plan of the next turn."""
        return plan(Reader(self._lines(), self._state).snapshot(), only(self._assignor))

    def _lines(self) -> Lines:
        lines = ["coordinator 1"]
        for topic, numbers in numbered(self.topics).items():
            lines.append(f"topic {topic} {topic}-1 {','.join(map(str, numbers))}")
        for name, topics in self.wants.items():
            runs = ",".join(map(str, self.running[name]))
            at = f"1/{self.generations.get(name, 0)}"
            wants = ",".join(topics.split())
            lines.append(f"member {name} wants={wants} protocols={self._assignor.name} runs={runs} at={at}")
        return lines_of("\n".join(lines))

    def carry_out(self, decided: Plan, *names: str) -> PartitionSet:
        """These members (or all) apply their commands; returns the revoked partitions."""
        after = (
            Reader(carried_out(self._lines(), decided, names or ("all",)), decided.state).snapshot().members.channels
        )
        runs = {name: after[name].running for name in self.running}
        revoked = {name: has - runs[name] for name, has in self.running.items() if has - runs[name]}
        given = {name: runs[name] - has for name, has in self.running.items() if runs[name] - has}
        released = united(revoked.values())
        assert not released & united(given.values()), "what a member releases is given in the same round"
        assert not revoked.keys() & given.keys()
        self.running = runs
        self.generations = {name: view.channel.generation for name, view in after.items() if view.channel}
        self.disturbed |= revoked.keys()
        self._state = decided.state
        return released


def assert_no_exchange(before: Mapping[str, PartitionSet], now: Mapping[str, PartitionSet]) -> None:
    """Kafka's `isSticky`: of two members not both have lost something to the other."""
    ways = {(old, new) for old, had in before.items() for new, has in now.items() if old != new and had & has}
    assert not {(new, old) for old, new in ways} & ways


C1, C12, C123 = ({name: "t" for name in names} for names in (["c1"], ["c1", "c2"], ["c1", "c2", "c3"]))


@pytest.mark.parametrize("case", [case for case, text in CASES.items() if text.startswith("each sticky")])
def test_rounds_end_in_the_assignments_of_kafkas_cases(case: str) -> None:
    first, _, blocks = CASES[case].strip().partition("\n")
    group = Group(first.partition(":")[2])
    for block in blocks.split("\nthen\n"):
        rows = [row(line) for line in block.splitlines()]

        found = group.rebalance({one.consumer: " ".join(one.threads) for one, _ in rows})

        assert found == wanted({one.consumer: gets for one, gets in rows})


@pytest.mark.parametrize(("topics", "c1"), [("t:3", "t:1"), ("t:4", "t:1,3")], ids=["", "beside a new one at once"])
def test_partition_run_by_two_members_stops_at_both_before_a_third_starts_it(topics: str, c1: str) -> None:
    group = Group(topics)
    group.run(c1="t:0-1", c2="t:0,2", c3="")

    assert group.rebalance(C123) == wanted({"c1": c1, "c2": "t:2", "c3": "t:0"})


def test_only_members_that_lose_partitions_are_disturbed() -> None:
    group = Group("t:6")
    disturbed = []
    for wants, topics in ((C1, "t:6"), (C12, "t:6"), (C123, "t:6"), (C123, "t:7"), (C12, "t:7")):
        sizes = sorted(map(len, group.rebalance(wants, topics).values()))
        assert sizes[-1] - sizes[0] <= 1
        disturbed.append(group.disturbed)

    assert disturbed == [set(), {"c1"}, {"c1", "c2"}, set(), set()]


EVER_MORE = {f"c{i:02}": " ".join(f"t{j:02}" for j in range(1, i + 1)) for i in range(1, 20)}
FOURTEEN = dict.fromkeys((f"c{i}" for i in range(1, 9)), " ".join(f"t{j:02}" for j in range(1, 15)))
SIX = {"c1": "t1 t2", "c2": "t1 t2 t3 t4", "c3": "t2 t3 t4 t5 t6"}
UNEQUAL: dict[str, tuple[Wants, Wants, str, str]] = {
    "a topic is added and the old one removed": (
        {"c1": "t1", "c2": "t1"}, {"c1": "t1 t2", "c2": "t2"}, "t1:3", "t1:3 t2:3",
    ),
    "a group that round-robin serves badly": (
        {"c1": "t1 t2 t3 t4 t5", "c2": "t1 t3 t5"},
        {"c1": "t1 t2 t3 t4 t5", "c2": "t1 t3 t5", "c3": "t1 t3 t5", "c4": "t1 t2 t3 t4 t5"},
        "t1:2 t2:1 t3:2 t4:1 t5:2", "",
    ),
    "one of nineteen that want ever more leaves": (
        EVER_MORE, {name: topics for name, topics in EVER_MORE.items() if name != "c10"},
        " ".join(f"t{i:02}:{i}" for i in range(1, 20)), "",
    ),
    "one joins nine": ({f"c{i}": "t" for i in range(1, 10)}, {f"c{i}": "t" for i in range(10)}, "t:20", ""),
    "one of eight with the same fourteen topics leaves": (
        FOURTEEN, {name: topics for name, topics in FOURTEEN.items() if name != "c5"},
        " ".join(f"t{i:02}:{i}" for i in range(1, 15)), "",
    ),
    "another subscription": (
        {"c1": "t1", "c2": "t2 t3 t4"}, {"c1": "t1 t2", "c2": "t2 t3 t4"}, "t1:1 t2:2 t3:3 t4:4", "",
    ),
    "what is there has to be moved": (
        {"c1": SIX["c1"], "c2": SIX["c2"]}, SIX, "t1:1 t2:1 t3:1 t4:1", "t1:1 t2:1 t3:1 t4:1 t5:1 t6:1",
    ),
    "what runs has to be moved": (
        {"c1": "t1:0", "c2": "t2:0 t3:0", "c3": "t4:0 t5:0 t6:0"}, SIX, "t1:1 t2:1 t3:1 t4:1 t5:1 t6:1", "",
    ),
}  # fmt: skip
"""What is wanted before and after (or is run before), and the topics before and after."""


@pytest.mark.parametrize("case", UNEQUAL)
def test_unequal_subscriptions_settle_in_four_rounds_in_balance_and_little_moves(case: str) -> None:
    wants, wants_then, topics, topics_then = UNEQUAL[case]
    group = Group(topics)
    if any(":" in text for text in wants.values()):
        group.run(**wants)
    else:
        group.rebalance(wants)
    before = dict(group.running)

    found = group.rebalance(wants_then, topics_then)

    members = [member(name, each) for name, each in wants_then.items()]
    there = {topic for text in wants_then.values() for topic in text.split()}
    every = {TopicPartition(topic, n) for topic, some in numbered(group.topics).items() if topic in there for n in some}
    assert sum(map(len, found.values())) == len(every) and united(found.values()) == every
    assert improvable(members, {name: {f"{name}-0": has} for name, has in found.items()}) == []
    assert all(part.topic in wants_then[name].split() for name, has in found.items() for part in has)
    assert_no_exchange(before, found)


def test_consumer_that_returns_unnoticed_gets_its_partitions_back() -> None:
    group = Group("t:6")
    before = dict(group.rebalance(C123))
    group.running["c2"], group.generations["c2"] = NONE, 0

    assert group.rebalance(C123) == before
    assert group.disturbed == set()


@pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=["eager", "cooperative"])
def test_a_turn_amid_a_rebalance_keeps_its_generation(assignor: Assignor) -> None:
    """Otherwise every acknowledged stop would begin another one: the running partitions have changed."""
    group = Group("t:6", assignor)
    group.rebalance(C12)
    group.wants = {"c0": "t", "c1": "t", "c2": "t"}
    group.running["c0"] = NONE
    first = group.plan()
    group.carry_out(first, "c1", "c2")

    second = group.plan()

    assert first.is_new_generation
    assert not second.is_new_generation
    assert second.state.target == first.state.target


def test_sessions_at_their_limit_release_no_partition_for_the_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the next turn compute another target, and begin a generation for it."""
    monkeypatch.setattr("zk_group.coordinator.planning.target.OWNER_PATHS_A_SESSION", 200)
    group = Group("t:40")
    group.rebalance(C123)

    found = group.rebalance(C12)

    assert 0 < sum(map(len, found.values())) < 40
    assert group.disturbed == set()
    assert not group.plan().is_new_generation

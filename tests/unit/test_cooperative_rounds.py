"""A cooperative rebalance in rounds as Kafka counts them: the stops and starts of a turn's plan.

CooperativeStickyAssignorTest: nothing is given to one member in the round in which it is taken from another, and after
four rounds at most no partition is revoked any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coordinator.assignors import Assignor
from coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from coordinator.planning.plan import Plan, plan
from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.partitions import NONE, PartitionSet, united
from tests.support.strategies import only
from tests.support.turns import Lines, Reader, carried_out, lines_of
from tests.unit.strategies import numbered, parts

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
        after = Reader(carried_out(self._lines(), decided, names or ("all",)), decided.state).snapshot().channels
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


def wanted(**table: str) -> dict[str, PartitionSet]:
    return {name: parts(text) for name, text in table.items()}


def test_partition_run_by_two_members_stops_at_both_before_a_third_starts_it() -> None:
    group = Group("t:3")
    group.run(c1="t:0-1", c2="t:0,2", c3="")

    assert group.rebalance(dict.fromkeys(("c1", "c2", "c3"), "t")) == wanted(c1="t:1", c2="t:2", c3="t:0")


def test_new_partition_waits_for_no_other_member() -> None:
    group = Group("t:4")
    group.run(c1="t:0-1", c2="t:0,2", c3="")

    assert group.rebalance(dict.fromkeys(("c1", "c2", "c3"), "t")) == wanted(c1="t:1,3", c2="t:2", c3="t:0")


def test_only_moving_partitions_stop_when_consumers_join_and_leave() -> None:
    group = Group("t:3")
    assert group.rebalance({"c1": "t"}) == wanted(c1="t:0-2")
    assert group.rebalance({"c1": "t", "c2": "t"}) == wanted(c1="t:0-1", c2="t:2")
    assert group.disturbed == {"c1"}
    assert group.rebalance({"c2": "t"}) == wanted(c2="t:0-2")
    assert group.disturbed == set()


def test_two_consumers_are_added_and_two_removed_with_two_topics() -> None:
    group = Group("t1:3 t2:4")
    four = dict.fromkeys(("c1", "c2", "c3", "c4"), "t1 t2")

    assert group.rebalance({"c1": "t1 t2", "c2": "t1 t2"}) == wanted(c1="t1:0,2 t2:1,3", c2="t1:1 t2:0,2")
    assert group.rebalance(four) == wanted(c1="t1:0 t2:1", c2="t1:1 t2:0", c3="t1:2 t2:3", c4="t2:2")
    assert group.rebalance({"c3": "t1 t2", "c4": "t1 t2"}) == wanted(c3="t1:0,2 t2:1,3", c4="t1:1 t2:0,2")


def test_topics_stay_evenly_spread_while_consumers_join_and_leave() -> None:
    group = Group("t1:12 t2:12")
    for count in (1, 2, 4, 2):
        found = group.rebalance({f"c{n}": "t1 t2" for n in range(count)})
        assert [len(has) for has in found.values()] == [24 // count] * count


def test_unchanged_member_gets_no_command_and_a_new_partition_stops_no_other() -> None:
    group = Group("t:6")
    group.rebalance({"c1": "t", "c2": "t", "c3": "t"})

    found = group.rebalance({"c1": "t", "c2": "t", "c3": "t"}, "t:7")

    assert sorted(map(len, found.values())) == [2, 2, 3]
    assert group.disturbed == set()


UNEQUAL: dict[str, tuple[Wants, Wants, str, str]] = {
    "a topic is added and the old one removed": (
        {"c1": "t1", "c2": "t1"}, {"c1": "t1 t2", "c2": "t2"}, "t1:3", "t1:3 t2:3",
    ),
    "a group that round-robin serves badly": (
        {"c1": "t1 t2 t3 t4 t5", "c2": "t1 t3 t5"},
        {"c1": "t1 t2 t3 t4 t5", "c2": "t1 t3 t5", "c3": "t1 t3 t5", "c4": "t1 t2 t3 t4 t5"},
        "t1:2 t2:1 t3:2 t4:1 t5:2", "t1:2 t2:1 t3:2 t4:1 t5:2",
    ),
    "one of nineteen that want ever more leaves": (
        {f"c{i:02}": " ".join(f"t{j:02}" for j in range(1, i + 1)) for i in range(1, 20)},
        {f"c{i:02}": " ".join(f"t{j:02}" for j in range(1, i + 1)) for i in range(1, 20) if i != 10},
        " ".join(f"t{i:02}:{i}" for i in range(1, 20)), " ".join(f"t{i:02}:{i}" for i in range(1, 20)),
    ),
    "what is there has to be moved": (
        {"c1": "t1 t2", "c2": "t1 t2 t3 t4"}, {"c1": "t1 t2", "c2": "t1 t2 t3 t4", "c3": "t2 t3 t4 t5 t6"},
        "t1:1 t2:1 t3:1 t4:1", "t1:1 t2:1 t3:1 t4:1 t5:1 t6:1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNEQUAL)
def test_unequal_subscriptions_settle_in_four_rounds_and_everything_is_run_once(case: str) -> None:
    before, after, topics_before, topics = UNEQUAL[case]
    group = Group(topics_before)
    group.rebalance(before)

    found = group.rebalance(after, topics)

    every = [part for has in found.values() for part in has]
    there = {topic for text in after.values() for topic in text.split()}
    assert len(every) == len(set(every)) == sum(len(n) for topic, n in numbered(topics).items() if topic in there)
    assert all(part.topic in after[name].split() for name, has in found.items() for part in has)


def test_consumer_that_returns_unnoticed_gets_its_partitions_back() -> None:
    group = Group("t:6")
    before = dict(group.rebalance({"c1": "t", "c2": "t", "c3": "t"}))
    group.running["c2"], group.generations["c2"] = NONE, 0

    assert group.rebalance({"c1": "t", "c2": "t", "c3": "t"}) == before
    assert group.disturbed == set()


@pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=["eager", "cooperative"])
def test_a_turn_amid_a_rebalance_keeps_its_generation(assignor: Assignor) -> None:
    """Otherwise every acknowledged stop would begin another one: the running partitions have changed."""
    group = Group("t:6", assignor)
    group.rebalance({"c1": "t", "c2": "t"})
    group.wants = {"c0": "t", "c1": "t", "c2": "t"}
    group.running["c0"] = NONE
    first = group.plan()
    group.carry_out(first, "c1", "c2")

    second = group.plan()

    assert first.is_new_generation
    assert not second.is_new_generation
    assert second.state.target == first.state.target


def test_sessions_at_their_limit_release_no_partition_for_departed_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the next turn compute another target, and begin a generation for it."""
    monkeypatch.setattr("coordinator.planning.target.OWNER_PATHS_A_SESSION", 200)
    group = Group("t:40")
    group.rebalance({"c1": "t", "c2": "t", "c3": "t"})

    found = group.rebalance({"c1": "t", "c2": "t"})

    assert 0 < sum(map(len, found.values())) < 40
    assert group.disturbed == set()
    assert not group.plan().is_new_generation

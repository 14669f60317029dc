"""The story in which everything holds; S2 and S8, and znode data as the checker reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.group_state import PREPARING, GroupState, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers
from drills.checker import HELD, check
from drills.checker.replay.expected_target import given_twice
from drills.checker.replay.reading import read_channel, read_command, read_offset, read_segment, read_state
from tests.support.made_story import G, StoryHistory, story
from tests.support.spoilt import breaks, held, holds, spoilt


def test_every_invariant_holds_in_a_history_without_faults() -> None:
    verdicts = check(story())

    assert {name: verdict.outcome for name, verdict in verdicts.verdicts.items()} == dict.fromkeys(
        ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "L1", "L2", "L3", "L4", "L5", "L6"),
        HELD,
    ), verdicts.text()


# ---- S2: in a Stable generation the assignments are disjoint and cover every assignable partition


P1, P3 = TopicPartition("flights", 1), TopicPartition("flights", 3)

SHARES = {"s0": {"flights": "0"}, "s2": {"flights": "3"}, "s3": {"flights": "1-2"}}
"""What runs after the eviction."""


def give_up(history: StoryHistory, **more: str) -> None:
    """s2 releases its partitions, which are not reassigned; `more` has the state's fields about them."""
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {}}
    state = replace(history.rebalance("g", shares), topics={"flights": "T1"}, left_out=more)
    history.fenced("g", state, history.stop("s2"))
    history.obey("s2")
    history.stable("g")


"""What runs after the eviction."""


@breaks("S2", "generation 3 of group g gives flights-3 to two", at="joined", witness="b#1 commit g/state", alone=False)
def test_partition_assigned_to_two_consumers_breaks_it(history: StoryHistory) -> None:
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2-3"}, "s2": {"flights": "3"}}
    history.fenced("g", history.rebalance("g", shares))
    history.stable("g")


@breaks("S2", "gives flights-1 to two", at="joined", witness="b#1 commit g/state")
def test_partition_assigned_to_two_threads_of_one_consumer_breaks_it(history: StoryHistory) -> None:
    state = history.states["g"]
    share = state.target["s0"]
    twice = replace(share, threads={**share.threads, "s0-1": frozenset({P1})})
    history.fenced("g", replace(state, generation=3, target={**state.target, "s0": twice}))


@breaks("S2", "generation 92 of group g follows 2", at="joined", alone=False)
def test_generation_that_does_not_follow_the_one_before_breaks_it(history: StoryHistory) -> None:
    state = history.states["g"]
    history.fenced("g", replace(state, generation=state.generation + 90))


@breaks(
    "S2", "flights-3 unassigned", at="joined",
    witness="hand commit topics/flights, s0#1 commit channel/s0, b#1 commit g/state",
)  # fmt: skip
def test_unassigned_partition_breaks_it(history: StoryHistory) -> None:
    give_up(history)


def test_partition_may_stay_unassigned_when_the_state_gives_a_reason() -> None:
    held(spoilt("joined", lambda history: give_up(history, **{"flights-3": "no room"})))
    held(spoilt("joined", lambda history: give_up(history, flights="the topic has no partitions")))


@holds(at="handed on")
def test_recently_created_partition_may_be_unassigned(history: StoryHistory) -> None:
    history.topic("flights", "T1", 5)
    history.fenced("g", history.rebalance("g", SHARES))
    history.stable("g")


@breaks(
    "S2", at="handed on", witness="s0#1 commit channel/s0, hand commit topics/flights, b#1 commit g/state", alone=False,
    after=11, fault=False,
)  # fmt: skip
@holds(at="handed on", after=11, fault=True)
def test_partition_created_long_before_must_be_detected_unless_faults_continued(
    history: StoryHistory, after: float, fault: bool
) -> None:
    history.topic("flights", "T1", 5)
    if fault:
        history.event("fault", "server", kind="partition", servers=["1"], until=history.now + 5)
    history.pass_(after)
    history.fenced("g", history.rebalance("g", SHARES))
    history.stable("g")


@breaks("S2", "group h", "cities-2-0 unassigned", at="handed on", alone=False)
def test_wildcard_subscription_counts(history: StoryHistory) -> None:
    history.topic("cities-2", "C9", 1)
    history.pass_(14)
    share = {"cities-1": "0-1"}
    others = {"cities-1": "2"}
    history.fenced("h", history.rebalance("h", {"c1": share, "c2": others}))
    history.stable("h")


@breaks("S2", "while s2 does not run flights-3", at="joined", witness="s2#1 commit channel/s2, b#1 commit g/state")
def test_a_stable_group_whose_consumer_does_not_run_its_share_breaks_it(history: StoryHistory) -> None:
    history.fenced("g", replace(history.states["g"], state=PREPARING), history.stop("s2"))
    history.obey("s2")
    history.stable("g")


@breaks(
    "S2", "while s0 still runs flights-3", at="stop obeyed", witness="s0#1 commit channel/s0, b#1 commit g/state",
    alone=False,
)  # fmt: skip
def test_a_stable_group_whose_consumer_runs_more_than_its_share_breaks_it(history: StoryHistory) -> None:
    life = history.lives["s0"]
    history.set_channel(life, replace(life.channel, running={**life.channel.running, P3: None}))
    raise_stable(history)


def raise_stable(history: StoryHistory) -> None:
    history.stable("g", left_out={"flights-3": "no room"})


@holds(at="stop obeyed")
def test_refused_partition_need_not_run(history: StoryHistory) -> None:
    life = history.lives["s2"]
    history.set_channel(life, replace(life.channel, generation=2, epoch=2, refused=frozenset({P3})))
    history.stable("g")


@holds(at="joined")
def test_state_manually_set_to_stable_is_not_judged(history: StoryHistory) -> None:
    state = replace(history.states["g"], state="Stable", generation=9, target={})
    history.hand(SetData(G.state, state.to_bytes()))


@holds(at="joined", operation=Delete(Brokers().topic("flights")))
@holds(at="joined", operation=SetData(Brokers().topic("flights"), b"?"))
def test_removed_or_unreadable_topic_needs_no_coverage(history: StoryHistory, operation: Operation) -> None:
    history.hand(operation)
    history.pass_(2)
    give_up(history)


@pytest.mark.parametrize("what", ["share", "incarnation", "topic id", "strategy"])
@breaks(
    "S2", "of group g has another target after the commit", at="joined",
    witness="b#1 commit g/state, b#1 commit g/state",
)  # fmt: skip
def test_other_target_in_the_same_generation_breaks_it(history: StoryHistory, what: str) -> None:
    state = history.states["g"]
    one = state.target["s0"]
    changed = {
        "share": replace(state, target={**state.target, "s0": replace(one, threads={"s0-0": frozenset({P3})})}),
        "incarnation": replace(state, target={**state.target, "s0": replace(one, incarnation="s0-b")}),
        "topic id": replace(state, topics={"flights": "T2"}),
        "strategy": replace(state, strategy="sticky"),
    }
    history.fenced("g", replace(changed[what], state=PREPARING))


@breaks("S2", at="joined", alone=False, when="before")
@holds("S2", at="joined", when="in a turn")
@holds("S2", at="joined", when="since")
def test_static_is_also_who_has_lost_its_seat_since_the_state_last_changed(history: StoryHistory, when: str) -> None:
    """The first commits of a turn that takes several write the state again that the turn has read."""
    state = history.states["g"]
    history.commit("s0#1", Create(G.seat("s0"), b""))
    if when != "since":
        history.commit("s0#1", Delete(G.seat("s0")))
    history.fenced("g", replace(state, state=PREPARING) if when == "before" else state)
    if when == "since":
        history.commit("s0#1", Delete(G.seat("s0")))
    other = replace(state.target["s0"], incarnation="s0-b")
    history.fenced("g", replace(state, target={**state.target, "s0": other}, state=PREPARING))


# ---- S8: assignors are pure, deterministic, blind to input order


def computed(history: StoryHistory, group: str, strategy: str, text: object, share: str) -> None:
    target = {"s0": {"s0-0": {"flights": share}}}
    history.event("assignment", "b#1", group=group, strategy=strategy, input=text, target=target)


@breaks(
    "S8", "strategy range gave s0 another share in group h at", at="joined", witness="b#1 assignment, b#1 assignment"
)
def test_different_target_for_the_same_input_in_any_group_breaks_it(history: StoryHistory) -> None:
    computed(history, "g", "range", "the same", "0-1")
    history.pass_(3)
    computed(history, "h", "range", "the same", "0")


@breaks("S8", at="joined")
def test_non_text_inputs_are_equal_in_any_key_order(history: StoryHistory) -> None:
    computed(history, "g", "range", {"members": ["s0"], "topics": {"a": 1, "b": 2}}, "0-1")
    computed(history, "g", "range", {"topics": {"b": 2, "a": 1}, "members": ["s0"]}, "0")


@holds(at="joined", goes_on=True)
def test_other_inputs_and_other_strategies_may_give_other_targets(history: StoryHistory) -> None:
    computed(history, "g", "range", "one", "0-1")
    computed(history, "g", "range", "another", "0")
    computed(history, "g", "sticky", "one", "0")
    computed(history, "g", "range", "one", "0-1")


# ---- what the records refuse cannot be read


P0, PART, P2 = (TopicPartition("flights", number) for number in range(3))


@pytest.mark.parametrize("text", ["{", "[]", "null", "?", "{" * 100_000, '{"incarnation":"\ud800"}'])
def test_what_is_no_record_cannot_be_read(text: str) -> None:
    assert [read(text) for read in (read_channel, read_command, read_state, read_offset, read_segment)] == [None] * 5


def test_channel_without_data_has_no_incarnation() -> None:
    channel = read_channel("")

    assert channel is not None and (channel.incarnation, channel.is_live) == ("", False)


STATE = GroupState(
    "Stable", 3, 2, "range", {"c1": Target("c1-a", {"c1-0": frozenset({P0, PART}), "c1-1": frozenset({P2})})}
)


@pytest.mark.parametrize(
    "share", [Target("c2-a", {"c2-0": frozenset({P2})}), Target("c2-a", {"0": frozenset({P2}), "1": frozenset({P2})})]
)
def test_target_that_assigns_a_partition_twice_is_reported_with_the_partition(share: Target) -> None:
    state = read_state(replace(STATE, target={**STATE.target, "c2": share}).to_bytes().decode())

    assert state is not None and given_twice(state) == P2 and given_twice(STATE) is None

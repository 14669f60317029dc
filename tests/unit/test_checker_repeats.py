"""L4 by the protocol: starts and generations are not repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Delete
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic
from tests.support.made_histories import Happening
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds

SHARE = {"flights": "0-1"}


FIVE_TIMES = "the same start was sent to s0 of group g 5 times"


@holds(at="joined", times=4, apart_s=0.1)
@breaks("L4", FIVE_TIMES, at="joined", witness=", ".join(["b#1 commit g/state"] * 5), times=5, apart_s=0.1)
@holds(at="joined", times=5, apart_s=0.6)
def test_a_start_that_is_sent_five_times_in_two_seconds_breaks_it(
    history: StoryHistory, times: int, apart_s: float
) -> None:
    for _ in range(times):
        history.fenced("g", history.states["g"], history.start("s0", SHARE))
        history.fenced("g", history.states["g"], Delete(history.command_of("s0")))
        history.pass_(apart_s)


@holds(at="joined")
def test_other_starts_do_not_count(history: StoryHistory) -> None:
    for number in range(4):
        history.fenced("g", history.states["g"], history.start("s0", {"flights": "0" if number % 2 else "0-1"}))
        history.fenced("g", history.states["g"], Delete(history.command_of("s0")))


@holds(at="joined")
def test_each_coordinator_may_send_a_start_again(history: StoryHistory) -> None:
    for node in ("a#1", "c#1", "d#1", "e#1"):
        history.close(history.coordinator)
        history.session(node)
        history.elect(node)
        history.states["g"] = replace(history.states["g"], epoch=history.epoch)
        history.fenced("g", history.states["g"], history.start("s0", SHARE))
        history.fenced("g", history.states["g"], Delete(history.command_of("s0")))


def elect_another(history: StoryHistory) -> None:
    history.close(history.coordinator)
    history.session("a#1")
    history.elect("a#1")


def begin_again(history: StoryHistory, **more: object) -> None:
    """A generation with the same target."""
    state = history.states["g"]
    fields = {"generation": state.generation + 1, "epoch": history.epoch, **more}
    history.fenced("g", replace(state, **fields))  # type: ignore[arg-type]


@breaks(
    "L4", "generation 3 of group g begins", "the target of the generation before", at="joined",
    witness="b#1 commit g/state, a#1 commit g/state",
)  # fmt: skip
def test_a_generation_that_begins_only_because_of_another_coordinator_breaks_it(history: StoryHistory) -> None:
    history.pass_(1.0)
    elect_another(history)
    begin_again(history)


@pytest.mark.parametrize("multis", [1, 2])
@breaks("L4", "generation 4 of group g begins", at="joined")
def test_a_member_that_the_turn_itself_ends_is_no_reason_for_the_next_generation(
    history: StoryHistory, multis: int
) -> None:
    life = history.consumer("s9#1", "g")
    history.register(life, "s9-a")
    history.pass_(1.0)
    begun = replace(history.states["g"], generation=history.states["g"].generation + 1)
    ended = [*history.end_of(life, "refused: it has no share"), Delete(G.id("s9"))]
    history.fenced("g", begun, *(ended if multis == 1 else ()))
    if multis == 2:
        history.fenced("g", begun, *ended)
    history.pass_(1.0)
    begin_again(history)


def loses_an_owner(history: StoryHistory) -> None:
    history.commit("s2#1", Delete(G.owner(*TopicPartition("flights", 3))))


def is_edited(history: StoryHistory) -> None:
    history.hand(Delete(G.rebalance(1)))


def grows(history: StoryHistory) -> None:
    history.hand(history.put(Brokers().topic("flights"), Topic("flights", "T1", tuple(range(5))).to_bytes()))


def is_joined(history: StoryHistory) -> None:
    history.register(history.consumer("s9#1", "g"), "s9-a")


@pytest.mark.parametrize("change", [loses_an_owner, is_edited, grows, is_joined])
@holds(at="joined")
def test_a_generation_with_the_same_target_has_a_reason(history: StoryHistory, change: Happening) -> None:
    change(history)
    begin_again(history)


@holds(at="joined")
def test_a_generation_with_the_same_target_may_have_another_strategy(history: StoryHistory) -> None:
    begin_again(history, strategy="sticky")

"""Client-side assignment: S9 and L5, and the other invariants over asks, answers and a leader's target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.group_state import MemberAnswer
from coordinator.zk.znodes.paths import ask_name
from coordinator.zk.znodes.records import ASSIGNMENT_FAILED, Command
from drills.checker import HELD, check
from tests.support.made_asks import G, LedGroup, led, offer
from tests.support.made_histories import edited, parted
from tests.support.spoilt import breaks as breaks_story
from tests.support.spoilt import holds as holds_story
from tests.support.spoilt import spoilt as spoilt_story

TWO = {"m0": {"flights": "0-1"}, "m1": {"flights": "2-3"}}
Change = Callable[[LedGroup], object]
THREE = {"m0": {"flights": "0-1"}, "m1": {"flights": "2"}, "m2": {"flights": "3"}}

spoilt = partial(spoilt_story, of=led)
breaks = partial(breaks_story, of=led)
holds = partial(holds_story, of=led)


def test_every_invariant_holds_under_client_side_assignment() -> None:
    verdicts = check(led())

    assert {verdict.outcome for verdict in verdicts.verdicts.values()} == {HELD}, verdicts.text()


# ---- S9: the asked leader


@breaks("S9", "ask-0000000002 of group g was made", at="asked", alone=False)
def test_second_ask_while_one_is_pending_breaks_s9(history: LedGroup) -> None:
    history.pass_(20)  # longer than the failure of the first takes to be detected
    history.ask("m0", "m0", "m1")


def leader_gone(history: LedGroup) -> None:
    history.leave("m0")
    history.ask("m1", "m1")


def leader_failed(history: LedGroup) -> None:
    history.client = replace(history.client, failed_ask=history.name, attempts=1)
    history.ask("m1", "m0", "m1")


def leader_restarted(history: LedGroup) -> None:
    history.member("m0", 2)
    history.ask("m0", "m0", "m1")


@pytest.mark.parametrize("change", [leader_gone, leader_failed, leader_restarted])
@holds("S9", at="asked")
def test_further_ask_may_follow_when_the_leader_left_failed_or_restarted(history: LedGroup, change: Change) -> None:
    history.pass_(20)
    change(history)


@breaks("S9", "names the static member m1 by its incarnation m1-1", at="stable")
def test_an_ask_names_a_static_member_by_its_seat(history: LedGroup) -> None:
    history.member("m2")
    history.ask("m0", "m0", "m2", identities={"m1": "m1-1"})


@breaks("S9", "ask-0000000001 of group g was changed", at="asked")
def test_an_ask_never_changes(history: LedGroup) -> None:
    history.commit("a#1", SetData(G.ask(history.name), b"{}"))


# ---- S9: the answering leader


@breaks("S9", "m1#1 wrote the entry", "is not its leader m0", at="asked", alone=False)
def test_only_the_leader_writes_below_an_ask(history: LedGroup) -> None:
    history.commit("m1#1", *history.entries(TWO))


@breaks("S9", "and is a coordinator", at="asked")
def test_a_coordinator_writes_nothing_below_an_ask(history: LedGroup) -> None:
    history.commit("a#1", *history.entries({"m0": {"flights": "0"}}))


@breaks("S9", "no `assign` for it stood in its channel", at="asked")
def test_nothing_is_written_below_an_ask_whose_command_was_withdrawn(history: LedGroup) -> None:
    history.fenced("g", history.states["g"], Delete(history.command_of("m0")))
    history.commit("m0#1", *history.entries({"m0": {"flights": "0"}}))


@breaks("S9", "left its `assign` there", at="asked")
def test_answer_is_written_with_the_removal_of_its_command(history: LedGroup) -> None:
    answer = history.answer_of({"m0": {}}).to_bytes()
    history.commit("m0#1", Create(G.answer(history.name), answer))


@breaks("S9", "after the answer", at="answered", alone=False)
def test_nothing_below_an_ask_changes_after_its_answer(history: LedGroup) -> None:
    entry = MemberAnswer({"m0-0": parted({"flights": "3"})}).to_bytes()
    history.commit("m0#1", SetData(G.member_answer(history.name, "m0"), entry))


@breaks("S9", "of epoch 1, and the group has had turns of epoch 2", at="asked again")
def test_answer_to_a_command_of_an_old_epoch_breaks_s9(history: LedGroup) -> None:
    history.fenced("g", replace(history.states["g"], epoch=2), Delete(history.command_of("m0")))
    history.fenced("g", history.states["g"], history.assign(epoch=1))
    history.pass_(2)
    history.answer(TWO)


# ---- S9: the adopted answer


@breaks("S9", "has no answer", at="asked")
def test_an_ask_without_an_answer_is_not_adopted(history: LedGroup) -> None:
    history.commit("m0#1", *history.entries(TWO))
    history.adopt(TWO)


@breaks("S9", "has an answer that is none", at="asked")
def test_an_error_is_not_adopted(history: LedGroup) -> None:
    history.answer({}, error="no data")
    history.adopt(TWO)


@breaks("S9", "and is not there", at="answered")
def test_missing_ask_is_not_adopted(history: LedGroup) -> None:
    history.adopt(TWO, name="ask-0000000009")


@breaks("S9", "m0 has another share than its answer gives it", at="answered")
def test_shares_are_those_of_the_answer(history: LedGroup) -> None:
    history.adopt({"m0": {"flights": "0-2"}, "m1": {"flights": "3"}})


@breaks("S9", "m0 has another share than its answer gives it", at="answered")
def test_threads_are_those_of_the_answer(history: LedGroup) -> None:
    state = history.adopted(TWO)
    share = state.target["m0"]
    target = {**state.target, "m0": replace(share, threads={"m0-1": share.partitions})}
    history.fenced("g", replace(state, target=target))


@breaks("S9", "with m2, which is no member of the ask", at="answered")
def test_member_missing_from_the_ask_is_not_in_the_target(history: LedGroup) -> None:
    history.member("m2")
    history.adopt({**TWO, "m2": {}})


@breaks("S9", "for incarnation m0-2 of m0, and the ask is about m0-1", at="answered")
def test_another_incarnation_of_a_member_is_not_in_the_target(history: LedGroup) -> None:
    history.member("m0", 2)
    history.adopt(TWO)


@holds(at="answered", is_another_seat=False)
@breaks("S9", "with m1, whose seat is another", at="answered", is_another_seat=True)
def test_restarted_static_member_is_the_same_member_unless_its_seat_is_another(
    history: LedGroup, is_another_seat: bool
) -> None:
    if is_another_seat:
        history.hand(Delete(G.seat("m1")))
        history.static_member("m1", 2)
    else:
        history.member("m1", 2, instance_id="m1")
    history.adopt(TWO)


@holds(at="answered", leaves=True)
@breaks("S9", "has nothing for m1", at="answered", leaves=False)
def test_target_leaves_out_departed_members_only(history: LedGroup, leaves: bool) -> None:
    if leaves:
        history.leave("m1")
    history.adopt({"m0": TWO["m0"]})
    history.pass_(5)


@breaks("S9", "gives flights-2 to two", at="asked")
def test_answer_that_assigns_a_partition_twice_is_not_adopted(history: LedGroup) -> None:
    both = {"m0": {"flights": "0-2"}, "m1": {"flights": "2-3"}}
    history.answer(both)
    history.adopt(both)


@breaks("S9", "with other topics than its answer has", at="answered")
def test_topics_are_those_of_the_answer(history: LedGroup) -> None:
    history.adopt(TWO, topics={"flights": "T0"})


@breaks("S9", "for topic flights as it was before", at="answered", alone=False, waits=5)
@holds("S9", at="answered", waits=0.5)
def test_topics_are_the_existing_ones_of_the_answer(history: LedGroup, waits: float) -> None:
    history.pass_(15)
    history.topic("flights", "T2", 4)
    history.pass_(waits)
    history.adopt(TWO, topics={"flights": "T1"})


@breaks("S9", "in generation 3, after generation 0", at="answered")
def test_the_generation_is_the_next_one(history: LedGroup) -> None:
    history.adopt(TWO, generation=3)


@breaks("S9", "was adopted", "a second time", at="stable", alone=False)
def test_an_ask_is_adopted_once_and_never_after_a_later_one(history: Any) -> None:
    """The first ask stays, and is adopted after the second."""
    history.removed = lambda *names: []
    history.member("m2")
    history.turn_of(THREE)
    history.ask("m0", "m0", "m1", "m2")
    history.answer(THREE)
    history.adopt(TWO, name=ask_name(1))


@breaks("S9", "after ask-0000000003", at="stable", alone=False)
def test_a_failed_ask_that_has_an_answer_is_not_adopted_after_a_later_one(history: Any) -> None:
    history.removed = lambda *names: []
    history.member("m2")
    history.ask("m0", "m0", "m1", "m2")
    history.answer(THREE)
    history.client = replace(history.client, failed_ask=history.name, attempts=1)
    history.turn_of(THREE)
    history.adopt(THREE, name=ask_name(2))


@breaks("S9", "changed for m0", at="joined", alone=False)
def test_the_target_stays_until_an_answer_is_adopted(history: LedGroup) -> None:
    target = history.target({"m0": {"flights": "0-2"}, "m1": {"flights": "3"}})
    history.fenced("g", replace(history.states["g"], state="CompletingRebalance", target=target))


@breaks("S9", "came to be for incarnation x of m0, no static member", at="stable", alone=False)
def test_the_incarnations_of_a_target_stay_until_an_answer_is_adopted(history: LedGroup) -> None:
    target = history.states["g"].target
    other = {**target, "m0": replace(target["m0"], incarnation="x")}
    history.fenced("g", replace(history.states["g"], target=other))


@breaks("S9", "no answer was adopted, and no partition", at="stable", is_lost=False)
@holds(at="stable", is_lost=True)
def test_the_generation_stays_unless_an_owner_was_lost(history: LedGroup, is_lost: bool) -> None:
    if is_lost:
        history.hand(Delete(G.owner("flights", 3)))
    history.fenced("g", replace(history.states["g"], generation=2, state="CompletingRebalance"))


@holds(at="stable")
def test_manually_written_state_resets_the_check(history: LedGroup) -> None:
    state = history.states["g"]
    history.hand(SetData(G.state, b"{"))
    history.fenced("g", replace(state, generation=state.generation + 1))


@holds(at="asked")
def test_manual_writes_below_an_ask_are_not_judged(history: LedGroup) -> None:
    history.hand(Create(G.answer(history.name), b"nonsense"))
    history.adopt(TWO)


# ---- L5


def test_assignable_group_that_does_not_become_stable_breaks_l5() -> None:
    def ask_in_vain(history: LedGroup) -> None:
        history.member("m4")
        history.ask("m0", *sorted({*history.states["g"].target, "m4"}))

    verdicts = spoilt("calm", ask_in_vain, goes_on=True)

    broken = {verdict.invariant for verdict in verdicts.broken}
    assert "L5" in broken and "L1" not in broken
    assert "(CompletingRebalance in generation 4)" in str(verdicts["L5"].why)


@pytest.mark.parametrize(("stuck", "broken_ones", "seconds", "holds"), [
    ([], [], 12.9, True),
    ([], [], 13.2, False),
    ([], ["m0"], 17.9, True),
    (["m0#1"], [], 22.9, True),
    (["m0#1"], [], 24.2, False),
])  # fmt: skip
def test_unresponsive_leader_and_each_successor_extend_the_deadline(
    stuck: list[str], broken_ones: list[str], seconds: float, holds: bool
) -> None:
    def late(history: Any) -> None:
        """From `calm` on nothing is settled, for so long."""
        history.events[-1] |= {"stuck": stuck, "broken": broken_ones}
        state = history.states["g"]
        history.fenced("g", replace(state, state="CompletingRebalance"))
        history.pass_(seconds)
        history.fenced("g", state)

    verdicts = check(led("calm", late))

    is_late = any("was not settled" in each.why for each in verdicts["L5"].findings)
    assert is_late != holds, verdicts.text()


@holds("L5", at="calm", goes_on=True)
def test_a_group_in_which_every_assignor_is_broken_is_not_judged(history: LedGroup) -> None:
    history.events[-1]["broken"] = ["m0", "m1", "m2", "m3"]
    history.fenced("g", replace(history.states["g"], state="RebalanceFailed"))


@breaks("L5", "no `assign` for it stands in the channel of its leader", at="asked", alone=False, lasts=20)
def test_wait_for_a_leader_that_was_not_asked_breaks_l5(history: LedGroup) -> None:
    history.fenced("g", history.states["g"], Delete(history.command_of("m0")))


@holds(at="asked", lasts=8)
def test_wait_for_a_leader_that_was_asked_is_none_that_breaks_l5(history: LedGroup) -> None:
    """It may not have seen its command."""


# ---- the others


@breaks("S6", "an assign, was acknowledged by m0", at="asked")
def test_ask_changes_neither_running_partitions_nor_the_generation(history: LedGroup) -> None:
    history.answer(TWO, generation=1)


@holds(at="stable")
def test_assign_and_failure_notice_stop_no_partition(history: LedGroup) -> None:
    life = history.lives["m0"]
    command = Command(ASSIGNMENT_FAILED, 1, 1, life.channel.incarnation, ask="ask-0000000007", reason="no data")
    history.fenced("g", history.states["g"], Create(G.command_prefix("m0"), command.to_bytes(), sequential=True))
    history.obey("m0")


@breaks("S6", "neither applied nor stale", at="asked", with_ask=True)
@holds(at="asked", with_ask=False)
def test_assign_of_an_existing_ask_is_not_removed_unapplied(history: LedGroup, with_ask: bool) -> None:
    if not with_ask:
        history.fenced("g", history.states["g"], *history.removed(history.name))
    history.commit("m0#1", Delete(history.command_of("m0")))


@breaks("S6", "and its channel names none", at="adopted")
def test_a_channel_names_the_ask_of_the_start_that_it_has_applied(history: LedGroup) -> None:
    history.fenced("g", history.states["g"], history.start("m0", {"flights": "0-1"}, ask=history.client.ask))
    life = history.lives["m0"]
    super(LedGroup, history).obey("m0")
    assert not life.channel.ask


CITIES = "cities-0 is unassigned, group g"


@breaks("L2", CITIES, at="bounced", alone=False, goes_on=True, lasts=30, topic="cities", pattern="static")
@breaks("L2", CITIES, at="bounced", alone=False, goes_on=True, lasts=30, topic="c.*", pattern="white_list")
@holds("L2", at="bounced", goes_on=True, lasts=30, topic="c(", pattern="opaque")
def test_topics_of_a_leader_are_those_of_the_metadata(history: LedGroup, topic: str, pattern: str) -> None:
    history.topic("cities", "C1", 1)
    registration = edited(history.tree[G.id("m0")][0], client=offer(topic, pattern=pattern).to_json())
    history.commit("m0#1", SetData(G.id("m0"), registration.encode()))


@holds(at="bounced", says_why=True)
@breaks("S2", "flights-3 unassigned", at="bounced", says_why=False)
def test_partitions_left_out_by_a_leader_are_named_in_the_state(history: LedGroup, says_why: bool) -> None:
    history.member("m4")
    shares = {"m0": {"flights": "0"}, "m1": {"flights": "2"}, "m2": {"flights": "1"}, "m3": {}, "m4": {}}
    history.pass_(12)
    history.ask("m0", *shares)
    history.answer(shares)
    state = history.adopted(shares)
    history.fenced("g", state if says_why else replace(state, left_out={}))
    history.settle(shares)
    history.pass_(5)


def test_only_the_adopted_ask_remains() -> None:
    def keep(history: Any) -> None:
        history.removed = lambda *names: []

    verdicts = spoilt("stable", keep, goes_on=True)

    assert [verdict.invariant for verdict in verdicts.broken] == ["S7"]
    assert "ask-0000000001 of group g is dead since" in str(verdicts["S7"].why)


@breaks("S7", "`sync_request` of group g is dead since", at="bounced", goes_on=True)
def test_no_request_of_a_leader_remains(history: LedGroup) -> None:
    history.commit("m0#1", Create(G.sync_request, b'{"version":1,"by":"m0"}'))


@breaks("S9", at="asked", witness="a#1 commit g/state, a#1 commit g/state")
def test_witnesses_are_the_events_of_the_violation(history: LedGroup) -> None:
    history.commit("m0#1", *history.entries(TWO))
    history.adopt(TWO)

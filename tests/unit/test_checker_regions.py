"""Consistent regions: S10, S11 and L6, and the other invariants over drains, resets and states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.regions import COMPLETED, FAILED, GroupRegion, Order, Progress
from drills.checker import HELD, check
from drills.checker.replay.sketches import NOTHING, of_range
from tests.support.made_regions import CALM_AT, END_AT, R, RegionGroup, region_story
from tests.support.spoilt import spoilt as spoilt_story

P0 = TopicPartition("flights", 0)
Happening = Callable[[RegionGroup], object]


spoilt = partial(spoilt_story, of=region_story)


def test_every_invariant_holds_in_a_region_with_checkpoints_and_resets() -> None:
    verdicts = check(region_story())

    assert {verdict.outcome for verdict in verdicts.verdicts.values()} == {HELD}, verdicts.text()


# ---- S10


def lacks_a_record(history: RegionGroup) -> None:
    history.restore("m0", states=[{"topic": "flights", "partition": 0, **of_range(1, 7).to_json()}])


def begins_elsewhere(history: RegionGroup) -> None:
    history.claim("m0")
    history.moves("m0", 0, 5)


def was_not_recorded(history: RegionGroup) -> None:
    history.restore("m1", is_recorded=False)


def takes_in_before_its_state_is_back(history: RegionGroup) -> None:
    history.claim("m0")
    history.take("m0", 0, 1)


def takes_in_twice(history: RegionGroup) -> None:
    history.take("m0", 0, 2, at=6)


def leaves_out(history: RegionGroup) -> None:
    history.take("m0", 0, 2, at=8)


def reports_another_state(history: RegionGroup) -> None:
    history.say("state", "m0", member=[])


def forgets_its_own_state(history: RegionGroup) -> None:
    history.restore("m0")
    history.restore("m1", member=[])
    history.restore("m2")
    history.run()


def is_given_what_another_has(history: RegionGroup) -> None:
    for name in ("m0", "m1", "m2"):
        own = history.cuts[history.region.sequence]["m0"][1]
        member = [{"topic": t, "topic_id": i, "partition": n, **each.to_json()} for (t, i, n), each in own.items()]
        history.restore(name, **({"member": member} if name == "m2" else {}))
    history.run()


def is_given_nothing(history: RegionGroup) -> None:
    history.restore("m0")
    history.restore("m1")
    history.claim("m2")
    history.ready("m2")
    history.run()


def runs_too_early(history: RegionGroup) -> None:
    history.restore("m0")
    history.restore("m1")
    history.claim("m2")
    history.run()


def generation_alone(history: RegionGroup) -> None:
    history.generation({"m0": {"flights": "0-1"}, "m1": {}})


def incarnation_alone(history: RegionGroup) -> None:
    state = history.states["g"]
    target = {**state.target, "m0": replace(state.target["m0"], incarnation="m0-2")}
    history.fenced("g", replace(state, target=target))


def reset_falls(history: RegionGroup) -> None:
    history.coordinate(history.root(replace(history.region, reset=history.region.reset - 1)))


def start_of_another_cut(history: RegionGroup) -> None:
    order = Order(history.region.reset, history.region.sequence + 1)
    history.fenced("g", history.states["g"], history.start("m0", {"flights": "0"}, region=order))


def start_without_a_reset(history: RegionGroup) -> None:
    history.fenced("g", history.states["g"], history.start("m0", {"flights": "0"}))


def start_in_part(history: RegionGroup) -> None:
    history.fenced("g", history.states["g"], history.start("m0", {}, region=history.order("m0")))


def removed_at_once(history: RegionGroup) -> None:
    path = history.command_of("m0")
    history.claim("m0")
    history.set_channel(history.lives["m0"], history.lives["m0"].channel, Delete(path))


OF_STATES = [
    ("resetting", lacks_a_record, "was given back 6 records (offsets add up to 21) of flights-0"),
    ("resetting", begins_elsewhere, "began flights-0 at 5, by its channel"),
    ("one restored", was_not_recorded, "no initial offset was recorded"),
    ("resetting", takes_in_before_its_state_is_back, "its state of reset 2 was not back"),
    ("running", takes_in_twice, "took in flights-0 from 6 at"),
    ("running", leaves_out, "took in flights-0 from 8 at"),
    ("running", reports_another_state, "the state 0 records"),
    ("resetting", forgets_its_own_state, "the members of group g were given back 0 records"),
    ("resetting", is_given_what_another_has, "the members of group g were given back 14 records"),
    ("resetting", is_given_nothing, "m2 of group g was given no state in it"),
    ("resetting", runs_too_early, "m2 of group g does not have its state back"),
    ("running", generation_alone, "generation 2 of group g came at"),
    ("running", incarnation_alone, "another incarnation of m0 of group g came at"),
    ("resetting", reset_falls, "region r went from reset 2 to 1"),
    ("resetting", start_of_another_cut, "names reset 2 and checkpoint 3"),
    ("resetting", start_without_a_reset, "names no reset"),
    ("resetting", start_in_part, "does not name all that it shall run"),
    ("resetting", removed_at_once, "was acknowledged by m0 of group g"),
]


@pytest.mark.parametrize(("point", "happening", "why"), OF_STATES, ids=[each[1].__name__ for each in OF_STATES])
def test_a_state_is_that_of_one_uninterrupted_run(point: str, happening: Happening, why: str) -> None:
    found = spoilt(point, happening)["S10"]

    assert found.why is not None and why in found.why, found
    assert found.witness


def test_sketch_detects_a_missing_repeated_or_different_record() -> None:
    whole = of_range(3, 9)
    assert whole == of_range(3, 5).plus(of_range(5, 9)) and of_range(4, 4) == NOTHING
    others = [of_range(3, 8), of_range(4, 9), of_range(2, 8), of_range(3, 9).plus(of_range(8, 9))]
    swapped = of_range(3, 4).plus(of_range(5, 6)).plus(of_range(5, 6)).plus(of_range(5, 6)).plus(of_range(7, 9))
    assert swapped[:2] == whole[:2], "as many, and the same sum"
    assert all(each != whole for each in (*others, swapped))


def test_process_unaware_of_its_lost_name_is_not_checked_for_its_restored_state() -> None:
    def speaks_late(history: RegionGroup) -> None:
        for name in ("m0", "m1", "m2"):
            history.restore(name)
        report = {**history.say("restored", "m0", reset=1), "who": "m0#0", "incarnation": "m0-0"}
        history.events[-1] = report
        history.run()

    assert not spoilt("resetting", speaks_late)["S10"].findings


# ---- S11


def begins_in_a_reset(history: RegionGroup) -> None:
    history.begin_checkpoint()


def begins_without_one(history: RegionGroup) -> None:
    history.begin_checkpoint({"m0": "m0-1"})


def contributes_after_the_end(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    history.abort()
    history.contribute("m0", number)


def contributes_without_its_channel(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    history.say("saved", "m0", checkpoint=number)
    given = history.contribution("m0").to_bytes()
    history.commit("m0#1", Create(R.contribution(number, "g", "m0"), given))


def contributes_for_another(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    given = replace(history.contribution("m0"), incarnation="m0-9")
    history.commit("m0#1", Create(R.contribution(number, "g", "m0"), given.to_bytes()))


def contributes_other_offsets(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    saved = history.held["m0"].next[0]
    history.say("saved", "m0", checkpoint=number)
    history.held["m0"].next[0] = saved + 1
    life = history.lives["m0"]
    given = history.contribution("m0")
    after = replace(life.channel, running=dict(given.offsets), region=Progress(1, 1, number))
    history.set_channel(life, after, Create(R.contribution(number, "g", "m0"), given.to_bytes()))


def goes_on_too_early(history: RegionGroup) -> None:
    history.take("m0", 0, 1)


def moves_alone(history: RegionGroup) -> None:
    history.take("m0", 0, 1)
    history.moves("m0", 0, 8)


def completes_without_one(history: RegionGroup) -> None:
    history.checkpoint("m0")
    history.complete()


def completes_and_stays(history: RegionGroup) -> None:
    end = Create(R.end(history.region.open, COMPLETED), b"{}")
    history.coordinate(history.root(replace(history.region, open=0)), end)


def goes_back(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    history.held["m0"].next[0] = 1
    for name in ("m0", "m1"):
        history.contribute(name, number)
    history.complete()


def copies_something_else(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    other = replace(history.contribution("m0"), offsets={P0: 1}).to_bytes()
    history.coordinate(Create(R.contribution(number, "g", "m0~1"), other))


def writes_for_a_member(history: RegionGroup) -> None:
    number = history.begin_checkpoint()
    history.coordinate(Create(R.contribution(number, "g", "m0"), history.contribution("m0").to_bytes()))


def stands_on_nothing(history: RegionGroup) -> None:
    history.coordinate(history.root(replace(history.region, sequence=7)))


def stands_on_another(history: RegionGroup) -> None:
    history.coordinate(history.root(replace(history.region, sequence=0)))


def resets_and_leaves_open(history: RegionGroup) -> None:
    history.coordinate(history.root(replace(history.region, reset=2)))


def closes_without_an_end(history: RegionGroup) -> None:
    history.coordinate(history.root(replace(history.region, open=0)))


def removes_the_cut(history: RegionGroup) -> None:
    history.coordinate(Delete(R.end(1, COMPLETED)))


OF_CUTS = [
    ("resetting", begins_in_a_reset, "began while the region was Resetting"),
    ("running", begins_without_one, "has not every member of every target as participant"),
    ("taken", contributes_after_the_end, "has a contribution of m0, and is not open"),
    ("taken", contributes_without_its_channel, "has a contribution of m0 that is not in its channel"),
    ("taken", contributes_for_another, "that is no participant's of it"),
    ("taken", contributes_other_offsets, "has other offsets of m0 than its state has taken in"),
    ("drained", goes_on_too_early, "before checkpoint 1, to which it has contributed, had ended"),
    ("running", moves_alone, "moved flights-0 from 5 to 8"),
    ("taken", completes_without_one, "is complete without a contribution of m1"),
    ("drained", completes_and_stays, "is complete, and the region does not stand on it"),
    ("running", goes_back, "has other offsets of m0 than its state has taken in"),
    ("running", copies_something_else, "has flights-0 at 1 copied from checkpoint 1, which differs"),
    ("running", writes_for_a_member, "has a contribution of m0 that a coordinator has made"),
    ("running", stands_on_nothing, "stands on checkpoint 7 instead of 1"),
    ("running", stands_on_another, "stands on checkpoint 0 instead of 1"),
    ("drained", resets_and_leaves_open, "is in reset 2, and checkpoint 1 is open that began before"),
    ("drained", closes_without_an_end, "is open no more, and has not ended"),
    ("running", removes_the_cut, "was removed, and the region stands on it"),
]


@pytest.mark.parametrize(("point", "happening", "why"), OF_CUTS, ids=[each[1].__name__ for each in OF_CUTS])
def test_checkpoint_has_the_offsets_consumed_by_its_participants(point: str, happening: Happening, why: str) -> None:
    found = spoilt(point, happening)["S11"]

    assert found.why is not None and why in found.why, found
    assert found.witness


def test_cut_includes_the_partitions_of_the_previous_cut() -> None:
    found = spoilt("running", goes_back)["S11"]

    assert any("has flights-0 of group g at 1, and checkpoint 1 at 5" in each.why for each in found.findings), found


def test_partition_without_an_owner_is_copied_unchanged() -> None:
    def copies(history: RegionGroup) -> None:
        number = history.begin_checkpoint()
        same = replace(history.contribution("m0"), offsets={P0: 5}).to_bytes()
        history.coordinate(Create(R.contribution(number, "g", "m9~1"), same))

    assert not spoilt("running", copies)["S11"].findings


def test_absent_static_member_contributes_nothing_and_its_offsets_are_copied() -> None:
    def goes_on(history: RegionGroup) -> int:
        history.leaves_seat("m1")
        return history.checkpoint("m0")

    def carries(history: RegionGroup) -> None:
        number = goes_on(history)
        history.coordinate(Create(R.contribution(number, "g", "m1"), history.cuts[1]["m1"][0].to_bytes()))
        history.complete()

    def forgets(history: RegionGroup) -> None:
        goes_on(history)
        history.complete()

    assert not spoilt("running", carries)["S11"].findings
    why = spoilt("running", forgets)["S11"].why
    assert why is not None and "lacks flights-1 of group g, which checkpoint 1 has" in why


def test_checkpoint_from_before_a_group_joined_has_no_offsets_of_the_group() -> None:
    def comes_again(history: RegionGroup) -> None:
        history.coordinate(history.root(replace(history.region, first={"g": 3})))
        history.hand(Delete(R.initial_offset("g", "flights", 0)), Delete(R.initial_offset("g", "flights", 1)))
        history.reset_to({"m0": {"flights": "0"}, "m1": {"flights": "1"}})
        history.cuts.clear()
        history.restore("m0")

    def stays(history: RegionGroup) -> None:
        history.reset_to({"m0": {"flights": "0"}, "m1": {"flights": "1"}})
        history.cuts.clear()
        history.restore("m0")

    assert not spoilt("running", comes_again)["S10"].findings
    assert spoilt("running", stays)["S10"].findings


def test_an_operator_may_reset_to_an_older_cut_or_to_the_initial_state() -> None:
    def reset(history: RegionGroup) -> None:
        history.coordinate(history.root(replace(history.after_reset(), sequence=1)))
        history.coordinate(history.root(replace(history.after_reset(), sequence=0)))

    verdicts = spoilt("resetting", reset)

    assert not verdicts["S10"].findings and not verdicts["S11"].findings, verdicts.text()


# ---- manual edits


def test_manual_edits_of_a_checkpoint_or_a_region_are_not_judged() -> None:
    def scribbles(history: RegionGroup) -> None:
        number = history.begin_checkpoint()
        history.hand(Create(R.contribution(number, "g", "m0"), b"{"))
        history.hand(SetData(R.root, b"{"))
        history.hand(Create(f"{R.checkpoint(1)}/notes", b"x"))
        history.coordinate(history.root(replace(history.region, open=0, sequence=0)))

    verdicts = spoilt("running", scribbles)

    assert not verdicts["S10"].findings and not verdicts["S11"].findings, verdicts.text()


def test_unexpected_znode_below_the_cut_excuses_no_violation() -> None:
    def scribbles(history: RegionGroup) -> None:
        history.hand(Create(f"{R.checkpoint(1)}/notes", b"x"))
        removes_the_cut(history)

    assert spoilt("running", scribbles)["S11"].findings


# ---- L6


def test_a_region_is_running_again_soon_after_its_groups_are_stable() -> None:
    def waits(history: RegionGroup) -> None:
        history.stable("g", region=GroupRegion("r", history.region.reset))
        history.to(CALM_AT)
        history.event("calm", "server", stuck=[])
        history.to(END_AT)
        history.event("end", "server")

    found = spoilt("restored", waits)["L6"]

    assert (
        found.why is not None and "region r is Resetting at 47 s, and its groups are Stable since 41 s" in found.why
    ), found


def test_region_completes_a_new_cut_within_an_interval_and_a_drain() -> None:
    def waits(history: RegionGroup) -> None:
        history.to(END_AT)
        history.event("end", "server")

    found = spoilt("calm", waits)["L6"]

    assert found.why is not None and "region r stands on checkpoint 2 from" in found.why, found


def test_region_that_waits_for_an_operator_or_a_stuck_member_is_not_late() -> None:
    def fails(history: RegionGroup) -> None:
        history.coordinate(history.root(replace(history.region, state=FAILED, reason="a test")))
        history.to(END_AT)

    def hangs(history: RegionGroup) -> None:
        history.event("fault", "server", kind="stuck", process="m0#1", until=END_AT)
        history.to(END_AT)

    for happening in (fails, hangs):
        assert not spoilt("calm", happening)["L6"].findings


# ---- the other invariants


def test_only_a_coordinator_writes_a_region() -> None:
    def writes(history: RegionGroup) -> None:
        history.commit("m0#1", history.root(history.region))

    assert spoilt("running", writes)["S4"].findings


def test_a_drain_is_removed_unapplied_only_when_its_checkpoint_has_ended() -> None:
    def removes(history: RegionGroup) -> None:
        history.begin_checkpoint()
        history.commit("m0#1", Delete(history.command_of("m0")))

    def removes_late(history: RegionGroup) -> None:
        history.begin_checkpoint()
        history.abort()
        history.commit("m0#1", Delete(history.command_of("m0")))

    assert spoilt("running", removes)["S6"].findings
    assert not spoilt("running", removes_late)["S6"].findings

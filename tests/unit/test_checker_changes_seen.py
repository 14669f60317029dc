"""L2: every change is seen though its watch event was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.paths import PAUSED, Brokers
from coordinator.zk.znodes.records import Channel, Pause, PausedRecord, Registration
from drills.checker import Verdicts
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, names, only, spoilt

Change = Callable[[StoryHistory], object]


def overlooked(change: Change, seconds: float = 8.0, point: str = "joined") -> Verdicts:
    """A change without a reaction for a while; the bound is 7 s."""

    def happen(history: StoryHistory) -> None:
        change(history)
        history.pass_(seconds)

    return spoilt(point, happen)


def more_partitions(history: StoryHistory) -> None:
    history.topic("flights", "T1", 5)


def leaves(history: StoryHistory) -> None:
    """s2 has left; the offsets of its partitions have been written."""
    life = history.lives["s2"]
    ended = replace(life.channel, running={}, topics={}, ended="left")
    history.halt(life, frozenset(life.channel.running), "revoked")
    history.set_channel(life, ended, *history.released(life, life.channel.running), Delete(G.id("s2")))


def subscribes(history: StoryHistory) -> None:
    """s0 changes its subscription in place."""
    registration = Registration("s0-a", {"flights": 1, "cities-1": 1}, lease_ms=4000, max_poll_interval_ms=9000)
    history.commit("s0#1", SetData(G.id("s0"), registration.to_bytes()))


CHANGES: list[tuple[str, Change, str, str]] = [
    ("partitions are added", more_partitions, "flights-4 is unassigned", "hand commit topics/flights"),
    (
        "a topic is removed", lambda history: history.hand(Delete(Brokers().topic("flights"))),
        "flights-0 is assigned, but does not exist", "hand commit topics/flights",
    ),
    (
        "a topic is recreated", lambda history: history.topic("flights", "T2", 4),
        "another topic flights than the one with id T2", "hand commit topics/flights",
    ),
    (
        "a topic of a wildcard is created", lambda history: history.topic("cities-2", "C9", 1),
        "cities-2-0 is unassigned, group h", "hand commit topics/cities-2",
    ),
    (
        "a member comes", lambda history: history.register(history.consumer("s9#1", "g"), "s9-a"),
        "s9 (incarnation s9-a) has no part in the target", "s9#1 commit channel/s9",
    ),
    (
        "a name has another incarnation", lambda history: history.register(history.consumer("s2#2", "g"), "s2-x"),
        "s2 (incarnation s2-x) has no part in the target", "s2#2 commit channel/s2",
    ),
    ("a member leaves", leaves, "s2 (incarnation s2-a) has left", "s2#1 commit channel/s2"),
    (
        "a session ends", lambda history: history.close("s2#1"), "s2 (incarnation s2-a) has left", "server closed",
    ),
    ("a subscription changes", subscribes, "cities-1-0 is unassigned, group g", "s0#1 commit ids/s0"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why", "event"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES])
def test_change_missing_from_the_target_after_the_deadline_breaks_it(change: Change, why: str, event: str) -> None:
    finding = only(overlooked(change), "L2")

    assert why in finding.why
    assert names(finding) == ["a#1 commit h/state" if "group h" in why else "b#1 commit g/state", event]
    held(overlooked(change, seconds=6.5))


@breaks("L2", "s2 (incarnation s2-a) has left", at="joined", lasts=14.0)
@holds(at="joined", lasts=12.5)
def test_static_member_that_left_may_keep_its_share_for_one_more_session_timeout(history: StoryHistory) -> None:
    history.commit("s2#1", Create(G.seat("s2"), b"{}"))
    leaves(history)


@breaks("L2", at="joined", lasts=8.0)
def test_static_member_with_an_ended_session_gets_no_extra_time(history: StoryHistory) -> None:
    history.commit("s2#1", Create(G.seat("s2"), b"{}"))
    history.close("s2#1")


@breaks("L2", at="joined", alone=False, lasts=8.0)
def test_leftover_seat_excuses_only_changes_of_its_member(history: StoryHistory) -> None:
    left = Channel(incarnation="s8-a", ended="left").to_bytes()
    history.commit("s2#1", Create(G.channel("s8"), left), Create(G.seat("s8"), b"{}"))
    history.hand(Delete(Brokers().topic("flights")))


@breaks("L2", "^there is no state, group new", at="joined", witness="n1#1 commit channel/n1", lasts=8.0)
def test_group_without_a_state_breaks_it(history: StoryHistory) -> None:
    history.register(history.consumer("n1#1", "new"), "n1-a")


@breaks("L2", "flights-4 is unassigned, group g: so since 15.09 s", at="joined", lasts=4)
def test_undetected_change_breaks_it_though_other_changes_are_detected(history: StoryHistory) -> None:
    more_partitions(history)
    history.pass_(4)
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {"flights": "3"}}
    history.turn("g", shares)


@holds(at="joined", lasts=6.5)
def test_each_change_has_its_own_deadline(history: StoryHistory) -> None:
    more_partitions(history)
    history.pass_(4)
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {"flights": "3-4"}}
    history.fenced("g", history.rebalance("g", shares), history.start("s2", shares["s2"]))
    history.obey("s2")
    history.topic("flights", "T1", 6)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a lasting fault", {"kind": "partition", "servers": ["1"], "until": 30.0}),
        ("the coordinator hangs", {"kind": "pause", "process": "b#1", "until": 30.0}),
    ],
)
def test_nothing_is_judged_during_a_fault(name: str, fault: Made) -> None:
    def change(history: StoryHistory) -> None:
        more_partitions(history)
        history.event("fault", "server", **fault)

    held(overlooked(change, seconds=14))
    assert only(overlooked(change, seconds=30), "L2"), f"{name}: after it, the time counts"


@breaks("L2", at="joined", lasts=8.0)
def test_everything_is_judged_while_a_consumer_hangs(history: StoryHistory) -> None:
    more_partitions(history)
    history.event("fault", "server", kind="pause", process="s1#1", until=30.0)


@holds(at="joined", lasts=20)
def test_nothing_is_judged_without_a_coordinator(history: StoryHistory) -> None:
    more_partitions(history)
    del history.roles["b#1"]


@holds(at="joined", lasts=12.5)
@breaks("L2", at="joined", lasts=14.5)
def test_later_elected_coordinator_has_one_more_session_timeout(history: StoryHistory) -> None:
    more_partitions(history)
    history.close("b#1")
    history.pass_(5)
    history.session("a#1")
    history.elect("a#1")


@holds(at="joined", lasts=20)
def test_changes_are_not_judged_while_the_group_is_paused(history: StoryHistory) -> None:
    more_partitions(history)
    history.hand(Create(PAUSED, PausedRecord(groups={"g": Pause("ann", 0)}).to_bytes()))


@breaks("L2", at="joined", lasts=14)
def test_changes_are_judged_again_when_the_group_is_resumed(history: StoryHistory) -> None:
    more_partitions(history)
    history.hand(Create(PAUSED, PausedRecord(groups={"g": Pause("ann", 0)}).to_bytes()))
    history.pass_(5)
    history.hand(Delete(PAUSED))


@breaks("L2", "flights-4 is unassigned", at="before calm", goes_on=True)
def test_no_fault_excuses_a_missed_change_after_calm(history: StoryHistory) -> None:
    history.event("fault", "server", kind="partition", servers=["1"], until=200.0)
    history.topic("flights", "T1", 5)
    del history.roles["b#1"]


@holds(at="joined", lasts=8.0)
def test_manually_written_target_is_not_judged(history: StoryHistory) -> None:
    history.hand(SetData(G.state, replace(history.states["g"], target={}).to_bytes()))


@holds(at="joined", lasts=8.0)
def test_topic_made_unreadable_manually_keeps_its_last_readable_data(history: StoryHistory) -> None:
    history.hand(SetData(Brokers().topic("flights"), b"?"))


def test_changes_not_due_at_the_end_of_the_history_are_reported() -> None:
    def happen(history: StoryHistory) -> None:
        history.to(105)
        history.topic("flights", "T1", 5)

    verdict = spoilt("collecting", happen, goes_on=True)["L2"]

    assert (verdict.outcome, verdict.is_due) == ("not decided", False)
    assert verdict.why == ("flights-4 is unassigned, group g, since 105.01 s: the history ends before that is due")

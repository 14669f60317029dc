"""L1: after the last fault the group becomes Stable in time, and remains Stable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.group_state import COMPLETING, STABLE, GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import PAUSED
from coordinator.zk.znodes.records import OwnerRecord, Pause, PausedRecord
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, changed, holds, spoilt

P3 = TopicPartition("flights", 3)


def begin(history: StoryHistory) -> None:
    """A change is begun, and not finished."""
    history.fenced("g", replace(history.states["g"], state=COMPLETING))


def until(at: float, stuck: str = "") -> Callable[[StoryHistory], None]:
    """Group g is unsettled from `calm` to `at`; one may be stuck."""

    def happen(history: StoryHistory) -> None:
        history.events[-1]["stuck"] = [stuck] if stuck else []
        begin(history)
        history.to(at)
        history.stable("g")

    return happen


def is_late(happening: Callable[[StoryHistory], object]) -> bool:
    """Whether the group is settled too late after the calm."""
    verdict = spoilt("calm", happening, goes_on=True)["L1"]
    return any("was not settled" in each.why for each in verdict.findings)


@breaks(
    "L1", "group g was not settled from 70.01 s to 110 s (CompletingRebalance in generation 6)",
    "and had to be at 78.01 s$", at="before calm", witness="b#1 commit g/state, server calm, server end", goes_on=True,
)  # fmt: skip
def test_a_group_that_does_not_become_stable_breaks_it(history: StoryHistory) -> None:
    begin(history)


@holds(at="calm", goes_on=True, seconds=77.9)
@breaks("L1", at="calm", witness="server calm, b#1 commit g/state, b#1 commit g/state", goes_on=True, seconds=78.1)
def test_group_has_session_timeout_two_ticks_and_one_second_to_settle(history: StoryHistory, seconds: float) -> None:
    until(seconds)(history)


@holds(at="stable", after_s=15.9)
@breaks("L1", "s1 of group g has not polled since", at="stable", after_s=16.2)
def test_consumer_that_is_stuck_since_the_calm_is_no_member_at_the_end(history: StoryHistory, after_s: float) -> None:
    history.event("calm", "server", stuck=["s1#1"])
    history.to(history.now + after_s)
    history.event("end", "server")


def test_group_with_a_stuck_consumer_has_rebalance_timeout_lease_and_one_second() -> None:
    assert not is_late(until(83.9, "s1#1")) and is_late(until(84.1, "s1#1"))
    assert not is_late(until(83.9, "g/s1")) and is_late(until(78.1, "c1#1"))


def test_silence_of_a_stuck_consumer_counts_from_an_election_after_the_calm() -> None:
    def happen(history: StoryHistory, at: float) -> None:
        history.events[-1]["stuck"] = ["s1#1"]
        begin(history)
        history.pass_(4.0)
        history.elect("b#1")
        history.to(at)
        history.stable("g")

    assert not is_late(lambda history: happen(history, 87.9)) and is_late(lambda history: happen(history, 88.1))


def test_silence_of_a_stuck_liar_counts_from_a_sweep_after_the_calm() -> None:
    """It does not leave by itself, and its last write is read with the next sweep at the latest."""

    def happen(history: StoryHistory, at: float) -> None:
        history.events[-1]["stuck"] = ["g/s1"]
        history.hand(SetData(G.channel("s1"), history.lives["s1"].channel.to_bytes()))
        begin(history)
        history.to(at)
        history.stable("g")

    assert not is_late(lambda history: happen(history, 88.9)) and is_late(lambda history: happen(history, 89.1))


def lied(at: float, settled_at: float, who: str = "s1#1", stuck: str = "g/s1") -> bool:
    """Whether the group is late that was settled at `settled_at`, with a command named in the channel of s1 at `at`."""

    def happen(history: StoryHistory) -> None:
        history.events[-1]["stuck"] = [stuck]
        life = history.lives["s1"]
        if who == "s1#1":
            history.event("start", who, kind="liar", group="g", consumer="s1")
        begin(history)
        history.commit(who, SetData(G.channel("s1"), life.channel.to_bytes()))
        history.to(at)
        named = replace(life.channel, command="command-0000000099")
        history.commit(who, SetData(G.channel("s1"), named.to_bytes()))
        history.to(settled_at)
        history.stable("g")

    return is_late(happen)


def test_silence_of_a_stuck_liar_counts_from_the_last_command_that_it_names() -> None:
    assert not lied(80.0, 98.9) and lied(80.0, 99.1)


def test_lie_after_the_deadline_does_not_make_it_up() -> None:
    assert lied(89.5, 90.0)


def test_what_a_hand_or_a_liar_that_polls_names_extends_no_deadline() -> None:
    assert lied(80.0, 89.1, who="hand")
    assert lied(80.0, 82.1, stuck="h/c1")


@breaks("L1", at="calm", alone=False, goes_on=True, kind="consumer")
@holds("L1", at="calm", goes_on=True, kind="liar")
def test_owner_znode_that_an_evicted_liar_has_left_is_not_judged(history: StoryHistory, kind: str) -> None:
    history.session("s2#1")
    history.event("start", "s2#1", kind=kind, group="g", consumer="s2")
    owner = OwnerRecord("s2-0", "s2", "s2-a", 1).to_bytes()
    history.commit("s2#1", Create(G.owner("flights", 9), owner, ephemeral=True))
    begin(history)
    history.to(90.0)
    history.stable("g")


@breaks("L1", at="late", witness="server calm, b#1 commit g/state, b#1 commit g/state", goes_on=True)
def test_a_group_that_does_not_stay_stable_breaks_it(history: StoryHistory) -> None:
    begin(history)
    history.stable("g")


@holds(at="late", goes_on=True, seconds=7.9)
@breaks("L1", at="late", goes_on=True, seconds=8.1)
def test_seat_given_up_restarts_the_deadline(history: StoryHistory, seconds: float) -> None:
    history.fenced("g", replace(history.states["g"], state=COMPLETING), Delete(G.seat("s9")))
    history.pass_(seconds)
    history.stable("g")


@breaks("L1", "and had to be at 78 s$", at="calm", goes_on=True)
def test_seat_given_up_after_the_deadline_excuses_no_violation(history: StoryHistory) -> None:
    begin(history)
    history.to(89.0)
    history.fenced("g", replace(history.states["g"], state=STABLE), Delete(G.seat("s9")))


@pytest.mark.parametrize("is_static", [False, True])
@breaks("L1", at="calm", alone=False, goes_on=True)
def test_repeatedly_evicted_member_breaks_it_with_or_without_a_seat(history: StoryHistory, is_static: bool) -> None:
    for number in range(7):
        life = history.lives["s3"]
        seat = [Delete(G.seat("s3"))] if is_static else []
        evicted = [*history.end_of(life, "evicted"), Delete(G.id("s3")), *seat]
        history.fenced("g", replace(history.states["g"], state=COMPLETING), *evicted)
        history.pass_(1.0)
        history.halt(life, frozenset(life.channel.running), "lost")
        history.register(life, f"s3-{number}")
        if is_static:
            history.commit(life.who, Create(G.seat("s3"), b"{}"))
        history.pass_(4.0)


@breaks(
    "L1", "s2 does not run its target", at="before calm", witness="b#1 commit g/state, server calm, server end",
    goes_on=True,
)  # fmt: skip
def test_consumer_that_does_not_run_its_target_breaks_it_despite_a_stable_state(history: StoryHistory) -> None:
    life = history.lives["s2"]
    history.halt(life, frozenset({P3}), "revoked")
    history.set_channel(life, life.channel.without([P3]), *history.released(life, [P3]))


def test_late_member_must_get_its_share_in_time() -> None:
    def happen(history: StoryHistory) -> None:
        history.register(history.consumer("s9#1", "g"), "s9-a")

    verdicts = spoilt("late", happen, goes_on=True)

    assert [verdict.invariant for verdict in verdicts.broken] == ["L1", "L2"]


def test_nothing_is_decided_without_a_calm() -> None:
    verdict = changed(lambda events: events.remove(next(e for e in events if e["event"] == "calm")))["L1"]

    assert (verdict.outcome, verdict.why, verdict.is_due) == ("not decided", "there is no `calm` event", False)


def test_a_history_that_ends_too_early_decides_nothing() -> None:
    def cut(events: list[Made]) -> None:
        end = events.pop()
        del events[next(n for n, event in enumerate(events) if event["at"] > 77) :]
        events.append({**end, "at": 77.0})

    verdict = changed(cut)["L1"]

    assert (verdict.outcome, verdict.is_due) == ("not decided", True)
    assert verdict.why == "the history ends at 77 s, before 78 s"


def test_a_history_without_an_end_decides_nothing() -> None:
    verdict = changed(lambda events: events.pop())["L1"]

    assert (verdict.outcome, verdict.why, verdict.is_due) == ("not decided", "the history has no `end`", True)


@holds(at="before calm", goes_on=True)
def test_a_paused_group_is_not_judged(history: StoryHistory) -> None:
    begin(history)
    history.hand(Create(PAUSED, PausedRecord(groups={"g": Pause("ann", 0)}).to_bytes()))


@pytest.mark.parametrize("data", [b"?", b'{"state":"PreparingRebalance"}'])
@holds(at="before calm", goes_on=True)
def test_group_is_not_judged_while_its_state_is_a_manual_edit(history: StoryHistory, data: bytes) -> None:
    history.hand(SetData(G.state, data))


@holds(at="handed on", goes_on=True)
def test_lost_state_extends_the_deadline_by_forty_seconds(history: StoryHistory) -> None:
    history.to(40.0)
    before = history.states["g"]
    history.hand(SetData(G.state, b"?"))
    history.fenced("g", replace(before, state=COMPLETING))
    history.to(44.0)
    history.states["g"] = before
    history.stable("g")


def test_group_with_a_registration_made_unreadable_manually_is_not_judged() -> None:
    def happen(history: StoryHistory) -> None:
        history.hand(SetData(G.id("s3"), b"?"))
        begin(history)

    assert spoilt("before calm", happen, goes_on=True)["L1"].outcome == "held"


@pytest.mark.parametrize("with_group", [True, False])
def test_group_created_by_an_operator_loses_no_state_and_no_time(with_group: bool) -> None:
    def happen(history: StoryHistory) -> None:
        hand = next(event for event in history.events if event["who"] == "hand")
        paths = [G.root, G.state] if with_group else [G.state]
        data = GroupState().to_bytes().decode()
        hand["ops"] += [{"op": "create", "path": path, "data": data, "ephemeral": False} for path in paths]
        history.event("calm", "server")
        history.to(history.now + 20.0)
        history.event("end", "server")

    assert (spoilt("stable", happen)["L1"].outcome == "held") is with_group

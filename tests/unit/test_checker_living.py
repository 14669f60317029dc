"""S7 by the protocol: what lives is neither ended nor removed without a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.records import Registration, Seat
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, names, only, spoilt

LIMIT_S = 9.0
IDS = Delete(G.id("s2"))


def ends(
    reason: str, *more: Operation, after_s: float = 0.0, before: Callable[[StoryHistory], object] = lambda history: None
) -> Callable[[StoryHistory], None]:
    """The coordinator ends s2, which has applied its last command just now."""

    def happen(history: StoryHistory) -> None:
        before(history)
        life = history.lives["s2"]
        done_at = next(
            event["at"]
            for event in reversed(history.events)
            if event["event"] == "commit" and event["who"] == "s2#1" and len(event["ops"]) > 2
        )
        history.to(round(max(history.now, done_at + after_s - 0.01), 3))
        state = replace(history.states["g"], marks=(history.mark(life),))
        history.fenced("g", state, *history.end_of(life, reason), *more)

    return happen


def test_an_incarnation_that_is_ended_while_its_registration_is_there_breaks_it() -> None:
    finding = only(spoilt("joined", ends("its session ended")), "S7")

    assert "s2 of group g (incarnation s2-a) was ended" in finding.why
    assert names(finding) == ["s2#1 commit channel/s2", "b#1 commit g/state"]


def test_a_registration_that_is_removed_without_an_eviction_breaks_it() -> None:
    finding = only(spoilt("joined", ends("its session ended", IDS)), "S7")

    assert "while it lived, and it was not evicted: its session ended" in finding.why


@pytest.mark.parametrize("reason", ["refused: no common strategy", "removed: disk replaced"])
def test_a_member_that_lives_may_be_refused_or_removed(reason: str) -> None:
    held(spoilt("joined", ends(reason, IDS)))


def test_an_incarnation_without_its_registration_may_be_ended() -> None:
    held(spoilt("joined", ends("its session ended", before=lambda history: history.hand(IDS))))


def test_an_eviction_before_its_time_breaks_it() -> None:
    reason = "evicted: it gave no sign of life"

    finding = only(spoilt("joined", ends(reason, IDS, after_s=0.95 * LIMIT_S)), "S7")

    assert "as evicted, before its max_poll_interval_ms of 9 s was over" in finding.why
    held(spoilt("joined", ends(reason, IDS, after_s=0.99 * LIMIT_S)))


def test_an_eviction_counts_from_the_election_of_its_coordinator() -> None:
    def elects(history: StoryHistory) -> None:
        history.pass_(5.0)
        history.close(history.coordinator)
        history.session("a#1")
        history.elect("a#1")
        history.states["g"] = replace(history.states["g"], epoch=history.epoch)

    reason = "evicted: it gave no sign of life"

    finding = only(spoilt("joined", ends(reason, IDS, after_s=LIMIT_S, before=elects)), "S7")

    assert names(finding) == ["s2#1 commit channel/s2", "a#1 commit consumers/coordinator", "a#1 commit g/state"]
    held(spoilt("joined", ends(reason, IDS, after_s=LIMIT_S + 5.1, before=elects)))


@holds("S7", at="joined", waits_s=LIMIT_S)
@breaks("S7", at="joined", alone=False, waits_s=0.9 * LIMIT_S)
def test_a_command_that_is_not_applied_for_so_long_is_a_reason_though_others_are(
    history: StoryHistory, waits_s: float
) -> None:
    history.fenced("g", history.states["g"], history.stop("s2", {"flights": "3"}))
    command, life = history.command_of("s2"), history.lives["s2"]
    history.pass_(waits_s)
    history.set_channel(life, replace(life.channel, command="command-0000000099"))
    state = replace(history.states["g"], marks=(history.mark(life),))
    history.fenced("g", state, *history.end_of(life, "evicted: it carried out no command"), IDS, Delete(command))


def test_a_live_channel_that_is_overwritten_with_the_end_of_another_life_breaks_it() -> None:
    def happen(history: StoryHistory) -> None:
        old = replace(history.lives["s2"].channel, incarnation="s2-old", running={}, ended="its session ended")
        history.fenced("g", history.states["g"], SetData(G.channel("s2"), old.to_bytes()))

    findings = spoilt("joined", happen)["S7"].findings

    assert "(incarnation s2-a) was overwritten" in findings[0].why
    assert "with that of incarnation s2-old" in findings[0].why


@pytest.mark.parametrize("is_static", [True, False])
def test_the_seat_of_a_member_that_lives_is_not_removed(is_static: bool) -> None:
    def happen(history: StoryHistory) -> None:
        instance = "s2" if is_static else None
        registration = Registration("s2-a", {"flights": 1}, instance_id=instance)
        history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), b""))
        history.fenced("g", history.states["g"], Delete(G.seat("s2")))

    if not is_static:
        held(spoilt("joined", happen))
        return
    finding = only(spoilt("joined", happen), "S7")
    assert "the seat of s2 in group g was removed" in finding.why
    assert names(finding) == ["s2#1 commit ids/s2", "b#1 commit g/state"]


@holds(at="joined")
def test_the_seat_of_a_member_whose_session_has_ended_is_removed(history: StoryHistory) -> None:
    registration = Registration("s2-a", {"flights": 1}, instance_id="s2")
    history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), b""))
    history.close("s2#1")
    ended = history.end_of(history.lives["s2"], "its session ended")
    history.fenced("g", history.states["g"], *ended, Delete(G.seat("s2")))


@breaks(
    "S7",
    "the registration of s2 in group g (incarnation s2-a) was removed",
    at="joined",
    witness="s2#1 commit channel/s2, b#1 commit g/state",
)
def test_a_registration_that_is_removed_while_its_channel_lives_breaks_it(history: StoryHistory) -> None:
    _fenced(history, IDS)


def _fenced(history: StoryHistory, *operations: Operation) -> None:
    history.fenced("g", history.states["g"], *operations)


def left_for(seconds: float, in_target: bool = True, removed: str | None = None) -> Callable[[StoryHistory], None]:
    """s2 leaves its seat of 6 s, which the coordinator removes after so many seconds."""

    def happen(history: StoryHistory) -> None:
        registration = Registration("s2-a", {"flights": 1}, instance_id="s2")
        seat = Seat(registration, 6000, removed).to_bytes()
        history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), seat))
        history.leave("s2")
        if not in_target:
            others = {name: target for name, target in history.states["g"].target.items() if name != "s2"}
            history.fenced("g", replace(history.states["g"], target=others, generation=9))
        history.pass_(seconds)
        history.fenced("g", history.states["g"], Delete(G.seat("s2")))

    return happen


def test_the_seat_of_a_member_that_has_left_is_kept_for_its_session_timeout() -> None:
    verdict = spoilt("joined", left_for(5.8))["S7"]

    assert "the seat of s2 in group g was removed" in verdict.why and "kept for 6 s" in verdict.why
    assert spoilt("joined", left_for(5.95))["S7"].outcome != "broken"


@pytest.mark.parametrize("happen", [left_for(1.0, in_target=False), left_for(1.0, removed="an operator says so")])
def test_a_seat_without_a_part_in_the_target_or_marked_as_removed_goes_at_once(
    happen: Callable[[StoryHistory], None],
) -> None:
    assert spoilt("joined", happen)["S7"].outcome != "broken"

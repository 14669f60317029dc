"""S7 by the protocol: what lives is neither ended nor removed without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.records import Registration, Seat
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds

LIMIT_S = 9.0
IDS = Delete(G.id("s2"))


def ends(history: StoryHistory, reason: str, *more: Operation, after_s: float = 0.0) -> None:
    """The coordinator ends s2, which has applied its last command just now."""
    life = history.lives["s2"]
    done_at = next(
        event["at"]
        for event in reversed(history.events)
        if event["event"] == "commit" and event["who"] == "s2#1" and len(event["ops"]) > 2
    )
    history.to(round(max(history.now, done_at + after_s - 0.01), 3))
    state = replace(history.states["g"], marks=(history.mark(life),))
    history.fenced("g", state, *history.end_of(life, reason), *more)


@breaks(
    "S7", "s2 of group g (incarnation s2-a) was ended", at="joined",
    witness="s2#1 commit channel/s2, b#1 commit g/state",
)  # fmt: skip
def test_an_incarnation_that_is_ended_while_its_registration_is_there_breaks_it(history: StoryHistory) -> None:
    ends(history, "its session ended")


@breaks("S7", "while it lived, and it was not evicted: its session ended", at="joined")
def test_a_registration_that_is_removed_without_an_eviction_breaks_it(history: StoryHistory) -> None:
    ends(history, "its session ended", IDS)


@pytest.mark.parametrize("reason", ["refused: no common strategy", "removed: disk replaced"])
@holds(at="joined")
def test_a_member_that_lives_may_be_refused_or_removed(history: StoryHistory, reason: str) -> None:
    ends(history, reason, IDS)


@holds(at="joined")
def test_an_incarnation_without_its_registration_may_be_ended(history: StoryHistory) -> None:
    history.hand(IDS)
    ends(history, "its session ended")


@breaks("S7", "as evicted, before its max_poll_interval_ms of 9 s was over", at="joined", after_s=0.95 * LIMIT_S)
@holds(at="joined", after_s=0.99 * LIMIT_S)
def test_an_eviction_before_its_time_breaks_it(history: StoryHistory, after_s: float) -> None:
    ends(history, "evicted: it gave no sign of life", IDS, after_s=after_s)


@breaks(
    "S7", at="joined", witness="s2#1 commit channel/s2, a#1 commit consumers/coordinator, a#1 commit g/state",
    after_s=LIMIT_S,
)  # fmt: skip
@holds(at="joined", after_s=LIMIT_S + 5.1)
def test_an_eviction_counts_from_the_election_of_its_coordinator(history: StoryHistory, after_s: float) -> None:
    history.pass_(5.0)
    history.close(history.coordinator)
    history.session("a#1")
    history.elect("a#1")
    history.states["g"] = replace(history.states["g"], epoch=history.epoch)
    ends(history, "evicted: it gave no sign of life", IDS, after_s=after_s)


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


@breaks("S7", "(incarnation s2-a) was overwritten", "with that of incarnation s2-old", at="joined", alone=False)
def test_a_live_channel_that_is_overwritten_with_the_end_of_another_life_breaks_it(history: StoryHistory) -> None:
    old = replace(history.lives["s2"].channel, incarnation="s2-old", running={}, ended="its session ended")
    history.fenced("g", history.states["g"], SetData(G.channel("s2"), old.to_bytes()))


@breaks(
    "S7", "the seat of s2 in group g was removed", at="joined", witness="s2#1 commit ids/s2, b#1 commit g/state",
    instance="s2",
)  # fmt: skip
@holds(at="joined", instance=None)
def test_the_seat_of_a_member_that_lives_is_not_removed(history: StoryHistory, instance: str | None) -> None:
    registration = Registration("s2-a", {"flights": 1}, instance_id=instance)
    history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), b""))
    history.fenced("g", history.states["g"], Delete(G.seat("s2")))


@holds(at="joined")
def test_the_seat_of_a_member_whose_session_has_ended_is_removed(history: StoryHistory) -> None:
    registration = Registration("s2-a", {"flights": 1}, instance_id="s2")
    history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), b""))
    history.close("s2#1")
    ended = history.end_of(history.lives["s2"], "its session ended")
    history.fenced("g", history.states["g"], *ended, Delete(G.seat("s2")))


@breaks(
    "S7", "the registration of s2 in group g (incarnation s2-a) was removed", at="joined",
    witness="s2#1 commit channel/s2, b#1 commit g/state",
)  # fmt: skip
def test_a_registration_that_is_removed_while_its_channel_lives_breaks_it(history: StoryHistory) -> None:
    _fenced(history, IDS)


def _fenced(history: StoryHistory, *operations: Operation) -> None:
    history.fenced("g", history.states["g"], *operations)


@pytest.mark.parametrize(("in_target", "removed"), [(False, None), (True, "an operator says so")])
@holds("S7", at="joined", seconds=1.0)
def test_a_seat_without_a_part_in_the_target_or_marked_as_removed_goes_at_once(
    history: StoryHistory, seconds: float, in_target: bool, removed: str | None
) -> None:
    leaves_its_seat(history, seconds, in_target, removed)


@breaks("S7", "the seat of s2 in group g was removed", "kept for 6 s", at="joined", alone=False, seconds=5.8)
@holds("S7", at="joined", seconds=5.95)
def test_the_seat_of_a_member_that_has_left_is_kept_for_its_session_timeout(
    history: StoryHistory, seconds: float
) -> None:
    leaves_its_seat(history, seconds)


def leaves_its_seat(history: StoryHistory, seconds: float, in_target: bool = True, removed: str | None = None) -> None:
    """s2 leaves its seat of 6 s, which the coordinator removes after so many seconds."""
    registration = Registration("s2-a", {"flights": 1}, instance_id="s2")
    seat = Seat(registration, 6000, removed).to_bytes()
    history.commit("s2#1", SetData(G.id("s2"), registration.to_bytes()), Create(G.seat("s2"), seat))
    history.leave("s2")
    if not in_target:
        others = {name: target for name, target in history.states["g"].target.items() if name != "s2"}
        history.fenced("g", replace(history.states["g"], target=others, generation=9))
    history.pass_(seconds)
    history.fenced("g", history.states["g"], Delete(G.seat("s2")))

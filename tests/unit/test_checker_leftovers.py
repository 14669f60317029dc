"""S7: nothing of ended incarnations remains, and what lives is neither ended nor removed without a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.paths import PAUSED
from coordinator.zk.znodes.records import OwnerRecord, Pause, PausedRecord, Registration, Seat
from drills.checker import check
from tests.support.made_histories import Made, edited
from tests.support.made_story import G, H, StoryHistory, story
from tests.support.spoilt import breaks, changed, held, holds


def without(*paths: str, verb: str = "delete", skip: int = 0) -> Callable[[list[Made]], None]:
    """Takes the operations on some paths out of a history."""

    def drop(events: list[Made]) -> None:
        found = [(event, op) for event in events if event["event"] == "commit" for op in event["ops"]]
        for event, op in [(event, op) for event, op in found if op["op"] == verb and op["path"] in paths][skip:]:
            event["ops"].remove(op)

    return drop


@breaks(
    "S7", "owner flights-9 of group g is dead since 70.02 s, and there at 110 s", at="before calm",
    witness="server closed, server end", goes_on=True,
)  # fmt: skip
def test_an_ephemeral_that_outlives_its_session_breaks_it(history: StoryHistory) -> None:
    history.session("x#1")
    history.commit("x#1", Create(G.owner("flights", 9), b"{}", ephemeral=True))
    del history.tree[G.owner("flights", 9)]
    history.close("x#1")


@breaks("S7", "the registration of x in group g", at="before calm", goes_on=True)
def test_a_registration_that_outlives_its_session_breaks_it(history: StoryHistory) -> None:
    history.session("x#1")
    history.commit("x#1", Create(G.id("x"), b"{}", ephemeral=True))
    del history.tree[G.id("x")]
    history.close("x#1")


@breaks("S7", at="before calm", witness="s0#1 commit flights/9, server end", goes_on=True)
def test_owner_of_an_ended_incarnation_breaks_it(history: StoryHistory) -> None:
    owner = OwnerRecord("s1-0", "s1", "s1-a", 3).to_bytes()
    history.commit("s0#1", Create(G.owner("flights", 9), owner, ephemeral=True))


@breaks(
    "S7", "command-0000000002 for s1 of group g is dead since 45.01 s", alone=False,
    witness="s1#1 commit channel/s1, server end",
)  # fmt: skip
def test_command_for_an_ended_incarnation_breaks_it(events: list[Made]) -> None:
    """The command withdrawn at the eviction of its consumer remains."""
    without(f"{G.channel('s1')}/command-0000000002")(events)


def keep_running(events: list[Made]) -> None:
    """A consumer that leaves keeps a partition in its channel, and so the channel is not collected."""
    without(H.channel("c2"))(events)
    left = next(e for e in events if e["event"] == "commit" and '"ended":"left"' in e["ops"][0].get("data", ""))
    left["ops"][0]["data"] = edited(left["ops"][0]["data"], running={"old": {"0": 5}})


@breaks("S7", "old-0 in `running` of c2, ended, in group h", witness="c2#1 commit channel/c2, server end")
def test_ended_channel_with_a_running_partition_breaks_it(events: list[Made]) -> None:
    keep_running(events)


@breaks(
    "S7", "the channel of c2 in group h is dead since 65.01 s", witness="c2#1 commit channel/c2, server end",
)  # fmt: skip
def test_channel_of_a_consumer_removed_long_ago_breaks_it(events: list[Made]) -> None:
    without(H.channel("c2"))(events)


@breaks(
    "S7", "segment-0000000003 of group g, finished by every query, is dead since 3.06 s",
    witness="q#1 commit queries/q, server end",
)  # fmt: skip
def test_segment_finished_by_every_query_breaks_it(events: list[Made]) -> None:
    without(G.segment("segment-0000000003"))(events)


@holds()
def test_finished_segment_may_remain_for_its_retention(events: list[Made]) -> None:
    without(G.segment("segment-0000000003"))(events)
    events[0]["bounds"] = {**events[0]["bounds"], "segment_retention": 3600.0}


def test_segment_unfinished_by_one_query_may_remain() -> None:
    def happen(history: StoryHistory) -> None:
        history.query("p#1", "g", "p", "r1", 0)

    events = story("queried", happen)
    without(G.segment("segment-0000000003"), G.segment("segment-0000000002"))(events)
    without(G.segment("segment-0000000001"), G.segment("segment-0000000000"))(events)
    held(check(events))


def test_segment_unfinished_by_a_query_whose_session_ended_may_remain_for_a_while() -> None:
    def happen(history: StoryHistory) -> None:
        history.session("u#1")
        history.query("u#1", "g", "u", "r1", 0, ephemeral=True)
        history.close("u#1")

    events = story("queried", happen)
    without(G.segment("segment-0000000003"))(events)
    held(check(events))


def test_uncollectable_znodes_are_reported_as_not_decided() -> None:
    def sleep(events: list[Made]) -> None:
        without(H.channel("c2"))(events)
        for event in [e for e in events if e["event"] == "lease" and e["role"] == "coordinator" and e["at"] > 80]:
            events.remove(event)

    verdict = changed(sleep)["S7"]

    assert (verdict.outcome, verdict.is_due) == ("not decided", False)
    assert verdict.why == "the channel of c2 in group h remains, and no coordinator could act for long enough"


def test_znodes_removed_by_turns_may_remain_while_the_group_is_paused() -> None:
    def happen(history: StoryHistory) -> None:
        pause = PausedRecord(groups={"h": Pause("ann", 0)})
        history.hand(Create(PAUSED, pause.to_bytes()))

    events = story("left", happen)
    keep_running(events)
    verdict = check(events)["S7"]

    assert (verdict.outcome, verdict.why) == (
        "not decided",
        "old-0 in `running` of c2, ended, in group h remains, and no coordinator could act for long enough",
    )  # fmt: skip


def test_history_without_an_end_decides_nothing_about_leftovers() -> None:
    verdict = changed(lambda events: events.pop())["S7"]

    assert (verdict.outcome, verdict.why, verdict.is_due) == ("not decided", "the history has no `end`", True)


def test_manually_created_znodes_may_remain() -> None:
    def happen(history: StoryHistory) -> None:
        history.hand(Create(f"{H.channel('c2')}/command-0000000088", json.dumps({"option": "dance"}).encode()))

    events = story("left", happen)
    without(H.channel("c2"))(events)

    assert check(events)["S7"].outcome == "held"


# ---- by the protocol: what lives


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


@holds("S7", at="joined")
def test_the_end_of_a_life_whose_channel_a_hand_deleted_may_meet_the_next_channel(history: StoryHistory) -> None:
    ended = history.end_of(history.lives["s2"], "its session ended")
    history.hand(Delete(G.channel("s2")))
    history.close("s2#1")
    history.register(history.consumer("s2#2", "g"), "s2-b")
    history.fenced("g", history.states["g"], *ended[:1])


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

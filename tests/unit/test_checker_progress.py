"""L3 and L4: the stuck delay no others; churn does not livelock, and does not postpone an eviction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.zk.store import Create, Delete
from coordinator.zk.znodes.group_state import PREPARING, STABLE, Mark
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import PAUSED, Brokers
from coordinator.zk.znodes.records import Pause, PausedRecord, Topic
from tests.support.made_histories import Happening, parted
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, changed, holds, names, spoilt

# ---- L3: a stuck group or consumer delays no partitions of others


SHARES = {"s0": {"flights": "0"}, "s1": {}, "s2": {"flights": "3"}, "s3": {"flights": "1-2"}}
"""What group g shall run while s1 hangs and still has flights-2; flights-1 is free."""


# A change is begun while s1 hangs, and not finished; 8 s are allowed, and a second for the check.


def grow_h(history: StoryHistory) -> None:
    """Group h has one partition more in its target, and gets no command."""
    history.topic("cities-1", "C1", 4)
    history.fenced("h", history.rebalance("h", {"c1": {"cities-1": "0-3"}}))


def free_one(history: StoryHistory, **more: Any) -> None:
    """Group g has flights-1, which is free, in its target, and no start is sent."""
    history.fenced("g", replace(history.rebalance("g", SHARES), state=PREPARING, **more))


@breaks(
    "L3", "group h has waited from 21 s", "s1#1 of another group was stuck", at="stuck",
    witness="server fault, b#1 commit h/state", lasts=10.0,
)  # fmt: skip
@holds(at="stuck", lasts=7.5)
def test_other_group_delayed_by_a_stuck_consumer_breaks_it(history: StoryHistory) -> None:
    grow_h(history)


@breaks(
    "L3", "flights-1 of group g was kept from s3 from", at="stuck", witness="server fault, b#1 commit g/state",
    lasts=10.0,
)  # fmt: skip
@holds(at="stuck", lasts=7.5)
def test_delayed_free_partition_of_the_same_group_breaks_it(history: StoryHistory) -> None:
    free_one(history)


@holds(at="stuck", lasts=10.0)
def test_partition_of_the_stuck_consumer_may_wait(history: StoryHistory) -> None:
    """flights-2 too is assigned to s3, which runs flights-1 by then."""
    free_one(history)
    history.fenced("g", history.states["g"], history.start("s3", {"flights": "1"}))
    history.obey("s3")


@holds(at="stuck", lasts=10.0)
def test_marked_partition_may_wait(history: StoryHistory) -> None:
    free_one(history, marks=(Mark("s8", "s8-a", parted({"flights": "1"}), 4000, "evicted"),))


@holds(at="stuck", lasts=10.0)
def test_partition_in_a_command_to_another_consumer_may_wait(history: StoryHistory) -> None:
    free_one(history)
    history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))


@pytest.mark.parametrize("begin", [grow_h, free_one])
@holds(at="stuck", lasts=10.0)
def test_nothing_is_judged_during_another_fault(history: StoryHistory, begin: Happening) -> None:
    begin(history)
    history.event("fault", "server", kind="drop", servers=["1"])


@pytest.mark.parametrize("begin", [grow_h, free_one])
@holds("L3", at="stuck", lasts=10.0)
def test_invariant_does_not_apply_without_a_stuck_consumer(history: StoryHistory, begin: Happening) -> None:
    history.events[next(n for n, e in enumerate(history.events) if e.get("kind") == "hang")]["until"] = 20.1
    begin(history)


@holds(at="stuck", lasts=10)
def test_group_of_the_stuck_consumer_may_wait_for_it(history: StoryHistory) -> None:
    """Nothing happens."""


@holds(at="stuck", lasts=10.0)
def test_stuck_node_does_not_count_as_a_stuck_consumer(history: StoryHistory) -> None:
    grow_h(history)
    history.event("fault", "server", kind="hang", process="a#1", until=45.0)


@holds(at="stuck", lasts=7)
def test_every_change_restarts_the_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.pass_(5)
    history.topic("cities-1", "C1", 5)
    history.fenced("h", history.rebalance("h", {"c1": {"cities-1": "0-4"}}))


@holds(at="stuck", lasts=7)
def test_group_that_becomes_stable_in_between_restarts_the_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.fenced("h", history.states["h"], history.start("c1", {"cities-1": "0-3"}))
    history.pass_(5)
    history.obey("c1")
    history.stable("h")
    history.fenced("h", replace(history.states["h"], state=PREPARING))


@holds(at="stuck", lasts=10.0)
def test_a_paused_group_may_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.hand(Create(PAUSED, PausedRecord(everything=Pause("ann", 0)).to_bytes()))


def test_consumer_still_stuck_at_calm_may_delay_no_other_group() -> None:
    def happen(history: StoryHistory) -> None:
        history.events[-1]["stuck"] = ["s1#1"]
        history.to(80)
        history.fenced("h", replace(history.states["h"], state=PREPARING))
        history.pass_(12)
        history.stable("h")

    verdicts = spoilt("calm", happen, goes_on=True)

    assert [verdict.invariant for verdict in verdicts.broken] == ["L1", "L3"]
    assert names(verdicts["L3"].findings[0]) == ["server calm", "b#1 commit h/state"]


def with_turns(history: StoryHistory) -> None:
    """Group g has a free partition, and a turn takes a second at most, when nothing hinders a coordinator."""
    history.events[0]["bounds"]["turn"] = 1.0
    history.events[:] = [event for event in history.events if event.get("kind") != "hang"]
    free_one(history)


@breaks("L3", "flights-1 of group g was kept from s3 from", at="stuck", lasts=4.0)
def test_with_a_bound_for_turns_a_free_partition_waits_for_no_longer_and_for_nobody(history: StoryHistory) -> None:
    with_turns(history)


@holds(at="stuck", lasts=1.5)
def test_within_the_bound_for_turns_a_free_partition_may_wait(history: StoryHistory) -> None:
    with_turns(history)


@holds(at="stuck", lasts=4.0, fault={"kind": "drop", "process": "b#1"})
@holds(at="stuck", lasts=4.0, fault={"kind": "cut-server"})
@breaks("L3", at="stuck", lasts=4.0, fault={"kind": "drop", "process": "s0#1"})
@breaks("L3", at="stuck", lasts=4.0, fault={"kind": "join", "group": "g"})
def test_what_hits_a_node_or_a_server_excuses_a_turn_and_what_hits_members_does_not(
    history: StoryHistory, fault: dict[str, Any]
) -> None:
    with_turns(history)
    history.event("fault", "server", **fault)


@holds(at="stuck", lasts=4.0)
def test_a_member_with_a_command_to_obey_may_wait_for_more(history: StoryHistory) -> None:
    with_turns(history)
    history.fenced("g", history.states["g"], history.stop("s3", {"flights": "2"}))


# ---- L4: churn does not livelock, and does not postpone an eviction


# s1 hangs with a command since 20.02 s; 9 s and 7 s are allowed.


def nothing(history: StoryHistory) -> None:
    """No events."""


def replace_command(history: StoryHistory) -> None:
    """A turn withdraws the command of s1; the next sends another."""
    history.fenced("g", history.states["g"], Delete(history.command_of("s1")))
    history.pass_(0.3)
    history.fenced("g", history.states["g"], history.stop("s1"))


@breaks(
    "L4", "s1 of group g has carried out none of its commands from 20.03 s", "over its max_poll_interval_ms of 9 s",
    at="stuck", witness="s1#1 commit channel/s1, b#1 commit g/state", until=38.02,
)  # fmt: skip
@holds(at="stuck", until=35.92)
def test_a_consumer_that_is_not_evicted_in_time_breaks_it(history: StoryHistory) -> None:
    nothing(history)


@breaks("L4", at="stuck", until=38.02)
def test_churn_that_replaces_its_commands_does_not_postpone_an_eviction(history: StoryHistory) -> None:
    for _ in range(5):
        history.pass_(3)
        replace_command(history)


def remove_command(history: StoryHistory) -> None:
    """s1 acknowledges its command and carries it out not; a second later it is sent again."""
    life, path = history.lives["s1"], history.command_of("s1")
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2]), Delete(path))
    history.pass_(1.0)
    history.fenced("g", history.states["g"], history.stop("s1"))


@breaks("L4", "s1 of group g has carried out none of its commands from 20.03 s", at="stuck", alone=False, until=38.02)
def test_commands_that_it_removes_undone_do_not_postpone_an_eviction(history: StoryHistory) -> None:
    for _ in range(5):
        history.pass_(2)
        remove_command(history)


@holds("L4", at="stuck", until=38.02)
def test_command_that_is_begun_and_stays_restarts_the_wait(history: StoryHistory) -> None:
    history.pass_(10)
    life, path = history.lives["s1"], history.command_of("s1")
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2]))


@holds(at="stuck", until=38.02)
def test_consumer_without_a_command_for_a_while_restarts_the_wait(history: StoryHistory) -> None:
    history.pass_(10)
    history.fenced("g", history.states["g"], Delete(history.command_of("s1")))
    history.pass_(3)
    history.fenced("g", history.states["g"], history.stop("s1"))


def withdraws(history: StoryHistory, share: str) -> None:
    """Turns after which s1 has no command for a short while, in a generation that gives it these partitions."""
    for _ in range(5):
        history.pass_(3)
        state = history.states["g"]
        target = {**state.target, **history.target({"s1": {"flights": share}})}
        history.fenced("g", replace(state, target=target), Delete(history.command_of("s1")))
        history.pass_(0.3)
        history.fenced("g", history.states["g"], history.stop("s1"))


@holds("L4", at="stuck", until=38.02)
def test_consumer_without_a_command_that_waits_for_others_restarts_the_wait(history: StoryHistory) -> None:
    withdraws(history, "2-3")


@breaks("L4", at="stuck", alone=False, until=38.02)
def test_consumer_that_runs_more_than_its_target_does_not_wait_for_others(history: StoryHistory) -> None:
    withdraws(history, "3")


@breaks("L4", at="stuck", alone=False, until=38.02)
def test_consumer_with_owner_znodes_of_what_it_lacks_does_not_wait_for_others(history: StoryHistory) -> None:
    life = history.lives["s1"]
    history.set_channel(life, replace(life.channel, running={}))
    withdraws(history, "2")


@holds(at="stuck", until=38.02)
def test_consumer_that_applies_a_command_restarts_the_wait(history: StoryHistory) -> None:
    history.pass_(10)
    history.obey("s1")
    history.fenced("g", history.states["g"], history.start("s1", {}))


def test_consumer_that_registers_again_restarts_the_wait() -> None:
    def register(history: StoryHistory) -> None:
        history.pass_(10)
        life = history.lives["s1"]
        history.halt(life, frozenset(life.channel.running), "lost")
        history.register(life, "s1-x")
        history.fenced("g", history.states["g"], history.start("s1", {}))

    verdict = spoilt("stuck", register, until=38.02)["L4"]

    assert verdict.outcome == "not decided" and not verdict.findings


@holds("L4", at="stuck", until=50.02)
@breaks("L4", at="stuck", alone=False, until=56.02)
def test_elected_coordinator_restarts_the_wait(history: StoryHistory) -> None:
    history.pass_(10)
    history.die("b#1")
    history.pass_(6)
    history.close("b#1")
    history.session("a#1")
    history.elect("a#1")


@holds("L4", at="stuck", until=50.02)
def test_a_consumer_of_a_paused_group_is_not_evicted(history: StoryHistory) -> None:
    history.hand(Create(PAUSED, PausedRecord(everything=Pause("ann", 0)).to_bytes()))


def next_generation(history: StoryHistory) -> None:
    """A generation that changes nothing."""
    state = history.states["g"]
    history.fenced("g", replace(state, state=STABLE, generation=state.generation + 1))


@breaks(
    "L4", "generation 7 of group g begins at 88.02 s, and nothing has changed since 60.02 s", at="collecting",
    witness="b#1 commit g/state, server calm, b#1 commit g/state", goes_on=True,
)  # fmt: skip
def test_generation_without_a_change_long_after_calm_breaks_it(history: StoryHistory) -> None:
    next_generation(history)


@holds(at="calm", goes_on=True, loses_an_owner=False)
@holds(at="collecting", goes_on=True, loses_an_owner=True)
def test_a_generation_may_begin_soon_after_calm_or_after_a_change(history: StoryHistory, loses_an_owner: bool) -> None:
    if loses_an_owner:
        history.hand(Delete(G.owner("flights", 0)))
    next_generation(history)


@holds(at="collecting", goes_on=True)
def test_a_generation_may_begin_with_the_end_of_a_seat(history: StoryHistory) -> None:
    state = history.states["g"]
    history.fenced("g", replace(state, state=STABLE, generation=state.generation + 1), Delete(G.seat("s9")))


def test_without_a_calm_it_is_not_decided() -> None:
    verdict = changed(lambda events: events.remove(next(e for e in events if e["event"] == "calm")))["L4"]

    assert (verdict.outcome, verdict.why, verdict.is_due) == ("not decided", "there is no `calm` event", False)


# ---- by the protocol: starts and generations are not repeated


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


def loses_an_owner_for_a_moment(history: StoryHistory) -> None:
    path = G.owner(*TopicPartition("flights", 3))
    owner = history.tree[path][0].encode()
    history.commit("s2#1", Delete(path))
    history.commit("s2#1", Create(path, owner, ephemeral=True))


def is_edited(history: StoryHistory) -> None:
    history.hand(Delete(G.rebalance(1)))


def grows(history: StoryHistory) -> None:
    history.hand(history.put(Brokers().topic("flights"), Topic("flights", "T1", tuple(range(5))).to_bytes()))


def is_joined(history: StoryHistory) -> None:
    history.register(history.consumer("s9#1", "g"), "s9-a")


@pytest.mark.parametrize("change", [loses_an_owner, loses_an_owner_for_a_moment, is_edited, grows, is_joined])
@holds(at="joined")
def test_a_generation_with_the_same_target_has_a_reason(history: StoryHistory, change: Happening) -> None:
    change(history)
    begin_again(history)


@holds(at="joined")
def test_a_generation_with_the_same_target_may_have_another_strategy(history: StoryHistory) -> None:
    begin_again(history, strategy="sticky")

"""S6: what the consumer removes is done, what the coordinator removes never applied. L2: every change is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.zk.store import Check, Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH, PAUSED, Brokers
from coordinator.zk.znodes.records import ASSIGNMENT_FAILED, Channel, Command, Pause, PausedRecord, Registration
from drills.checker import Verdicts
from tests.support.made_histories import Made
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, names, only, spoilt

P3 = TopicPartition("flights", 3)


def acknowledges(history: StoryHistory, consumer: str, **more: object) -> str:
    """A consumer removes the command in its channel and names it, with only the changes `more`; returns its name."""
    life, path = history.lives[consumer], history.command_of(consumer)
    command = Command.parse(path, history.tree[path][0].encode())
    name = path.rpartition("/")[2]
    done = replace(life.channel, epoch=command.epoch, generation=command.generation, command=name, **more)  # type: ignore[arg-type]
    history.set_channel(life, done, Delete(path))
    return name


@breaks(
    "S6", "a stop, was acknowledged by s1 of group g", "flights-3 still runs", at="stop sent",
    witness="b#1 commit g/state, s1#1 commit channel/s1",
)  # fmt: skip
def test_acknowledged_stop_whose_partition_still_runs_breaks_it(history: StoryHistory) -> None:
    acknowledges(history, "s1")


@breaks("S6", "flights-3 still runs", at="joined")
def test_full_stop_that_leaves_a_partition_running_breaks_it(history: StoryHistory) -> None:
    history.fenced("g", history.states["g"], history.stop("s2"))
    acknowledges(history, "s2")


@breaks(
    "S6", "flights-3 is still fetched by s1#1",
    witness="s1#1 begin, s1#1 lease, b#1 commit g/state, s1#1 commit channel/s1",
)  # fmt: skip
def test_acknowledged_stop_whose_partition_is_still_fetched_breaks_it(events: list[Made]) -> None:
    halt = next(e for e in events if e["event"] == "halt" and e["who"] == "s1#1")
    done = next(e for e in events[events.index(halt) :] if e["event"] == "commit")
    events.remove(halt)
    events.insert(events.index(done) + 1, {**halt, "at": done["at"]})


@breaks(
    "S6", "a start, was acknowledged by s2", "flights-3 neither runs nor is refused", at="start sent",
    witness="b#1 commit g/state, s2#1 commit channel/s2",
)  # fmt: skip
def test_acknowledged_start_whose_partition_does_not_run_breaks_it(history: StoryHistory) -> None:
    acknowledges(history, "s2")


@holds(at="start sent")
def test_a_start_may_be_refused(history: StoryHistory) -> None:
    acknowledges(history, "s2", refused=frozenset({P3}))


@breaks(
    "S6", "was removed by s2 of group g", "neither applied nor stale$", at="start sent",
    witness="b#1 commit g/state, s2#1 commit s2/command-0000000000",
)  # fmt: skip
def test_command_removed_unapplied_by_its_own_consumer_breaks_it(history: StoryHistory) -> None:
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@holds(at="joined", stale={"incarnation": "s2-old"})
@holds(at="joined", stale={"epoch": 1})
@holds(at="joined", stale={"generation": 1})
def test_a_stale_command_may_be_removed_unapplied(history: StoryHistory, stale: dict[str, object]) -> None:
    history.fenced("g", history.states["g"], history.start("s2", {"flights": "3"}, **stale))
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@holds(at="joined")
def test_unreadable_command_may_be_removed_unapplied(history: StoryHistory) -> None:
    create = Create(G.command_prefix("s2"), b"{}", sequential=True)
    history.fenced("g", history.states["g"], create)
    history.commit("s2#1", Check(G.channel("s2"), 1), Delete(history.command_of("s2")))


@breaks(
    "S6", "command-0000000000 of s2 in group g was withdrawn and then applied", at="start sent",
    witness="b#1 commit g/state, s2#1 commit channel/s2",
)  # fmt: skip
def test_withdrawn_command_that_is_applied_breaks_it(history: StoryHistory) -> None:
    path = history.command_of("s2")
    history.fenced("g", history.states["g"], Delete(path))
    life = history.lives["s2"]
    history.set_channel(life, replace(life.channel, command=path.rpartition("/")[2], epoch=2, generation=2))


@holds(at="start sent")
def test_command_may_be_withdrawn_while_it_is_applied_in_steps(history: StoryHistory) -> None:
    """The channel names it from its first commit on."""
    path = history.command_of("s2")
    life = history.lives["s2"]
    begun = replace(life.channel, command=path.rpartition("/")[2], epoch=2, generation=2)
    history.set_channel(life, begun, Check(path, -1))
    history.fenced("g", history.states["g"], Delete(path))
    history.set_channel(life, replace(begun, touched=1))


@holds(at="start sent")
def test_process_that_takes_a_name_over_removes_commands_to_the_earlier_process(history: StoryHistory) -> None:
    history.register(history.consumer("s2#2", "g"), "s2-x")


@holds(at="start sent")
def test_manually_created_or_removed_commands_are_not_judged(history: StoryHistory) -> None:
    history.hand(history.start("s0", {"flights": "0-1"}))
    history.commit("s0#1", Check(G.channel("s0"), 1), Delete(history.command_of("s0")))
    history.hand(Delete(history.command_of("s2")))
    history.hand(SetData(G.channel("s2"), b"{"))


# ---- commands of earlier coordinators and turns are withdrawn before others are sent


def elect_another(history: StoryHistory) -> None:
    """The other node is elected, and has taken no turn."""
    history.close(history.coordinator)
    history.session("a#1")
    history.elect("a#1")


@breaks(
    "S6", "of epoch 3 was sent to s0 of group g", "command-0000000000 of epoch 2 is pending in the channel of s2",
    at="start sent", witness="b#1 commit g/state, a#1 commit g/state", withdraws=False,
)  # fmt: skip
@holds(at="start sent", withdraws=True)
def test_a_start_beside_one_of_an_earlier_epoch_breaks_it(history: StoryHistory, withdraws: bool) -> None:
    command = history.command_of("s2")
    elect_another(history)
    state = replace(history.states["g"], epoch=history.epoch)
    gone = [Delete(command)] if withdraws else []
    history.fenced("g", state, *gone, history.start("s0", {"flights": "0-1"}))


@breaks("S6", "is pending in the channel of s0", at="joined", by_hand=False)
@holds(at="joined", by_hand=True)
def test_two_starts_in_one_channel_break_it_unless_made_by_hand(history: StoryHistory, by_hand: bool) -> None:
    if by_hand:
        history.hand(history.start("s0", {"flights": "0-1"}))
    history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))
    if not by_hand:
        history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))


@holds(at="joined")
def test_the_notice_of_a_failure_stays_beside_later_commands(history: StoryHistory) -> None:
    notice = Command(ASSIGNMENT_FAILED, history.epoch, history.states["g"].generation, "s0-a", ask="ask-0000000001")
    history.fenced(
        "g", history.states["g"], Create(G.command_prefix("s0"), notice.to_bytes(), sequential=True)
    )  # fmt: skip
    elect_another(history)
    state = replace(history.states["g"], epoch=history.epoch)
    history.fenced("g", state, history.start("s0", {"flights": "0-1"}))


@holds("S6", at="start sent", after_s=0.9, fault=False)
@breaks(
    "S6", "of epoch 2 was applied by s2 of group g", "the coordinator of epoch 3 has taken its turn", at="start sent",
    alone=False, after_s=1.1, fault=False,
)  # fmt: skip
@holds("S6", at="start sent", after_s=1.1, fault=True)
def test_a_start_of_an_earlier_epoch_applied_in_a_stable_group_breaks_it(
    history: StoryHistory, after_s: float, fault: bool
) -> None:
    elect_another(history)
    history.fenced("g", replace(history.states["g"], epoch=history.epoch, state="Stable"))
    history.pass_(0.1)
    if fault:
        history.event("fault", "server", kind="drop-connection", process="s2#1")
    history.pass_(after_s - 0.1)
    history.obey("s2")


@holds(at="start sent")
def test_a_start_of_an_earlier_epoch_may_be_applied_before_the_next_turn(history: StoryHistory) -> None:
    elect_another(history)
    history.commit(history.coordinator, Check(COORDINATOR_EPOCH, history.fence), Delete(G.id("nobody")))
    history.pass_(2.0)
    history.obey("s2")


# ---- L2: every change is seen though its watch event was lost


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

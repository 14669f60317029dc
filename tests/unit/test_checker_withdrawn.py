"""S6 by the protocol: commands of earlier coordinators and turns are withdrawn before others are sent."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.store import Check, Create, Delete
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from coordinator.zk.znodes.records import ASSIGNMENT_FAILED, Command
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds


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

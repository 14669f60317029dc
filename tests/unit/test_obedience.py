"""Which commands count as obeyed, and from when the eviction clock counts. No honest race is disobedience."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.planning.obedience import disobeyed, pause_after_losses_s, pause_after_s
from coordinator.planning.plan import Plan
from coordinator.planning.snapshot import ChannelView, SentCommand
from coordinator.rebalance.conduct import Conducts
from coordinator.zk.znodes.commands import ASSIGN, DRAIN, START_FETCHER, STOP_FETCHER, Command
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.znodes.records import Channel
from coordinator.zk.znodes.regions import Order, Progress
from tests.unit.manual import ManualRuntime

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
START = Command(START_FETCHER, 1, 2, "i", {"c-0": frozenset({P0, P1})}, topics={"t": "id"})
STOP = Command(STOP_FETCHER, 1, 2, "i", partitions=frozenset({P0}), topics={"t": "id"})
STOP_ALL = replace(STOP, partitions=NONE)
LED = replace(START, ask="ask-0000000001")
IN_REGION = replace(START, region=Order(7))


def view(*running: TopicPartition, sent: tuple[Command, ...] = (), **fields: Any) -> ChannelView:
    channel = Channel(
        "i", 1, **{"generation": 2, "running": dict.fromkeys(running, 5), "topics": {"t": "id"}, **fields}
    )
    return ChannelView("c", 1, channel, tuple(SentCommand(f"command-{n}", each) for n, each in enumerate(sent)))


@pytest.mark.parametrize(
    ("command", "before", "seen", "owners"),
    [
        (START, NONE, view(P0, P1), {P0, P1}),
        (START, frozenset({P0}), view(P0, P1), {P1}),  # the owner of what it ran before was removed
        (START, NONE, view(P0, refused=frozenset({P1})), {P0, P1}),  # an old owner is in the way
        (START, NONE, view(P0, refused=frozenset({P1})), {P0}),  # and gone by now
        (START, NONE, view(refused=frozenset({P0, P1})), set()),
        (LED, NONE, view(P0, P1, ask="ask-0000000001"), {P0, P1}),
        (IN_REGION, NONE, view(P0, P1, region=Progress(7, 7)), {P0, P1}),
        (STOP, frozenset({P0, P1}), view(P1), {P1}),
        (STOP_ALL, frozenset({P0, P1}), view(), set()),
    ],
)
def test_what_an_honest_member_leaves_is_obedience(
    command: Command, before: PartitionSet, seen: ChannelView, owners: set[TopicPartition]
) -> None:
    assert disobeyed(command, before, seen, frozenset(owners)) == ""


@pytest.mark.parametrize(
    ("command", "before", "seen", "owners", "why"),
    [
        (START, NONE, view(), set(), "it removed a start without running t-0, t-1"),
        (START, NONE, view(P0), {P0}, "it removed a start without running t-1"),
        (START, NONE, view(P0, P1), {P0}, "it runs t-1 without an owner znode"),
        (START, NONE, view(P0, P1, topics={"t": "other"}), {P0, P1}, "it runs t-0, t-1 under another topic id"),
        (START, NONE, view(P0, P1, generation=1), {P0, P1}, "it removed a start that its channel does not name"),
        (LED, NONE, view(P0, P1), {P0, P1}, "it removed a start that its channel does not name"),
        (IN_REGION, NONE, view(P0, P1, region=Progress(7)), {P0, P1}, "before its state was restored"),
        (STOP, frozenset({P0, P1}), view(P0, P1), {P0, P1}, "it acknowledged a stop, and still runs t-0"),
        (STOP_ALL, frozenset({P0, P1}), view(P1), {P1}, "it acknowledged a stop, and still runs t-1"),
    ],
)
def test_what_a_lying_member_leaves_is_named(
    command: Command, before: PartitionSet, seen: ChannelView, owners: set[TopicPartition], why: str
) -> None:
    assert why in disobeyed(command, before, seen, frozenset(owners))


def test_member_without_owners_is_judged_by_the_ask_that_it_runs() -> None:
    job = Command(START_FETCHER, 1, 2, "i", ask="ask-0000000001")
    assert not disobeyed(job, NONE, view(ask="ask-0000000001"), NONE, has_owners=False)
    assert disobeyed(job, NONE, view(), NONE, has_owners=False)
    assert not disobeyed(STOP_ALL, NONE, view(), NONE, has_owners=False)
    assert disobeyed(STOP_ALL, NONE, view(ask="ask-0000000001"), NONE, has_owners=False)


def test_pauses_grow_and_end() -> None:
    assert [pause_after_s(strikes, 0) for strikes in range(4)] == [0, 0, 1, 1]
    assert [pause_after_s(0, n) for n in (0, 1, 2, 3, 4, 5, 6, 99)] == [0, 0, 1, 2, 4, 8, 10, 10]


def test_generations_for_lost_owners_come_ever_more_rarely() -> None:
    assert [pause_after_losses_s(n) for n in (0, 1, 2, 3, 4, 7, 99)] == [0, 0, 0, 2, 4, 30, 30]


class Seen:
    """A member as one coordinator sees it, turn by turn."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.conducts = Conducts(self.runtime)

    def reads(self, seen: ChannelView, *owners: TopicPartition, after_s: float = 0.0) -> ChannelView:
        self.runtime.now += after_s
        return self.conducts.observed({"c": seen}, frozenset(owners), True)["c"]

    def sends(self, *commands: Command, withdraws: Command | None = None, is_written: bool = True) -> None:
        starts = tuple(("c", each) for each in commands)
        withdrawn = (("c", SentCommand("command-9", withdraws)),) if withdraws is not None else ()
        plan = Plan(GroupState(), starts=starts, withdrawn=withdrawn, unsettled=frozenset({"c"}))
        self.conducts.deciding(plan)
        if is_written:
            self.conducts.decided(plan)

    def settles(self) -> None:
        self.conducts.decided(Plan(GroupState()))


def test_eviction_clock_starts_when_the_command_is_sent() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    assert some.reads(view(sent=(START,)), after_s=7.5).waits_s == 7.5


def test_eviction_clock_ends_with_obedience_and_begins_again_with_the_next_command() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    assert some.reads(view(P0, P1), P0, P1, after_s=3).waits_s == 0
    some.sends(STOP)
    assert some.reads(view(P0, P1, sent=(STOP,)), P0, P1, after_s=1).waits_s == 1


def test_eviction_clock_goes_on_when_a_command_is_replaced_or_removed_unapplied() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    some.reads(view(sent=(START,)), after_s=2)
    some.sends(withdraws=START)
    assert some.reads(view(), after_s=0.1).waits_s == 0  # it has nothing to obey now
    some.sends(LED)
    assert some.reads(view(sent=(LED,)), after_s=1).waits_s == pytest.approx(3.1)
    after = some.reads(view(), after_s=1)
    assert (after.strikes, round(after.waits_s, 6)) == (1, 4.1)


def test_three_commands_in_a_row_are_three_strikes_and_obedience_ends_the_row() -> None:
    some = Seen()
    some.reads(view())
    strikes = []
    for seen, owners in [
        (view(), ()),
        (view(), ()),
        (view(P0, P1), (P0, P1)),
        (view(), ()),
        (view(), ()),
        (view(), ()),
    ]:
        some.reads(view())
        some.sends(START)
        strikes.append(some.reads(seen, *owners, after_s=2).strikes)
    assert strikes == [1, 2, 0, 1, 2, 3]


def test_eviction_clock_goes_on_while_a_member_refuses_what_is_free() -> None:
    some = Seen()
    some.reads(view())
    for nth in range(3):
        some.sends(START)
        some.reads(view(sent=(START,)), after_s=1)
        after = some.reads(view(refused=frozenset({P0, P1})), after_s=1)
        assert (after.strikes, after.waits_s) == (0, 2 * (nth + 1))
    some.sends(START)
    assert some.reads(view(P0, P1), P0, P1, after_s=1).waits_s == 0


def test_stops_of_what_no_start_has_named_are_strikes_although_they_are_obeyed() -> None:
    some = Seen()
    strikes = []
    for _ in range(3):
        some.reads(replace(view(P0), uncounted=frozenset({P0})), P0)
        some.sends(STOP_ALL)
        strikes.append(some.reads(view(), after_s=2).strikes)
    assert strikes == [1, 2, 3]
    assert "it runs t-0, which no start has named to it" in some.reads(view()).disobeyed


def test_channel_that_goes_back_is_a_strike_that_is_not_forgotten() -> None:
    some = Seen()
    for nth in range(3):
        some.reads(view(generation=2))
        some.settles()
        assert some.reads(view(generation=1)).strikes == nth + 1
    assert "went from epoch and generation (1, 2) back to (1, 1)" in some.reads(view(generation=1)).disobeyed
    assert some.reads(view(generation=1), after_s=1000).waits_s == 0


def test_stops_that_are_obeyed_do_not_excuse_starts_that_are_not() -> None:
    some = Seen()
    some.reads(view())
    for nth in (1, 2, 3):
        some.sends(START)
        assert some.reads(view(P0, P1), after_s=2).strikes == nth  # it makes no owner znodes
        some.sends(STOP_ALL)
        some.reads(view(), after_s=2)


def test_eviction_clock_ends_with_a_start_that_lacks_only_owner_znodes() -> None:
    """One may have been removed by hand before the coordinator has read the start that made it."""
    some = Seen()
    some.reads(view())
    some.sends(START)
    assert some.reads(view(P0, P1), P0, after_s=2).waits_s == 0
    some.settles()  # its new generation waits for something else
    found = some.reads(view(P0, P1), P0, after_s=100)
    assert (found.waits_s, found.strikes) == (0, 1)
    some.sends(STOP_ALL)
    assert some.reads(view(P0, P1, sent=(STOP_ALL,)), P0, after_s=3).waits_s == 3
    some.reads(view(), after_s=1)
    some.sends(START)
    assert some.reads(view(sent=(START,)), after_s=3).waits_s == 3


def test_refusals_between_starts_without_owner_znodes_do_not_end_the_row() -> None:
    some = Seen()
    some.reads(view())
    for nth in (1, 2, 3):
        some.sends(START)
        some.reads(view(refused=frozenset({P0, P1})))
        some.sends(START)
        assert some.reads(view(P0, P1)).strikes == nth
        some.sends(STOP_ALL)
        some.reads(view())


def test_start_that_is_applied_and_left_in_the_channel_is_judged_once() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    left = view(P0, P1, sent=(START,))
    assert some.reads(left).strikes == 1
    some.sends(withdraws=START)
    assert some.reads(left).strikes == 1
    assert some.reads(view(P0, P1)).strikes == 1, "it still has no owner znodes"

    honest = Seen()
    honest.reads(view())
    honest.sends(START)
    assert honest.reads(left, P0, P1, after_s=1).strikes == 0, "read between its channel and its commands"
    assert honest.reads(view(P0, P1), P0, P1, after_s=1).waits_s == 0


def test_owner_removed_by_hand_in_the_race_of_a_start_does_not_run_the_clock() -> None:
    """The commands were read before the channel that shows the start applied, and the owners after it."""
    some = Seen()
    some.reads(view())
    some.sends(START)
    some.reads(view(P0, P1, sent=(START,)), P0, after_s=1)
    some.settles()
    found = some.reads(view(P0, P1), P0, after_s=70)

    assert (found.waits_s, found.strikes) == (0, 1)


def test_start_refused_behind_an_owner_znode_does_not_end_the_row() -> None:
    """It may have made that znode itself."""
    some = Seen()
    some.reads(view())
    for nth in (1, 2, 3):
        some.sends(START)
        assert some.reads(view(P0, P1)).strikes == nth
        some.sends(STOP_ALL)
        some.reads(view())
        some.sends(START)
        some.reads(view(refused=frozenset({P0, P1})), P0, P1)


def test_drain_of_a_member_without_owner_znodes_ends_no_row() -> None:
    some = Seen()
    some.reads(view())
    for nth in (1, 2, 3):
        some.sends(IN_REGION)
        runs = view(P0, P1, region=Progress(7, 7))
        assert some.reads(runs).strikes == nth
        some.reads(replace(runs, commands=(SentCommand("command-1", Command(DRAIN, 1, 2, "i", region=Order(7, 1))),)))
        some.settles()
        some.sends(STOP_ALL)
        some.reads(view())


def test_member_that_runs_without_owner_znodes_is_not_settled() -> None:
    """What it runs is what it shall run: its lost owner znodes begin a generation, and its strikes are kept."""
    some = Seen()
    some.reads(view())
    some.sends(START)
    some.reads(view(P0, P1))
    some.settles()
    assert some.reads(view(P0, P1)).strikes == 1

    some.reads(view(P0, P1), P0, P1)
    some.settles()
    assert some.reads(view(P0, P1), P0, P1).strikes == 0


def test_withdrawn_command_and_one_of_an_interrupted_turn_are_not_judged() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    some.sends(withdraws=START)
    assert some.reads(view()).strikes == 0
    some.sends(START)
    some.sends(LED, withdraws=START, is_written=False)  # refused, or its reply was lost
    assert some.reads(view()).strikes == 0


def test_new_incarnation_and_a_settled_member_have_no_strikes() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    assert some.reads(view()).strikes == 1
    some.settles()
    assert some.reads(view()).strikes == 0
    some.sends(START)
    some.reads(view())
    assert some.reads(channel_of(view(), incarnation="another")).strikes == 0


def channel_of(seen: ChannelView, **fields: Any) -> ChannelView:
    assert seen.channel is not None
    return replace(seen, channel=replace(seen.channel, **fields))


def test_start_in_several_multis_restarts_the_clock_once_and_is_judged_at_its_end() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    some.reads(view(sent=(START,)), after_s=2)
    assert some.reads(view(P0, sent=(START,), command="command-0"), P0, after_s=1).waits_s == 0
    assert some.reads(view(P0, sent=(START,), command="command-0"), P0, after_s=1).waits_s == 1
    assert some.reads(view(P0, P1, command="command-0"), P0, P1).strikes == 0


def test_answers_and_drains_neither_strike_nor_stop_the_clock_of_a_start() -> None:
    some = Seen()
    assign, drain = Command(ASSIGN, 1, 2, "i", ask="ask-0000000002"), Command(DRAIN, 1, 2, "i", region=Order(7, 1))
    some.reads(view())
    some.sends(assign, drain)
    assert some.reads(view(sent=(assign, drain)), after_s=1).waits_s == 1
    assert some.reads(view(command="command-0"), after_s=1).waits_s == 0
    some.sends(START, assign)
    some.reads(view(sent=(START, assign), command="command-0"), after_s=1)
    seen = channel_of(view(sent=(START,)), command="command-1")
    assert some.reads(seen, after_s=1).waits_s == 2
    assert some.reads(seen).strikes == 0


def test_unreadable_channel_is_not_judged() -> None:
    some = Seen()
    some.reads(view())
    some.sends(START)
    assert some.reads(ChannelView("c", 2, None)).strikes == 0
    assert some.reads(view(P0, P1), P0, P1).strikes == 0

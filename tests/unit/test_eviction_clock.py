"""Which commands count as carried out, from when the eviction clock counts, and at which pace commands are sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.planning.plan import Plan
from coordinator.planning.snapshot import ChannelView, SentCommand, wave_of
from coordinator.rebalance.member_clocks import AT_ONCE, LOSS_PAUSE_S, PAUSE_S, EvictionClocks, is_carried_out
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import NONE, TopicPartition
from coordinator.zk.znodes.records import ASSIGN, DRAIN, START_FETCHER, STOP_FETCHER, Channel, Command
from coordinator.zk.znodes.regions import Order, Progress
from tests.unit.manual import ManualRuntime

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
START = Command(START_FETCHER, 1, 2, "i", {"c-0": frozenset({P0, P1})}, topics={"t": "id"})
STOP = Command(STOP_FETCHER, 1, 2, "i", partitions=frozenset({P0}), topics={"t": "id"})
STOP_ALL = replace(STOP, partitions=NONE)
LED = replace(START, ask="ask-0000000001")
ASK = Command(ASSIGN, 1, 2, "i", ask="ask-0000000002")
IN_REGION = replace(START, region=Order(7))


def view(*running: TopicPartition, sent: tuple[Command, ...] = (), first: int = 0, **fields: Any) -> ChannelView:
    """A channel; the commands in it are named by their numbers, from `first` on."""
    channel = Channel(
        "i", 1, **{"generation": 2, "running": dict.fromkeys(running, 5), "topics": {"t": "id"}, **fields}
    )
    return ChannelView("c", 1, channel, tuple(SentCommand(f"command-{n}", each) for n, each in enumerate(sent, first)))


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (START, view(P0, P1)),
        (START, view(P0, P1, P2)),
        (LED, view(P0, P1, ask="ask-0000000001")),
        (IN_REGION, view(P0, P1, region=Progress(7, 7))),
        (STOP, view(P1)),
        (STOP_ALL, view()),
    ],
)
def test_command_that_the_channel_shows_is_carried_out(command: Command, seen: ChannelView) -> None:
    assert is_carried_out(command, seen)


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (START, view()),
        (START, view(P0)),
        (START, view(P0, refused=frozenset({P1}))),
        (START, view(P0, P1, topics={"t": "other"})),
        (START, view(P0, P1, generation=1)),
        (LED, view(P0, P1)),
        (IN_REGION, view(P0, P1, region=Progress(7))),
        (STOP, view(P0, P1)),
        (STOP_ALL, view(P1)),
        (STOP_ALL, ChannelView("c", 1, None)),
    ],
)
def test_command_that_the_channel_does_not_show_is_not_carried_out(command: Command, seen: ChannelView) -> None:
    assert not is_carried_out(command, seen)


def test_member_without_owners_shows_the_ask_that_it_runs() -> None:
    job = Command(START_FETCHER, 1, 2, "i", ask="ask-0000000001")
    assert is_carried_out(job, view(ask="ask-0000000001"), has_owners=False)
    assert not is_carried_out(job, view(), has_owners=False)
    assert is_carried_out(STOP_ALL, view(), has_owners=False)
    assert not is_carried_out(STOP_ALL, view(ask="ask-0000000001"), has_owners=False)


class Seen:
    """A member as one coordinator sees it, turn by turn."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.clocks = EvictionClocks(self.runtime)
        self.pending: tuple[SentCommand, ...] = ()

    def reads(self, seen: ChannelView, *owners: TopicPartition, after_s: float = 0.0) -> ChannelView:
        self.runtime.now += after_s
        self.pending = seen.commands
        return self.clocks.observed({"c": seen}, frozenset(owners), True)["c"]

    def sends(self, *commands: Command, withdraws: int = 0, is_new_generation: bool = False) -> None:
        """:param withdraws: so many of the commands that were read, the last ones."""
        starts = tuple(("c", each) for each in commands)
        withdrawn = tuple(("c", each) for each in self.pending[len(self.pending) - withdraws :])
        self.clocks.decided(Plan(GroupState(), starts=starts, withdrawn=withdrawn, is_new_generation=is_new_generation))

    def defers(self) -> None:
        self.clocks.decided(Plan(GroupState(), deferred=frozenset({"c"})))


@pytest.fixture
def some() -> Seen:
    return Seen()


@pytest.fixture
def started() -> Seen:
    """A member that runs nothing, and has just been sent a start."""
    some = Seen()
    some.reads(view())
    some.sends(START)
    return some


def test_eviction_clock_starts_when_the_command_is_sent(started: Seen) -> None:
    assert started.reads(view(sent=(START,)), after_s=7.5).waits_s == 7.5


def test_eviction_clock_starts_at_first_sight_by_another_coordinator(some: Seen) -> None:
    some.reads(view(sent=(START,)))
    some.sends()
    assert some.reads(view(sent=(START,)), after_s=2).waits_s == 2
    assert some.reads(view(P0, P1), P0, P1, after_s=2).waits_s == 0


def test_eviction_clock_ends_with_the_command_and_begins_again_with_the_next(started: Seen) -> None:
    assert started.reads(view(P0, P1), P0, P1, after_s=3).waits_s == 0
    started.sends(STOP)
    assert started.reads(view(P0, P1, sent=(STOP,)), P0, P1, after_s=1).waits_s == 1
    assert started.reads(view(P1), P1, after_s=1).waits_s == 0


def test_acknowledgement_alone_does_not_stop_the_clock(some: Seen) -> None:
    some.reads(view())
    for nth in range(1, 4):
        some.sends(START)
        assert some.reads(view(command=f"command-{nth}"), after_s=1).waits_s == nth
        some.defers()
        assert some.reads(view(command=f"command-{nth}")).waits_s == nth


def test_refusal_does_not_stop_the_clock_while_the_start_is_sent_again(started: Seen) -> None:
    assert started.reads(view(refused=frozenset({P0, P1})), after_s=1).waits_s == 1
    started.sends(START)
    assert started.reads(view(refused=frozenset({P0, P1})), P0, after_s=1).waits_s == 2


def test_commands_that_replace_one_another_do_not_restart_the_clock(started: Seen) -> None:
    started.reads(view(sent=(START,)), after_s=2)
    started.sends(withdraws=1)
    assert started.reads(view(), after_s=1).waits_s == 0  # it has nothing to carry out now
    started.sends(LED)
    assert started.reads(view(sent=(LED,)), after_s=1).waits_s == 4
    started.sends(START, withdraws=1)
    assert started.reads(view(sent=(START,)), after_s=1).waits_s == 5


def test_withdrawn_ask_does_not_hide_that_the_start_before_it_is_carried_out(some: Seen) -> None:
    """A leader that answers late is asked again in the same turn that reads its channel."""
    some.reads(view())
    some.sends(START, ASK)
    some.reads(view(sent=(START, ASK)), after_s=4)
    some.sends(withdraws=1)
    some.reads(view(P0, P1), P0, P1, after_s=2)
    some.sends(ASK)
    assert some.reads(view(P0, P1, sent=(ASK,)), P0, P1, after_s=1).waits_s == 1


@pytest.mark.parametrize("withdraws", [1, 0], ids=["withdrawn", "removed by another"])
def test_member_that_waits_for_others_or_runs_its_target_has_no_clock(started: Seen, withdraws: int) -> None:
    started.reads(view(sent=(START,)), after_s=2)
    started.sends(withdraws=withdraws)
    started.reads(view())
    started.sends()
    assert started.reads(view(), after_s=100).waits_s == 0


def test_stop_that_was_withdrawn_is_not_taken_for_carried_out(some: Seen) -> None:
    some.reads(view(P1))
    some.sends(START)
    some.reads(view(P1, sent=(START,)))
    some.sends(STOP, withdraws=1)  # P0 is not run: the channel shows it from the beginning
    some.reads(view(P1, sent=(STOP,)), after_s=1)
    some.sends(START, withdraws=1)
    assert some.reads(view(P1, sent=(START,)), after_s=1).waits_s == 1


def test_command_that_is_begun_restarts_the_clock_once(started: Seen) -> None:
    """A start in several multis, or of a region whose states are being restored."""
    started.reads(view(sent=(START,)), after_s=2)
    assert started.reads(view(P0, sent=(START,), command="command-0"), P0, after_s=1).waits_s == 0
    assert started.reads(view(P0, sent=(START,), command="command-0"), P0, after_s=1).waits_s == 1
    started.sends(START)  # it has removed it, and names the next one
    assert started.reads(view(P0, sent=(START,), command="command-0"), P0, after_s=1).waits_s == 2


def test_command_that_is_begun_as_it_is_withdrawn_restarts_the_clock_once(started: Seen) -> None:
    """The coordinator has read its channel before, and sees it named afterwards."""
    started.reads(view(sent=(START,)), after_s=2)
    started.sends(STOP, withdraws=1)
    assert started.reads(view(P0, sent=(STOP,), first=1, command="command-0"), P0).waits_s == 0
    assert started.reads(view(P0, sent=(STOP,), first=1, command="command-0"), P0, after_s=1).waits_s == 1


def test_ask_that_is_withdrawn_beside_a_begun_start_does_not_hide_it(some: Seen) -> None:
    """A coordinator that is elected withdraws both, and sends them again with its own epoch."""
    some.reads(view(sent=(START, ASK)))
    some.reads(view(sent=(START, ASK)), after_s=2)
    some.sends(START, ASK, withdraws=2)
    assert some.reads(view(P0, sent=(START, ASK), first=2, command="command-0"), P0).waits_s == 0


def test_withdrawn_ask_that_the_channel_names_restarts_no_clock(some: Seen) -> None:
    """The product's own consumer names no ask but with its answer; a channel may say anything."""
    some.reads(view())
    some.sends(START, ASK)
    some.reads(view(sent=(START, ASK)), after_s=2)
    some.sends(withdraws=1)
    assert some.reads(view(sent=(START,), command="command-1"), after_s=1).waits_s == 3


def test_withdrawn_copy_does_not_hide_that_the_command_is_carried_out(some: Seen) -> None:
    some.reads(view(P0))
    some.sends(STOP)
    some.reads(view(P0, sent=(STOP, STOP)), P0, after_s=1)
    some.sends(withdraws=1)
    some.reads(view(generation=3), after_s=2)
    some.sends(START)
    assert some.reads(view(sent=(START,), first=2), after_s=1).waits_s == 1


def test_command_whose_reply_was_lost_is_seen_to_be_carried_out(some: Seen) -> None:
    """The turn starts over, reads the command that it has sent, and leaves it."""
    some.reads(view(P0), P0)
    some.reads(view(P0, sent=(STOP,)), P0)
    some.sends()
    some.reads(view(generation=3), after_s=4)
    some.sends(START)
    assert some.reads(view(sent=(START,), first=1), after_s=1).waits_s == 1


def test_command_that_replaces_another_in_a_lost_reply_is_seen_to_be_carried_out(some: Seen) -> None:
    some.reads(view(P0, P2), P0, P2)
    some.sends(START)
    some.reads(view(P0, P2, sent=(START,)), P0, P2, after_s=1)
    some.reads(view(P0, P2, sent=(STOP,), first=1), P0, P2)
    some.sends()
    assert some.reads(view(P0, P2, sent=(STOP,), first=1), P0, P2, after_s=1).waits_s == 2
    some.reads(view(P2), P2, after_s=2)
    some.sends(START)
    assert some.reads(view(P2, sent=(START,), first=2), P2, after_s=1).waits_s == 1


def test_clock_ends_where_a_refused_partition_has_an_owner(started: Seen) -> None:
    """Its coordinator may be away meanwhile, and takes the next turn after the time is over."""
    assert started.reads(view(P0, refused=frozenset({P1})), P0, after_s=5).waits_s == 5
    assert started.reads(view(P0, refused=frozenset({P1}), generation=1), P0, P1).waits_s == 5
    assert started.reads(view(P0, refused=frozenset({P1}), sent=(START,)), P0, P1).waits_s == 5
    assert started.reads(view(P0, refused=frozenset({P1})), P0, P1).waits_s == 0


def test_ask_beside_an_answered_start_does_not_hide_the_owner_that_it_waits_for(started: Seen) -> None:
    started.reads(view(sent=(START,)), after_s=285)
    started.sends(ASK)
    started.reads(view(P0, refused=frozenset({P1}), sent=(ASK,)), P0, P1, after_s=5)
    started.sends()
    assert started.reads(view(P0, refused=frozenset({P1}), sent=(ASK,)), P0, P1, after_s=10).waits_s == 10


def test_command_that_no_coordinator_has_sent_restarts_no_clock(started: Seen) -> None:
    for nth in range(1, 4):
        own, name = replace(STOP, partitions=frozenset({TopicPartition("t", 10 + nth)})), f"command-{nth}"
        started.reads(view(P0, sent=(own,), first=nth, command=name), P0)
        started.sends(START, withdraws=1)
        assert started.reads(view(P0, command=name), P0, after_s=1).waits_s == nth


def test_withdrawn_command_is_not_left_when_the_channel_becomes_unreadable(some: Seen) -> None:
    own = replace(STOP, partitions=frozenset({P2}))
    some.reads(view())
    some.sends(START)
    some.reads(view(sent=(START, own)), after_s=1)
    some.sends(withdraws=1)
    some.reads(ChannelView("c", 2, None, some.pending[:1]))
    some.sends(withdraws=1)
    some.reads(ChannelView("c", 2, None))
    some.sends()
    some.reads(view(), after_s=1)
    some.sends(START)
    assert some.reads(view(sent=(START,), first=2), after_s=1).waits_s == 3


def test_drain_is_no_command_to_the_clock_and_an_answer_is_until_it_is_removed(some: Seen) -> None:
    drain = Command(DRAIN, 1, 2, "i", region=Order(7, 1))
    some.reads(view())
    some.sends(drain)
    assert some.reads(view(sent=(drain,)), after_s=1).waits_s == 0
    some.sends(ASK)
    assert some.reads(view(sent=(ASK, drain)), after_s=1).waits_s == 1
    some.reads(view(sent=(drain,)))
    some.sends()
    assert some.reads(view(sent=(drain,)), after_s=1).waits_s == 0


def test_owner_znode_removed_by_hand_runs_no_clock(started: Seen) -> None:
    started.reads(view(P0, P1, sent=(START,)), P0, after_s=1)
    started.sends()
    assert started.reads(view(P0, P1), P0, after_s=70).waits_s == 0


def test_new_incarnation_has_a_new_clock_and_an_unreadable_channel_keeps_it(started: Seen) -> None:
    assert started.reads(ChannelView("c", 2, None), after_s=1).waits_s == 0
    assert started.reads(view(sent=(START,)), after_s=1).waits_s == 2
    other = view(sent=(START,))
    assert other.channel is not None
    assert started.reads(replace(other, channel=replace(other.channel, incarnation="j"))).waits_s == 0


def test_some_commands_of_a_wave_are_sent_at_once_and_then_one_a_second(some: Seen) -> None:
    for _ in range(AT_ONCE):
        assert some.reads(view()).paced == {}
        some.sends(START)
    assert some.reads(view()).paced == {wave_of(START): PAUSE_S}
    assert some.reads(view(), after_s=PAUSE_S).paced == {}
    some.sends(START)
    assert some.reads(view()).paced == {wave_of(START): PAUSE_S}
    some.sends(replace(START, generation=3))
    assert some.reads(view()).paced == {}
    some.sends(STOP)
    assert some.reads(view()).paced == {}


def test_generations_for_lost_owner_znodes_have_a_pause_between_them(some: Seen) -> None:
    assert some.reads(view(P0, P1), P0, P1).loss_pause_s == 0
    assert some.reads(view(P0, P1), P0).loss_pause_s == 0
    some.sends(is_new_generation=True)
    assert some.reads(view(P0, P1), P0, after_s=0.5).loss_pause_s == LOSS_PAUSE_S - 0.5
    assert some.reads(view(P0, P1), P0, P1).loss_pause_s == 0
    assert some.reads(view(P0, P1), P0, after_s=LOSS_PAUSE_S).loss_pause_s == 0


def test_clock_of_a_member_that_keeps_partitions_without_owner_znodes_goes_on(some: Seen) -> None:
    """It acknowledges each stop, and runs its target: no command is left that it has not carried out."""
    some.reads(view(P0), P1)
    some.sends(STOP, is_new_generation=True)
    some.reads(view(P0, sent=(STOP,)), after_s=1)
    some.sends()
    assert some.reads(view(P0, generation=3), after_s=1).waits_s == 2
    some.sends()
    assert some.reads(view(P0, generation=3), after_s=1).waits_s == 3
    some.reads(view(P0, generation=3), P0)
    some.sends()
    assert some.reads(view(P0, generation=3), after_s=1).waits_s == 0


def test_clock_of_a_member_that_stops_what_has_lost_its_owner_znode_ends(some: Seen) -> None:
    some.reads(view(P0))
    some.sends(STOP, is_new_generation=True)
    some.reads(view(generation=3), after_s=1)
    some.sends(START)
    assert some.reads(view(sent=(START,)), after_s=2).waits_s == 2

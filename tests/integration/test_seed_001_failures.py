"""Seed 001, "Handling Coordinator Failures", "Leader Failures" and "Assignment Failure".

The four points at which a coordinator may fail are numbered as in the seed. One departure from it: no member stops
before the answer is known, so that a failure at any of them finds a group that runs on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from consumer.assignment.base import Assignment
from coordinator.admin import control
from coordinator.zk.errors import Refused, SessionLost
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.znodes.group_state import COMPLETING, FAILED, GroupState
from coordinator.zk.znodes.paths import COORDINATOR, ask_name, ask_number
from coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, STOP_FETCHER, Command, CoordinatorRecord
from tests.support.client_side import (
    PATHS,
    Given,
    HandStage,
    Hooked,
    Match,
    ProcessKilled,
    Scripted,
    ThreadGate,
    a_hand_stage,
    answered,
    asks,
    creates,
    writes,
)
from tests.support.event_group import EventGroup
from tests.support.events import GroupEvents, replayed
from tests.support.hand import Hand, ManualStage
from tests.support.memlog import MemoryLog
from tests.support.processes import ProjectProcess, node_process
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, expire, parts

ALL = parts("t", *range(6))
EAGER, COOPERATIVE = "range", "cooperative-sticky"
protocols = pytest.mark.parametrize("like", [EAGER, COOPERATIVE])


@pytest.fixture
def hands(world: World, stage: ManualStage) -> Iterator[HandStage]:
    """Topic `t` of six partitions; members and coordinators that the test drives."""
    with a_hand_stage(world, stage) as hands:
        hands.topic("t", 6)
        yield hands


class Begun(NamedTuple):
    """A group of c1, the leader, and c2; its coordinator, the store in front of its session, and its state."""

    first: Hand
    front: Hooked
    state: GroupState

    @property
    def ask(self) -> str:
        assert self.state.client is not None
        return self.state.client.ask


def a_pair(hands: HandStage, like: str = EAGER, **leader: Any) -> Begun:
    first, front = hands.coordinator("first")
    hands.member("c1", like=like, **leader)
    hands.member("c2", like=like)
    begun = Begun(first, front, hands.settled(first))
    assert (begun.state.generation, hands.calls) == (1, 1)
    for member in hands.members:
        member.stops.clear()
    return begun


def dies(hand: Hand) -> None:
    """A turn in which the coordinator is killed."""
    with pytest.raises(SessionLost):
        hand.turn("g")


def ends_well(hands: HandStage, hand: Hand, begun: Begun, ask: str, *, generations: int = 1) -> GroupState:
    """Stable after `generations` by the answer to `ask`; one holder a partition, assigned once; no failures."""
    after = hands.settled(hand)
    hand.turn("g")
    assert after.generation == begun.state.generation + generations
    assert after.client is not None
    assert (after.client.ask, after.client.attempts, asks(hands.world)) == (ask, 0, [ask])
    live = [member for member in hands.members if member.name in after.target]
    assert sorted(part for member in live for part in member.held) == sorted(ALL)
    assert hands.world.owners("g").keys() == ALL
    for member in live:
        heard = [call for call in hands.assignors[member.name].heard if call[1] == after.generation]
        assert heard == [(f"for {member.name}".encode(), after.generation)], member.name
        assert member.failures == []
    return after


def adopted_generations(front: Hooked) -> list[tuple[int, str]]:
    """(generation, ask) of every adoption that a coordinator has written."""
    found = dict.fromkeys((s.generation, s.client.ask) for s in front.states() if s.client is not None and s.client.ask)
    return list(found)


# ---- Handling Coordinator Failures, 1: before all members have joined, or before group metadata has been persisted


def test_coordinator_failure_1_next_one_makes_the_unpersisted_ask_without_stops(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    begun.front.before(creates("/sync/ask-"), begun.front.die)

    dies(begun.first)

    assert (asks(hands.world), hands.state) == ([begun.ask], begun.state)
    second, front = hands.coordinator("second")
    ask = hands.asked(second, "c1").ask
    assert hands.stops == [0, 0, 0], "no member stops before the answer is known"
    ends_well(hands, second, begun, ask)
    assert (hands.calls, adopted_generations(front)) == (2, [(1, begun.ask), (2, ask)])


def test_coordinator_failure_1_members_joining_meanwhile_are_in_one_ask_of_the_next(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    begun.front.before(creates("/sync/ask-"), begun.front.die)
    dies(begun.first)
    hands.member("c4")

    second, front = hands.coordinator("second")

    ask = hands.asked(second, "c1").ask
    ends_well(hands, second, begun, ask)
    assert [sorted(made.members) for made in front.made_asks()] == [["c1", "c2", "c3", "c4"]]


def test_coordinator_failure_1_before_the_first_generation_the_next_one_makes_it(hands: HandStage) -> None:
    first, front = hands.coordinator("first")
    hands.member("c1")
    hands.member("c2")
    front.before(creates("/sync/ask-"), front.die)
    dies(first)

    second, _ = hands.coordinator("second")

    state = hands.settled(second)
    assert (state.generation, hands.calls) == (1, 1)
    assert sorted(part for member in hands.members for part in member.held) == sorted(ALL)


# ---- 2: after group metadata has been persisted, before all members have received a response


@protocols
def test_coordinator_failure_2_ask_unread_by_its_leader_is_sent_again_unchanged(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    begun.front.after(creates("/sync/ask-"), begun.front.die)

    dies(begun.first)

    (_, ask) = asks(hands.world)
    second, front = hands.coordinator("second")
    command = hands.asked(second, "c1")
    assert (command.ask, command.epoch, front.made_asks()) == (ask, 2, [])
    assert [each.epoch for each in hands.world.commands("g", "c1")] == [2], "the earlier epoch's is withdrawn"
    assert (hands.stops, hands.calls) == ([0, 0, 0], 1)
    ends_well(hands, second, begun, ask)
    assert hands.calls == 2


def test_coordinator_failure_2_refused_takeover_still_sends_the_same_ask_again(
    hands: HandStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coordinator.rebalance.rebalancer.ROOM", 1
    )  # as in a large group: what is withdrawn goes before
    begun = a_pair(hands)
    hands.member("c3")
    begun.front.after(creates("/sync/ask-"), begun.front.die)
    try:
        hands.asked(begun.first, "c1")
    except SessionLost:
        pass
    else:
        begun.first.close()
    (_, ask) = asks(hands.world)
    second, front = hands.coordinator("second")

    def is_refused() -> None:
        raise Refused(0, PATHS.state, "bad-version")

    front.before(creates(PATHS.command_prefix("c1"), b'"assign"'), is_refused)

    assert hands.asked(second, "c1").ask == ask
    assert (hands.state.state, front.made_asks()) == (COMPLETING, [])
    ends_well(hands, second, begun, ask)


def test_coordinator_failure_2_joining_member_aborts_nothing_and_is_in_the_next_ask(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    begun.front.after(creates("/sync/ask-"), begun.front.die)
    dies(begun.first)
    (_, ask) = asks(hands.world)
    hands.member("c4")

    second, front = hands.coordinator("second")

    assert hands.asked(second, "c1").ask == ask
    hands.members[0].obey()
    second.turn("g")
    adopted = hands.state
    assert (adopted.generation, sorted(adopted.target)) == (2, ["c1", "c2", "c3"])
    after = hands.settled(second)
    assert (after.generation, sorted(after.target), hands.calls) == (3, ["c1", "c2", "c3", "c4"], 3)
    assert [sorted(made.members) for made in front.made_asks()] == [["c1", "c2", "c3", "c4"]]


def test_coordinator_failure_2_leader_that_leaves_is_replaced_and_its_ask_removed(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    begun.front.after(creates("/sync/ask-"), begun.front.die)
    dies(begun.first)
    hands.members[0].vanish()

    second, front = hands.coordinator("second")

    ask = hands.asked(second, "c2").ask
    assert [(made.leader, made.attempt) for made in front.made_asks()] == [("c2", 1)], "to go is no failure"
    after = hands.settled(second, *hands.members[1:])
    assert (after.generation, sorted(after.target), hands.assignors["c2"].calls) == (2, ["c2", "c3"], 1)
    assert ask == after.client.ask  # type: ignore[union-attr]


def test_coordinator_failure_2_restarted_static_leader_is_assigned_by_another_one(hands: HandStage) -> None:
    begun = a_pair(hands, group_instance_id="c1")
    hands.member("c3")
    begun.front.after(creates("/sync/ask-"), begun.front.die)
    dies(begun.first)
    hands.members.pop(0).close()
    hands.member("c1", group_instance_id="c1")

    second, front = hands.coordinator("second")

    ask = hands.asked(second, "c2").ask
    ends_well(hands, second, begun, ask)
    assert [(made.leader, made.attempt) for made in front.made_asks()] == [("c2", 1)]
    assert "c1" in front.made_asks()[0].members


# ---- 3: before a pending synchronization has been persisted


@protocols
def test_coordinator_failure_3_computing_leader_answers_the_next_coordinator(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    ask = hands.asked(begun.first, "c1").ask
    nodes: list[Hand] = []

    def fails_over() -> None:
        hands.assignors["c1"].before = lambda: None
        begun.first.close()
        nodes.append(hands.coordinator("second")[0])
        assert hands.asked(nodes[0], "c1").ask == ask

    hands.assignors["c1"].before = fails_over
    hands.members[0].obey()

    assert (hands.state.generation, hands.stops) == (1, [0, 0, 0])
    ends_well(hands, nodes[0], begun, ask)
    assert hands.calls == 3, "what it computed for the withdrawn command is refused, and it computes again"


def test_coordinator_failure_3_answer_complete_before_the_takeover_is_adopted(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    ask = hands.asked(begun.first, "c1").ask

    hands.assignors["c1"].before = begun.first.close
    hands.members[0].obey()
    hands.assignors["c1"].before = lambda: None

    assert answered(hands.world)[-1] == ask
    second, front = hands.coordinator("second")
    ends_well(hands, second, begun, ask)
    assert (hands.calls, front.made_asks()) == (2, [])


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of an answer is a commit of its own, as in a large group; the last goes with `answer`."""
    monkeypatch.setattr("consumer.membership.client_assignment.ROOM", 1)


@pytest.mark.usefixtures("in_pieces")
def test_coordinator_failure_3_entries_of_an_unfinished_answer_are_removed(hands: HandStage) -> None:
    fronts: list[Hooked] = []
    begun = a_pair(hands, wrap=lambda store: fronts.append(Hooked(store)) or fronts[-1])
    hands.member("c3")
    ask = hands.asked(begun.first, "c1").ask
    nodes: list[Hand] = []

    def fails_over() -> None:
        assert entries(hands.world, ask) == ["member-c1", "member-c2"]
        hands.assignors["c1"].answer = lambda found: {name: one for name, one in found.items() if name != "c2"}
        begun.first.close()
        nodes.append(hands.coordinator("second")[0])
        assert hands.asked(nodes[0], "c1").ask == ask

    fronts[0].before(creates(f"{ask}/answer"), fails_over)
    hands.members[0].obey()

    eventually(lambda: hands.members[0].obey() or ask in answered(hands.world), 5, "c1 answers again")
    assert entries(hands.world, ask) == ["answer", "member-c1", "member-c3"]
    after = hands.settled(nodes[0])
    assert (after.generation, hands.members[1].held, hands.calls) == (2, frozenset(), 3)
    given = {part for one in after.target.values() for part in one.partitions}
    assert given == parts("t", 0, 1, 4, 5) and after.left_out.keys() == {"t"}


def entries(world: World, ask: str) -> list[str]:
    """A leader's writes below an ask."""
    return world.names(PATHS.ask(ask))


def kill_leader_in_assign(hands: HandStage, front: Hooked, ask: str) -> None:
    def killed() -> None:
        front.behind.close()
        raise ProcessKilled

    hands.assignors["c1"].before = killed


def kill_leader_before_its_answer(hands: HandStage, front: Hooked, ask: str) -> None:
    def killed() -> None:
        front.behind.close()
        raise ProcessKilled

    front.before(creates(f"{ask}/answer"), killed)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("with_the_coordinator", [False, True], ids=["alone", "with the coordinator"])
@pytest.mark.parametrize("kill", [kill_leader_in_assign, kill_leader_before_its_answer], ids=["computing", "half"])
def test_coordinator_failure_3_killed_leader_is_replaced_and_half_an_answer_removed(
    hands: HandStage, kill: Callable[[HandStage, Hooked, str], None], with_the_coordinator: bool
) -> None:
    fronts: list[Hooked] = []
    begun = a_pair(hands, wrap=lambda store: fronts.append(Hooked(store)) or fronts[-1])
    hands.member("c3")
    ask = hands.asked(begun.first, "c1").ask
    kill(hands, fronts[0], ask)

    with pytest.raises(ProcessKilled):
        hands.members[0].obey()

    half = ["member-c1", "member-c2"] if kill is kill_leader_before_its_answer else []
    assert entries(hands.world, ask) == half
    assert answered(hands.world) == [begun.ask]
    hand = begun.first
    if with_the_coordinator:
        begun.first.close()
        hand, _ = hands.coordinator("second")
    other = hands.asked(hand, "c2").ask
    assert other > ask and hands.stops[1:] == [0, 0]
    after = hands.settled(hand, *hands.members[1:])
    assert (after.generation, hands.assignors["c2"].calls, after.client.ask) == (2, 1, other)  # type: ignore[union-attr]
    assert asks(hands.world) == [other]
    assert sorted(p for member in hands.members[1:] for p in member.held) == sorted(ALL)
    assert [member.failures for member in hands.members[1:]] == [[], []]


# ---- 4: after the metadata has been persisted, before all members have received the response


@protocols
def test_coordinator_failure_4_unadopted_answer_is_adopted_by_the_next(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    ask = hands.asked(begun.first, "c1").ask
    hands.members[0].obey()
    assert (answered(hands.world)[-1], hands.state.generation, hands.stops) == (ask, 1, [0, 0, 0])

    begun.first.close()

    second, front = hands.coordinator("second")
    ends_well(hands, second, begun, ask)
    assert (hands.calls, front.made_asks()) == (2, []), "no leader computes again"
    assert adopted_generations(front) == [(2, ask)]


def test_coordinator_failure_4_answer_is_adopted_for_the_remaining_members(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    ask = hands.asked(begun.first, "c1").ask
    hands.members[0].obey()
    begun.first.close()
    hands.members[0].vanish()

    second, front = hands.coordinator("second")
    second.turn("g")

    adopted = hands.state
    assert (adopted.generation, sorted(adopted.target)) == (2, ["c2", "c3"])
    assert adopted.client is not None and adopted.client.ask == ask
    after = hands.settled(second, *hands.members[1:])
    assert (after.generation, [made.leader for made in front.made_asks()]) == (3, ["c2"])
    assert sorted(p for member in hands.members[1:] for p in member.held) == sorted(ALL)


def test_coordinator_failure_4_outdated_answer_is_no_failure_and_is_asked_again(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    ask = hands.asked(begun.first, "c1").ask
    hands.members[0].obey()
    begun.first.close()
    hands.more_partitions("t", 7)

    second, front = hands.coordinator("second")
    other = hands.asked(second, "c1").ask

    assert other > ask and hands.stops == [0, 0, 0]
    after = hands.settled(second)
    assert (after.generation, [(m.attempt, m.outdated) for m in front.made_asks()]) == (2, [(1, 1)])
    assert sorted(p for member in hands.members for p in member.held) == sorted(parts("t", *range(7)))
    assert [member.failures for member in hands.members] == [[], [], []]


@protocols
def test_coordinator_failure_4_answer_committed_by_a_dying_one_is_adopted_once(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    ask = hands.asked(begun.first, "c1").ask
    hands.members[0].obey()
    begun.front.after(writes(PATHS.state, f'"ask":"{ask}"'.encode()), begun.front.die)

    dies(begun.first)

    assert hands.state.generation == 2
    second, front = hands.coordinator("second")
    ends_well(hands, second, begun, ask)
    assert (hands.calls, front.made_asks()) == (2, [])


@protocols
def test_coordinator_failure_4_members_without_their_start_get_it_from_the_next(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    one, two, three = hands.members
    ask = hands.asked(begun.first, "c1").ask

    def one_has_started() -> bool:
        begun.first.turn("g")
        for member in (one, three):
            member.obey()
        two.obey() if two.commands() and two.commands()[0].option == STOP_FETCHER else None
        return hands.assignors["c1"].heard[-1][1] == 2

    eventually(one_has_started, 5, "c1 has its start")
    begun.first.close()
    assert hands.assignors["c2"].heard[-1][1] == 1

    second, front = hands.coordinator("second")
    ends_well(hands, second, begun, ask)
    assert (hands.calls, front.made_asks()) == (2, [])
    assert len(one.stops) <= 1, "a member with its share stops no second time"


@protocols
@pytest.mark.parametrize("nth", range(1, 15))
def test_coordinator_failure_anywhere_after_its_nth_commit_ends_in_one_generation(
    hands: HandStage, like: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coordinator.rebalance.rebalancer.ROOM", 1
    )  # as in a large group: each step is a commit of its own
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    begun.front.sent = 0
    begun.front.after(lambda operations: begun.front.sent == nth, begun.front.die)

    try:
        hands.settled(begun.first)
    except SessionLost:
        hand, front = hands.coordinator("second")
    else:
        assert nth > 8, "a rebalance takes more commits than that"
        hand, front = begun.first, begun.front

    after = hands.settled(hand)
    hand.turn("g")
    assert after.generation == 2 and after.client is not None
    assert asks(hands.world) == [after.client.ask] == ["ask-0000000002"]
    assert sorted(p for member in hands.members for p in member.held) == sorted(ALL)
    assert hands.calls == 2, "no answer was lost"
    for member in hands.members:
        assert [call for call in hands.assignors[member.name].heard if call[1] == 2] == [
            (f"for {member.name}".encode(), 2)
        ]
    adopted = {made for written in (begun.front, front) for made in adopted_generations(written)}
    assert adopted == {(1, begun.ask), (2, after.client.ask)}


def adopts(ask: str) -> Match:
    return writes(PATHS.state, f'"ask":"{ask}"'.encode())


DEATHS: dict[str, tuple[Callable[[str], Match], bool]] = {
    "1 nothing is persisted": (lambda ask: creates(ask), False),
    "2 the ask is persisted": (lambda ask: creates(ask), True),
    "3 and 4 the answer is not adopted": (adopts, False),
    "4 it is adopted": (adopts, True),
    "4 a start is sent": (lambda ask: creates("/command-", f'"ask":"{ask}"'.encode()), True),
}


@protocols
@pytest.mark.parametrize(("at", "is_done"), DEATHS.values(), ids=DEATHS.keys())
def test_coordinator_failure_of_a_node_at_each_point_loses_and_repeats_no_record(
    world: World, at: Callable[[str], Match], is_done: bool, like: str
) -> None:
    fronts: list[Hooked] = []
    node = world.coordinator("a", wrap=lambda store: fronts.append(Hooked(store)) or fronts[-1])
    world.elected(node)
    standby = world.coordinator("b")
    world.topic("t", 6)
    log = MemoryLog(end=50)
    for name in ("c1", "c2"):
        world.consumer("g", name, {"t": 1}, log=log, assignment="client", assignors=[Scripted(like)])
    before = world.stable("g", 2)
    assert before.client is not None
    front, ask = fronts[0], ask_name(ask_number(before.client.ask) + 1)
    (front.after if is_done else front.before)(at(ask), front.die)

    world.consumer("g", "c3", {"t": 1}, log=log, assignment="client", assignors=[Scripted(like)])

    eventually(lambda: front.is_over, 10, "the coordinator is killed")
    world.stop_coordinator(node)
    world.elected(standby, above=1)
    after = world.stable("g", 3, above=before.generation)
    assert after.generation == before.generation + 1
    log.end = 100
    eventually(lambda: sum(len(c.records) for c in world.consumers) == 600, 10, "all is read")
    world.delivered_once("t", 6, 100)
    assert [(c.failures, c.error) for c in world.consumers] == [([], None)] * 3


# ---- the same with killed processes, and with znodes removed by hand

LONG = ("--assignment", "client", "--session-timeout-ms", "20000")


def elected(world: World, epoch: int) -> None:
    def look() -> bool:
        data = world.data(COORDINATOR)
        return data is not None and CoordinatorRecord.parse(COORDINATOR, data).epoch == epoch

    eventually(look, 10, f"a node is elected in epoch {epoch}")


class Standing(NamedTuple):
    """Group `g` of c1, the leader, and c2, each a process; its coordinator's, and its state."""

    node: ProjectProcess
    state: GroupState


def processes(group: EventGroup) -> Standing:
    node = group.node("a")
    group.start(["c1"], *LONG)
    group.joined(["c1"])
    group.start(["c2"], *LONG)
    group.joined(["c1", "c2"])
    return Standing(node, group.world.stable("g", 2))


def command_for(world: World, consumer: str, option: str, epoch: int) -> Command:
    def look() -> Command | None:
        found = [each for each in world.commands("g", consumer) if (each.option, each.epoch) == (option, epoch)]
        return found[0] if found else None

    found = eventually(look, 10, f"{option} is in the channel of {consumer}")
    assert found is not None
    return found


def three_with_first(group: EventGroup, *options: str) -> GroupState:
    """Three processes, of which the first, with these options, leads."""
    group.start(["c1"], "--assignment", "client", *options)
    group.joined(["c1"])
    group.start(["c2", "c3"], *LONG)
    group.joined(["c1", "c2", "c3"])
    return group.world.stable("g", 3)


def asked_while_paused(group: EventGroup) -> str:
    """The ask that a paused leader has not read, made at once: nothing that takes time to start goes before it."""
    group.process("c1").pause()
    group.world.put(PATHS.sync_request)
    return command_for(group.world, "c1", ASSIGN, 1).ask


def goes_on(group: EventGroup, names: Iterable[str], more: int = 20) -> GroupEvents:
    """Once each of these has consumed `more` records than now."""
    before = {name: group.events().consumers[name].consumed for name in names}

    def look() -> GroupEvents:
        events = group.events()
        assert all(events.consumers[name].consumed >= count + more for name, count in before.items())
        return events

    return eventually(look, 10, f"{', '.join(before)} consume", pause_s=0.1)


def share(group: EventGroup, names: list[str]) -> GroupState:
    """Once the group is settled, each partition has exactly one of these owners, also after a kill."""
    after = group.world.stable("g", len(names))

    def look() -> bool:
        owners = group.events().owners(of=names)
        assert sorted(owners) == sorted(group.everything)
        return [some for some in owners.values() if len(some) != 1] == []

    eventually(look, 15, f"{', '.join(names)} have everything", pause_s=0.1)
    return after


def all_is_well(group: EventGroup, standing: Standing, ask: str) -> None:
    group.joined(["c1", "c2", "c3"])
    after = group.world.stable("g", 3)
    assert after.generation == standing.state.generation + 1
    assert after.client is not None and after.client.ask == ask
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed, "every record was consumed once"


@pytest.mark.full("processes, beside the same in virtual time")
def test_coordinator_failure_2_by_sigkill_before_the_leader_reads_keeps_the_ask(group: EventGroup) -> None:
    standing = processes(group)
    group.process("c1").pause()
    group.start(["c3"], *LONG)
    ask = command_for(group.world, "c1", ASSIGN, 1).ask

    standing.node.kill()
    group.node("b")

    assert command_for(group.world, "c1", ASSIGN, 2).ask == ask
    stops = group.events().consumers["c2"].revoked
    assert goes_on(group, ["c2"]).consumers["c2"].revoked == stops, "no member stops before the answer"
    group.process("c1").resume()
    all_is_well(group, standing, ask)


@pytest.mark.full("processes, beside the same in virtual time")
def test_coordinator_failure_4_by_sigkill_in_a_paused_group_keeps_the_answer(group: EventGroup) -> None:
    standing, world = processes(group), group.world
    group.process("c1").pause()
    group.start(["c3"], *LONG)
    ask = command_for(world, "c1", ASSIGN, 1).ask
    control.pause(world.store, "g", "a test", 0, None)
    group.process("c1").resume()
    eventually(lambda: ask in answered(world), 10, "the answer is persisted")

    standing.node.kill()
    group.node("b")
    elected(world, 2)

    assert (world.state("g").generation, world.state("g").epoch) == (standing.state.generation, 1)
    control.resume(world.store, "g")
    all_is_well(group, standing, ask)


@pytest.mark.full("processes, beside the same in virtual time")
def test_coordinator_failure_4_by_sigkill_before_a_member_stops_keeps_a_generation(group: EventGroup) -> None:
    standing, world = processes(group), group.world
    group.process("c2").pause()
    group.start(["c3"], *LONG)
    stop = command_for(world, "c2", STOP_FETCHER, 1)
    adopted = world.state("g")
    assert stop.generation == adopted.generation == standing.state.generation + 1

    standing.node.kill()
    group.node("b")
    command_for(world, "c2", STOP_FETCHER, 2)
    group.process("c2").resume()

    assert adopted.client is not None
    all_is_well(group, standing, adopted.client.ask)


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait of a group with a lost state: the longest lease of any member."""
    monkeypatch.setattr("coordinator.rebalance.group_reader.UNKNOWN_LEASE_MS", 600)


@pytest.mark.usefixtures("short_leases")
@protocols
def test_without_persistence_lost_state_is_rebuilt_by_another_ask(hands: HandStage, like: str) -> None:
    begun = a_pair(hands, like)

    hands.world.remove(PATHS.state)

    after = hands.settled(begun.first)
    assert after.generation > begun.state.generation and after.client is not None
    assert asks(hands.world) == [after.client.ask] != [begun.ask]
    assert sorted(p for member in hands.members for p in member.held) == sorted(ALL)
    hands.member("c3", like=like)
    again = hands.settled(begun.first)
    assert (again.generation, sorted(again.target)) == (after.generation + 1, ["c1", "c2", "c3"])


@pytest.mark.usefixtures("short_leases")
@pytest.mark.parametrize("is_answered", [False, True], ids=["ask out", "answered"])
@protocols
def test_without_persistence_state_lost_during_an_ask_ends_with_one_owner_each(
    hands: HandStage, like: str, is_answered: bool
) -> None:
    begun = a_pair(hands, like)
    hands.member("c3", like=like)
    hands.asked(begun.first, "c1")
    if is_answered:
        hands.members[0].obey()

    hands.world.remove(PATHS.state)

    after = hands.settled(begun.first)
    assert after.client is not None and asks(hands.world) == [after.client.ask]
    assert (sorted(after.target), after.generation > 1) == (["c1", "c2", "c3"], True)
    assert sorted(p for member in hands.members for p in member.held) == sorted(ALL)
    assert hands.world.owners("g").keys() == ALL


def test_without_persistence_asks_that_are_lost_are_followed_by_another(hands: HandStage) -> None:
    begun = a_pair(hands, COOPERATIVE)

    hands.world.remove(PATHS.sync)

    after = hands.settled(begun.first)
    assert after.client is not None and asks(hands.world) == [after.client.ask]
    assert after.client.ask > begun.ask, "a name is not used twice"
    assert hands.stops == [0, 0], "nothing moves for it"


def test_without_persistence_ask_lost_before_its_leader_read_it_is_made_again(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    hands.asked(begun.first, "c1")

    hands.world.remove(PATHS.sync)

    after = hands.settled(begun.first)
    assert (after.generation, sorted(after.target)) == (2, ["c1", "c2", "c3"])
    assert sorted(p for member in hands.members for p in member.held) == sorted(ALL)
    assert [member.failures for member in hands.members] == [[], [], []]


def test_without_persistence_ask_lost_while_computed_takes_no_answer_of_another(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    hands.asked(begun.first, "c1")

    def is_lost() -> None:
        hands.assignors["c1"].before = lambda: None
        hands.world.remove(PATHS.sync)
        hands.member("c4")
        begun.first.turn("g")

    hands.assignors["c1"].before = is_lost
    hands.members[0].obey()

    after = hands.settled(begun.first)
    assert sorted(after.target) == ["c1", "c2", "c3", "c4"]
    assert all(one.partitions for one in after.target.values()), "c4 is in the answer"
    assert sorted(p for member in hands.members for p in member.held) == sorted(ALL)


# ---- Leader Failures


class Three(NamedTuple):
    """A running group of c1, the leader, c2 and c3; their assignors, and its state."""

    members: list[PollingConsumer]
    assignors: list[Scripted]
    state: GroupState
    log: MemoryLog


def three(world: World, like: str = EAGER, leader_options: Mapping[str, Any] | None = None, **node: Any) -> Three:
    world.coordinator(**node)
    world.topic("t", 6)
    log, assignors = MemoryLog(end=20), [Scripted(like) for _ in range(3)]
    for number, assignor in enumerate(assignors, 1):
        options = dict(leader_options or {}) if number == 1 else {}
        world.consumer("g", f"c{number}", {"t": 1}, log=log, assignment="client", assignors=[assignor], **options)
        world.stable("g", number)  # so that c1 is the oldest member
    eventually(lambda: sum(len(c.held) for c in world.consumers) == 6, 5, "all is held")
    return Three(list(world.consumers), assignors, world.state("g"), log)


def reads_on(world: World, log: MemoryLog) -> None:
    log.end += 30
    eventually(lambda: sum(len(c.records) for c in world.consumers) >= 6 * log.end, 15, "all is read")
    world.delivered_once("t", 6, log.end)


def calls(some: Three) -> list[int]:
    return [assignor.calls for assignor in some.assignors]


@protocols
def test_leader_failure_by_expiry_moves_leadership_and_it_rejoins_as_follower(world: World, like: str) -> None:
    some = three(world, like)
    before = calls(some)
    expire(some.members[0].consumer.member.store)  # type: ignore[arg-type]

    world.stable("g", 3, above=some.state.generation)  # without it and with it again, or at once with it

    assert calls(some)[0] == before[0] and calls(some)[1] >= before[1] + 1
    eventually(lambda: sum(len(c.held) for c in some.members) == 6, 5, "all is held")
    reads_on(world, some.log)
    assert [member.failures for member in some.members] == [[], [], []]


def test_leader_failure_by_session_expiry_while_computing_gives_no_answer(world: World) -> None:
    some = three(world)
    gate = ThreadGate()
    some.assignors[0].before = gate
    world.more_partitions("t", 7)
    assert gate.reached.wait(10)

    expire(some.members[0].consumer.member.store)  # type: ignore[arg-type]
    after = world.stable("g", 2, above=some.state.generation)
    eventually(lambda: some.assignors[1].calls == 1, 5, "c2 has answered")
    gate.open()

    again = world.stable("g", 3, above=after.generation)
    eventually(lambda: sum(len(c.held) for c in some.members) == 7, 5, "all is held")
    assert some.assignors[0].calls == 4, "once for each of its own generations and the one that it did not finish"
    assert again.generation == after.generation + 1
    assert [member.failures for member in some.members] == [[], [], []]


@pytest.mark.full("processes, beside the same in virtual time")
def test_leader_failure_by_sigkill_with_an_ask_out_another_member_is_asked(group: EventGroup) -> None:
    group.node("a")
    before = three_with_first(group, "--session-timeout-ms", "6000")
    ask = asked_while_paused(group)

    group.process("c1").kill()

    after = share(group, ["c2", "c3"])
    assert after.client is not None and after.client.ask > ask
    assert after.generation == before.generation + 1
    eventually(lambda: asks(group.world) == [after.client.ask], 5, "the dead leader's ask goes")  # type: ignore[union-attr]
    goes_on(group, ["c2", "c3"])


@pytest.mark.full("processes, beside the same in virtual time")
def test_leader_failure_by_eviction_moves_the_ask_and_it_rejoins_as_follower(group: EventGroup) -> None:
    group.node("a")
    before = three_with_first(group, "--session-timeout-ms", "6000", "--max-poll-interval-ms", "2000")
    ask = asked_while_paused(group)

    eventually(lambda: group.world.channel("g", "c1").ended, 10, "c1 is evicted")

    assert "evicted: it " in (group.world.channel("g", "c1").ended or "")
    eventually(lambda: sorted(group.world.state("g").target) == ["c2", "c3"], 10, "c2 has assigned")
    adopted = group.world.state("g")
    assert adopted.client is not None and adopted.client.ask > ask
    assert adopted.generation == before.generation + 1
    group.process("c1").resume()
    group.joined(["c1", "c2", "c3"], timeout_s=20)  # its lease of 4 s covers what it ran
    group.consumes_everything()
    assert "Traceback" not in group.process("c1").said()


def test_leader_failure_to_poll_while_computing_ends_it_and_another_is_asked(world: World) -> None:
    some = three(world, leader_options={"max_poll_interval_ms": 1000})
    gate = ThreadGate()
    some.assignors[0].before = gate
    world.more_partitions("t", 7)
    assert gate.reached.wait(10)

    after = world.stable("g", 2, above=some.state.generation)

    ended = world.channel("g", "c1").ended or ""
    assert ended.startswith(("left by itself: poll was", "evicted: it carried out no command")), "whichever is first"
    assert sorted(after.target) == ["c2", "c3"] and some.assignors[1].calls == 1
    gate.open()
    world.stable("g", 3, above=after.generation)
    eventually(lambda: sum(len(c.held) for c in some.members) == 7, 5, "all is held")


# ---- Assignment Failure


def twice(found: Given) -> Given:
    part = min(min(found["c1"].threads.values()))
    more = {"c2-0": found["c2"].threads["c2-0"] | {part}}
    return {**found, "c2": Assignment(more)}


def fails() -> None:
    raise ValueError("no data today")


def exits() -> None:
    raise SystemExit("enough")


WRONG: dict[str, tuple[Callable[[Given], Any], str]] = {
    "a partition twice": (twice, r"it gives t-0 to c2 and to another thread"),
    "a stranger": (
        lambda found: {**{name: one for name, one in found.items() if name != "c3"}, "c9": Assignment()},
        r"it names 'c9', which is no member of the ask",
    ),
    "a stranger more": (
        lambda found: {**found, "c9": Assignment()},
        r"it has 4 entries, more than the ask has members|it names 'c9'",
    ),
    "a stranger without a name": (lambda found: {**found, "a/b": Assignment()}, r"a/b"),
    "another's thread": (
        lambda found: {**found, "c1": Assignment({"c2-0": parts("t", 0)}), "c2": Assignment()},
        r"it names 'c2-0', which is no thread of c1",
    ),
    "an unknown topic": (
        lambda found: {**found, "c1": Assignment({"c1-0": parts("nope", 0)})},
        r"it assigns nope-0, which its partitions lack",
    ),
    "an unknown partition": (
        lambda found: {**found, "c1": Assignment({"c1-0": parts("t", 99)})},
        r"it assigns t-99, which its partitions lack",
    ),
    "a partition below zero": (lambda found: {**found, "c1": Assignment({"c1-0": parts("t", -1)})}, r"t-1|-1"),
    "nothing at all": (lambda found: None, r"NoneType"),
    "no assignments": (lambda found: dict.fromkeys(found, 7), r"int"),
    "a state that is no bytes": (lambda found: {**found, "c1": Assignment({}, "text")}, r"bytes"),  # type: ignore[arg-type]
    "an error": (lambda found: fails(), r"its assignor 'scripted' failed: ValueError: no data today"),
    "an exit": (lambda found: exits(), r"its assignor 'scripted' failed: SystemExit: enough"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_assignment_failure_notifies_members_once_stops_none_and_asks_the_next(
    world: World, answer: Callable[[Given], Any], said: str
) -> None:
    fronts: list[Hooked] = []
    some = three(world, assignment_timeout_ms=5000, wrap=lambda store: fronts.append(Hooked(store)) or fronts[-1])
    some.assignors[0].answer = answer
    generation = some.state.generation

    world.more_partitions("t", 7)

    after = world.stable("g", 3, above=generation)
    assert after.generation == generation + 1
    assert (some.assignors[1].calls, after.client and after.client.attempts) == (1, 0)
    eventually(lambda: sum(len(c.held) for c in some.members) == 7, 5, "all is held")
    eventually(lambda: all(member.failures for member in some.members), 5, "each member was notified")
    for member in some.members:
        (failure,) = member.failures
        assert "leader c1 (scripted) failed: " in str(failure), member.name
        assert re.search(said, str(failure)), member.name
    failed = [state for state in fronts[0].states() if state.state == FAILED]
    assert failed and {state.generation for state in failed} == {generation}
    assert failed[0].target == some.state.target, "the group runs on"
    stops = [command.generation for _, command in fronts[0].sent_commands() if command.option == STOP_FETCHER]
    assert [number for number in stops if number > some.state.generation] == [generation + 1] * 3
    assert asks(world) == [after.client.ask]  # type: ignore[union-attr]
    reads_on(world, some.log)


def test_assignment_failure_of_a_leader_that_hangs_its_late_answer_is_refused(world: World) -> None:
    some = three(world, assignment_timeout_ms=500)
    gate = ThreadGate()
    some.assignors[0].before = gate
    generation = some.state.generation

    world.more_partitions("t", 7)

    assert gate.reached.wait(10)
    eventually(lambda: some.assignors[1].calls == 1, 10, "c2 is asked")
    adopted = eventually(
        lambda: state if (state := world.state("g")).generation == generation + 1 else None, 10, "c2's is adopted"
    )
    assert adopted is not None and adopted.client is not None
    gate.open()
    after = world.stable("g", 3)
    assert (after.generation, after.client and after.client.ask) == (generation + 1, adopted.client.ask)
    eventually(lambda: all(member.failures for member in some.members), 5, "each member was notified")
    for member in some.members:
        (failure,) = member.failures
        assert "leader c1 (scripted) failed: it has not answered for 500 ms" in str(failure)
    assert some.assignors[0].calls == generation + 1, "it was asked once"
    reads_on(world, some.log)


@pytest.mark.usefixtures("in_pieces")
def test_assignment_failure_of_a_leader_dying_amid_its_answer_is_no_group_failure(world: World) -> None:
    fronts: list[Hooked] = []

    def opener() -> Hooked:
        fronts.append(Hooked(kazoo_factory(world.zk, 2000)()))
        return fronts[-1]

    some = three(world, leader_options={"opener": opener})

    def dies_half_way() -> None:
        assert entries(world, asks(world)[-1]) == ["member-c1", "member-c2"]
        fronts[0].die()

    fronts[0].before(creates("/answer"), dies_half_way)
    world.more_partitions("t", 7)

    eventually(lambda: fronts[0].is_over or some.members[0].error, 10, "c1's session is over")
    assert [member.error for member in some.members] == [None] * 3
    eventually(lambda: sum(len(c.held) for c in some.members) == 7, 15, "all is held")
    after = world.stable("g", 3, above=some.state.generation)
    assert some.assignors[1].calls >= 1 and [member.failures for member in some.members] == [[], [], []]
    eventually(lambda: asks(world) == [after.client.ask], 5, "what it left half goes")  # type: ignore[union-attr]


def test_assignment_failure_unread_by_a_member_is_sent_once_by_the_next_coordinator(hands: HandStage) -> None:
    begun = a_pair(hands)
    hands.member("c3")
    one, two, three_ = hands.members
    hands.assignors["c1"].before = fails
    ask = hands.asked(begun.first, "c1").ask
    one.obey()
    begun.first.turn("g")
    assert hands.state.state == FAILED and "no data today" in (hands.state.reason or "")
    one.obey()
    assert [len(member.failures) for member in hands.members] == [1, 0, 0]
    assert ASSIGNMENT_FAILED in [command.option for command in two.commands()]
    begun.first.close()

    second, front = hands.coordinator("second")

    other = hands.asked(second, "c2").ask
    assert [(made.leader, made.attempt) for made in front.made_asks()] == [("c2", 2)], "the attempts are not reset"
    after = hands.settled(second)
    assert after.client is not None and (after.generation, after.client.ask) == (2, other)
    assert [len(member.failures) for member in hands.members] == [1, 1, 1]
    assert {member.failures[0].ask for member in hands.members} == {ask}
    assert three_.held and hands.assignors["c1"].calls == 2


def test_assignment_failure_of_every_leader_asks_the_first_again_after_a_backoff(hands: HandStage) -> None:
    begun = a_pair(hands)
    for name in ("c1", "c2"):
        hands.assignors[name].before = fails
    hands.member("c3")
    hands.assignors["c3"].before = fails
    for leader in ("c1", "c2", "c3", "c1"):
        hands.asked(begun.first, leader)
        for member in hands.members:
            member.obey()
        eventually(lambda: begun.first.turn("g") and hands.state.state == FAILED, 5, f"{leader} has failed")
    assert hands.state.client is not None and hands.state.client.attempts == 4
    assert (hands.state.generation, hands.state.target, hands.stops) == (1, begun.state.target, [0, 0, 0])

    for assignor in hands.assignors.values():
        assignor.before = lambda: None

    after = hands.settled(begun.first)
    assert after.client is not None and (after.generation, after.client.attempts, after.reason) == (2, 0, None)


@pytest.fixture
def impatient(world: World, tmp_path: Path) -> Iterator[None]:
    """A node that gives leaders half a second."""
    with node_process(tmp_path, world.zk, "impatient", 1000, "--assignment-timeout-ms", "500"):
        yield


def reported(group: EventGroup) -> GroupEvents:
    """The processes' events, without those of a failed assignment."""
    lines = {name: group.process(name).lines() for name in ("c1", "c2", "c3")}
    return replayed(
        {name: [line for line in some if '"assignment_failed"' not in line] for name, some in lines.items()}
    )


@pytest.mark.full("processes, beside the same in virtual time")
def test_assignment_failure_of_a_suspended_process_ends_no_other_process(impatient: None, group: EventGroup) -> None:
    for names in (["c1"], ["c1", "c2"]):
        group.start(names[-1:], *LONG)
        group.joined(names)
    before = group.world.stable("g", 2)
    group.process("c1").pause()
    group.start(["c3"], *LONG)

    eventually(lambda: "has not answered for 500 ms" in (group.world.state("g").reason or ""), 10, "c1 has failed")
    eventually(lambda: sorted(group.world.state("g").target) == ["c1", "c2", "c3"], 10, "c2 has assigned")
    group.process("c1").resume()

    eventually(lambda: len(group.world.owners("g")) == 6, 10, "everything is claimed")
    after = group.world.stable("g", 3)
    assert after.generation == before.generation + 1
    group.producing.stop()
    eventually(lambda: sum(reported(group).committed.values()) == group.producing.stop(), 10, "all is committed")
    events = reported(group)
    assert sum(events.position.values()) == events.consumed == group.producing.stop()
    assert [len(names) for names in events.owners().values()] == [1] * 6
    for name in ("c1", "c2", "c3"):
        assert "Traceback" not in group.process(name).said()
        (failed,) = [event for event in group.process(name).printed() if event["name"] == "assignment_failed"]
        assert "leader c1 (range) failed: it has not answered for 500 ms" in failed["error"]

"""The group protocol (sources G21 to G28): "Handling Coordinator Failures", "Leader Failures", "Assignment Failure".

The four points at which a coordinator may fail are sources G22 to G25. A departure from it (G12): no member stops
before the answer is known, so that a failure at any of them finds a group that runs on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.client_side import (
    PATHS,
    Fronts,
    Given,
    HandStage,
    Hooked,
    Match,
    ProcessKilled,
    Scripted,
    ThreadGate,
    answered,
    asks,
    creates,
    writes,
)
from tests.support.event_group import EventGroup
from tests.support.events import GroupEvents, replayed
from tests.support.memlog import MemoryLog
from tests.support.stores import nothing
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, expire, parts
from zk_group.consumer.assignment.base import Assignment
from zk_group.coordinator.zk.errors import Refused, SessionLost
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, FAILED, GroupState
from zk_group.coordinator.zk.znodes.paths import ask_name, ask_number
from zk_group.coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, STOP_FETCHER, Command

ALL = parts("t", *range(6))
EAGER, COOPERATIVE = "range", "cooperative-sticky"
protocols = pytest.mark.parametrize("like", [EAGER, COOPERATIVE])


@pytest.fixture
def pair(hands: HandStage) -> HandStage:
    """A group of c1, the leader, and c2."""
    hands.begins()
    return hands


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a large group: each step of a turn is a commit of its own, and what is withdrawn goes before."""
    monkeypatch.setattr("zk_group.coordinator.rebalance.rebalancer.ROOM", 1)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of an answer is a commit of its own, as in a large group; the last goes with `answer`."""
    monkeypatch.setattr("zk_group.consumer.membership.client_assignment.ROOM", 1)


def ends_well(hands: HandStage, ask: str) -> None:
    """Stable one generation later by the answer to `ask`; one holder a partition, assigned once; no failures."""
    after = hands.settled()
    hands.turn()
    assert after.generation == hands.before.generation + 1
    assert after.client is not None
    assert (after.client.ask, after.client.attempts, asks(hands.world)) == (ask, 0, [ask])
    hands.shares(ALL)
    assert hands.world.owners("g").keys() == ALL
    for name in after.target:
        heard = [call for call in hands.assignors[name].heard if call[1] == after.generation]
        assert heard == [(f"for {name}".encode(), after.generation)], name
    assert not any(hands.failures)


def adopted_generations(front: Hooked) -> list[tuple[int, str]]:
    """(generation, ask) of every adoption that a coordinator has written."""
    found = dict.fromkeys((s.generation, s.client.ask) for s in front.states() if s.client is not None and s.client.ask)
    return list(found)


# ---- Handling Coordinator Failures, 1: before all members have joined, or before group metadata has been persisted


def test_coordinator_failure_1_next_one_makes_the_unpersisted_ask_without_stops(joined: HandStage) -> None:
    joined.front.before(creates("/sync/ask-"), joined.front.die)
    joined.dies()

    assert (asks(joined.world), joined.state) == ([joined.first_ask], joined.before)
    joined.coordinator()
    ask = joined.asked("c1").ask
    assert joined.stops == [0, 0, 0], "no member stops before the answer is known"
    ends_well(joined, ask)
    assert (joined.calls, adopted_generations(joined.front)) == (2, [(1, joined.first_ask), (2, ask)])


def test_coordinator_failure_1_members_joining_meanwhile_are_in_one_ask_of_the_next(joined: HandStage) -> None:
    joined.front.before(creates("/sync/ask-"), joined.front.die)
    joined.dies()
    joined.member("c4")

    joined.coordinator()

    ends_well(joined, joined.asked("c1").ask)
    assert [sorted(made.members) for made in joined.front.made_asks()] == [["c1", "c2", "c3", "c4"]]


def test_coordinator_failure_1_before_the_first_generation_the_next_one_makes_it(hands: HandStage) -> None:
    hands.coordinator("first")
    hands.member("c1")
    hands.member("c2")
    hands.front.before(creates("/sync/ask-"), hands.front.die)
    hands.dies()

    hands.coordinator()

    assert (hands.settled().generation, hands.calls) == (1, 1)
    hands.shares(ALL)


# ---- 2: after group metadata has been persisted, before all members have received a response


@pytest.fixture
def made(joined: HandStage) -> str:
    """The ask that a coordinator had made when it was killed."""
    joined.front.after(creates("/sync/ask-"), joined.front.die)
    joined.dies()
    return asks(joined.world)[1]


@protocols
def test_coordinator_failure_2_ask_unread_by_its_leader_is_sent_again_unchanged(joined: HandStage, made: str) -> None:
    joined.coordinator()
    command = joined.asked("c1")
    assert (command.ask, command.epoch, joined.front.made_asks()) == (made, 2, [])
    assert [each.epoch for each in joined.world.commands("g", "c1")] == [2], "the earlier epoch's is withdrawn"
    assert (joined.stops, joined.calls) == ([0, 0, 0], 1)
    ends_well(joined, made)
    assert joined.calls == 2


@pytest.mark.usefixtures("step_by_step")
def test_coordinator_failure_2_refused_takeover_still_sends_the_same_ask_again(joined: HandStage, made: str) -> None:
    joined.coordinator()

    def is_refused() -> None:
        raise Refused(0, PATHS.state, "bad-version")

    joined.front.before(creates(PATHS.command_prefix("c1"), b'"assign"'), is_refused)

    assert joined.asked("c1").ask == made
    assert (joined.state.state, joined.front.made_asks()) == (COMPLETING, [])
    ends_well(joined, made)


def test_coordinator_failure_2_joining_member_aborts_nothing_and_is_in_next_ask(joined: HandStage, made: str) -> None:
    joined.member("c4")
    joined.coordinator()

    assert joined.asked("c1").ask == made
    joined.members[0].obey()
    joined.turn()
    assert (joined.state.generation, sorted(joined.state.target)) == (2, ["c1", "c2", "c3"])
    after = joined.settled()
    assert (after.generation, sorted(after.target), joined.calls) == (3, ["c1", "c2", "c3", "c4"], 3)
    assert [sorted(made.members) for made in joined.front.made_asks()] == [["c1", "c2", "c3", "c4"]]


@pytest.mark.usefixtures("made")
def test_coordinator_failure_2_leader_that_leaves_is_replaced_and_its_ask_removed(joined: HandStage) -> None:
    joined.members.pop(0).vanish()
    joined.coordinator()

    ask = joined.asked("c2").ask
    assert [(made.leader, made.attempt) for made in joined.front.made_asks()] == [("c2", 1)], "to go is no failure"
    ends_well(joined, ask)
    assert (sorted(joined.state.target), joined.assignors["c2"].calls) == (["c2", "c3"], 1)


def test_coordinator_failure_2_restarted_static_leader_is_assigned_by_another_one(hands: HandStage) -> None:
    hands.begins(group_instance_id="c1")
    hands.member("c3")
    hands.front.after(creates("/sync/ask-"), hands.front.die)
    hands.dies()
    hands.members.pop(0).close()
    hands.member("c1", group_instance_id="c1")

    hands.coordinator()

    ends_well(hands, hands.asked("c2").ask)
    assert [(made.leader, made.attempt) for made in hands.front.made_asks()] == [("c2", 1)]
    assert "c1" in hands.front.made_asks()[0].members


# ---- 3: before a pending synchronization has been persisted


@protocols
def test_coordinator_failure_3_computing_leader_answers_the_next_coordinator(joined: HandStage) -> None:
    ask = joined.asked("c1").ask

    def fails_over() -> None:
        joined.assignors["c1"].before = nothing
        joined.fails_over()
        assert joined.asked("c1").ask == ask

    joined.assignors["c1"].before = fails_over
    joined.members[0].obey()

    assert (joined.state.generation, joined.stops) == (1, [0, 0, 0])
    ends_well(joined, ask)
    assert joined.calls == 3, "what it computed for the withdrawn command is refused, and it computes again"


def test_coordinator_failure_3_answer_complete_before_the_takeover_is_adopted(joined: HandStage) -> None:
    ask = joined.asked("c1").ask
    joined.assignors["c1"].before = joined.hand.close
    joined.members[0].obey()
    joined.assignors["c1"].before = nothing

    assert answered(joined.world)[-1] == ask
    joined.coordinator()
    ends_well(joined, ask)
    assert (joined.calls, joined.front.made_asks()) == (2, [])


def entries(world: World, ask: str) -> list[str]:
    """A leader's writes below an ask."""
    return world.names(PATHS.ask(ask))


@pytest.mark.usefixtures("in_pieces")
def test_coordinator_failure_3_entries_of_an_unfinished_answer_are_removed(joined: HandStage) -> None:
    ask = joined.asked("c1").ask

    def fails_over() -> None:
        assert entries(joined.world, ask) == ["member-c1", "member-c2"]
        joined.assignors["c1"].answer = lambda found: {name: one for name, one in found.items() if name != "c2"}
        joined.fails_over()
        assert joined.asked("c1").ask == ask

    joined.fronts["c1"].before(creates(f"{ask}/answer"), fails_over)
    joined.members[0].obey()

    eventually(lambda: joined.members[0].obey() or ask in answered(joined.world), 5, "c1 answers again")
    assert entries(joined.world, ask) == ["answer", "member-c1", "member-c3"]
    after = joined.settled()
    assert (after.generation, joined.members[1].held, joined.calls) == (2, frozenset(), 3)
    given = {part for one in after.target.values() for part in one.partitions}
    assert given == parts("t", 0, 1, 4, 5) and after.left_out.keys() == {"t"}


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("with_the_coordinator", [False, True], ids=["alone", "with the coordinator"])
@pytest.mark.parametrize("half", [[], ["member-c1", "member-c2"]], ids=["computing", "half"])
def test_coordinator_failure_3_killed_leader_is_replaced_and_half_an_answer_removed(
    joined: HandStage, half: list[str], with_the_coordinator: bool
) -> None:
    ask, front = joined.asked("c1").ask, joined.fronts["c1"]

    def killed() -> None:
        front.behind.close()
        raise ProcessKilled

    if half:
        front.before(creates(f"{ask}/answer"), killed)
    else:
        joined.assignors["c1"].before = killed

    with pytest.raises(ProcessKilled):
        joined.members.pop(0).obey()

    assert entries(joined.world, ask) == half
    assert answered(joined.world) == [joined.first_ask]
    if with_the_coordinator:
        joined.fails_over()
    other = joined.asked("c2").ask
    assert other > ask and joined.stops == [0, 0]
    ends_well(joined, other)
    assert joined.assignors["c2"].calls == 1


# ---- 4: after the metadata has been persisted, before all members have received the response


@pytest.fixture
def ask(joined: HandStage) -> str:
    """One that c1 has answered, and no coordinator has looked at since."""
    ask = joined.asked("c1").ask
    joined.members[0].obey()
    assert (answered(joined.world)[-1], joined.state.generation, joined.stops) == (ask, 1, [0, 0, 0])
    return ask


@protocols
def test_coordinator_failure_4_unadopted_answer_is_adopted_by_the_next(joined: HandStage, ask: str) -> None:
    joined.fails_over()

    ends_well(joined, ask)
    assert (joined.calls, joined.front.made_asks()) == (2, []), "no leader computes again"
    assert adopted_generations(joined.front) == [(2, ask)]


def test_coordinator_failure_4_answer_is_adopted_for_the_remaining_members(joined: HandStage, ask: str) -> None:
    joined.members.pop(0).vanish()

    joined.fails_over()
    joined.turn()

    adopted = joined.state
    assert (adopted.generation, sorted(adopted.target)) == (2, ["c2", "c3"])
    assert adopted.client is not None and adopted.client.ask == ask
    assert (joined.settled().generation, [made.leader for made in joined.front.made_asks()]) == (3, ["c2"])
    joined.shares(ALL)


def test_coordinator_failure_4_outdated_answer_is_no_failure_and_is_asked_again(joined: HandStage, ask: str) -> None:
    joined.more_partitions("t", 7)

    joined.fails_over()

    assert joined.asked("c1").ask > ask and joined.stops == [0, 0, 0]
    made = [(each.attempt, each.outdated) for each in joined.front.made_asks()]
    assert (joined.settled().generation, made) == (2, [(1, 1)])
    joined.shares(parts("t", *range(7)))
    assert joined.failures == [0, 0, 0]


def adopts(ask: str) -> Match:
    return writes(PATHS.state, f'"ask":"{ask}"'.encode())


@protocols
def test_coordinator_failure_4_answer_committed_by_a_dying_one_is_adopted_once(joined: HandStage, ask: str) -> None:
    joined.front.after(adopts(ask), joined.front.die)
    joined.dies()

    assert joined.state.generation == 2
    joined.coordinator()
    ends_well(joined, ask)
    assert (joined.calls, joined.front.made_asks()) == (2, [])


@protocols
def test_coordinator_failure_4_members_without_their_start_get_it_from_the_next(joined: HandStage, ask: str) -> None:
    one, two, three = joined.members

    def one_has_started() -> bool:
        joined.turn()
        for member in (one, three):
            member.obey()
        two.obey() if two.commands() and two.commands()[0].option == STOP_FETCHER else None
        return joined.assignors["c1"].heard[-1][1] == 2

    eventually(one_has_started, 5, "c1 has its start")
    assert joined.assignors["c2"].heard[-1][1] == 1

    joined.fails_over()
    ends_well(joined, ask)
    assert (joined.calls, joined.front.made_asks()) == (2, [])
    assert len(one.stops) <= 1, "a member with its share stops no second time"


@pytest.mark.usefixtures("step_by_step")
@protocols
@pytest.mark.parametrize("nth", range(1, 15))
def test_coordinator_failure_anywhere_after_its_nth_commit_ends_in_one_generation(joined: HandStage, nth: int) -> None:
    first = joined.front
    first.sent = 0
    first.after(lambda operations: first.sent == nth, first.die)

    try:
        joined.settled()
    except SessionLost:
        joined.coordinator()
    else:
        assert nth > 8, "a rebalance takes more commits than that"

    ends_well(joined, "ask-0000000002")
    assert joined.calls == 2, "no answer was lost"
    adopted = {made for written in (first, joined.front) for made in adopted_generations(written)}
    assert adopted == {(1, joined.first_ask), (2, "ask-0000000002")}


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
    fronts = Fronts(Hooked)
    node = world.elected(world.coordinator("a", wrap=fronts))
    standby = world.coordinator("b")
    world.topic("t", 6)
    log = MemoryLog(end=50)

    def joins(name: str) -> None:
        world.consumer("g", name, {"t": 1}, log=log, assignment="client", assignors=[Scripted(like)])

    joins("c1")
    joins("c2")
    before = world.stable("g", 2)
    assert before.client is not None
    front, ask = fronts[0], ask_name(ask_number(before.client.ask) + 1)
    (front.after if is_done else front.before)(at(ask), front.die)

    joins("c3")

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
processes = pytest.mark.full("processes, beside the same in virtual time")


def command_for(world: World, consumer: str, option: str, epoch: int) -> Command:
    def look() -> list[Command]:
        return [each for each in world.commands("g", consumer) if (each.option, each.epoch) == (option, epoch)]

    return eventually(look, 10, f"{option} is in the channel of {consumer}")[0]


def two_processes(group: EventGroup) -> GroupState:
    """Group `g` of c1, the leader, and c2."""
    for names in (["c1"], ["c1", "c2"]):
        group.start(names[-1:], *LONG)
        group.joined(names)
    return group.world.stable("g", 2)


def goes_on(group: EventGroup, names: Iterable[str], more: int = 20) -> GroupEvents:
    """Once each of these has consumed `more` records than now."""
    before = {name: group.events().consumers[name].consumed for name in names}

    def look() -> GroupEvents:
        events = group.events()
        assert all(events.consumers[name].consumed >= count + more for name, count in before.items())
        return events

    return eventually(look, 10, f"{', '.join(before)} consume", pause_s=0.1)


@processes
def test_coordinator_failure_2_by_sigkill_before_the_leader_reads_keeps_the_ask(group: EventGroup) -> None:
    node, world = group.node("a"), group.world
    before = two_processes(group)
    group.process("c1").pause()
    group.start(["c3"], *LONG)
    ask = command_for(world, "c1", ASSIGN, 1).ask

    node.kill()
    group.node("b")

    assert command_for(world, "c1", ASSIGN, 2).ask == ask
    stops = group.events().consumers["c2"].revoked
    assert goes_on(group, ["c2"]).consumers["c2"].revoked == stops, "no member stops before the answer"
    group.process("c1").resume()
    group.joined(["c1", "c2", "c3"])
    after = world.stable("g", 3)
    assert after.generation == before.generation + 1
    assert after.client is not None and after.client.ask == ask
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed, "every record was consumed once"


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait of a group with a lost state: the longest lease of any member."""
    monkeypatch.setattr("zk_group.coordinator.rebalance.group_reader.UNKNOWN_LEASE_MS", 600)


@pytest.mark.usefixtures("short_leases")
@protocols
def test_without_persistence_lost_state_is_rebuilt_by_another_ask(pair: HandStage) -> None:
    pair.world.remove(PATHS.state)

    after = pair.settled()
    assert after.generation > pair.before.generation and after.client is not None
    assert asks(pair.world) == [after.client.ask] != [pair.first_ask]
    pair.shares(ALL)
    pair.member("c3")
    again = pair.settled()
    assert (again.generation, sorted(again.target)) == (after.generation + 1, ["c1", "c2", "c3"])


@pytest.mark.usefixtures("short_leases")
@pytest.mark.parametrize("is_answered", [False, True], ids=["ask out", "answered"])
@protocols
def test_without_persistence_state_lost_in_an_ask_has_one_owner_each(joined: HandStage, is_answered: bool) -> None:
    joined.asked("c1")
    if is_answered:
        joined.members[0].obey()

    joined.world.remove(PATHS.state)

    after = joined.settled()
    assert after.client is not None and asks(joined.world) == [after.client.ask]
    assert (sorted(after.target), after.generation > 1) == (["c1", "c2", "c3"], True)
    joined.shares(ALL)
    assert joined.world.owners("g").keys() == ALL


@pytest.mark.parametrize("like", [COOPERATIVE])
def test_without_persistence_asks_that_are_lost_are_followed_by_another(pair: HandStage) -> None:
    pair.world.remove(PATHS.sync)

    after = pair.settled()
    assert after.client is not None and asks(pair.world) == [after.client.ask]
    assert after.client.ask > pair.first_ask, "a name is not used twice"
    assert pair.stops == [0, 0], "nothing moves for it"


def test_without_persistence_ask_lost_before_its_leader_read_it_is_made_again(joined: HandStage) -> None:
    joined.asked("c1")

    joined.world.remove(PATHS.sync)

    after = joined.settled()
    assert (after.generation, sorted(after.target)) == (2, ["c1", "c2", "c3"])
    joined.shares(ALL)
    assert joined.failures == [0, 0, 0]


def test_without_persistence_ask_lost_while_computed_takes_no_answer_of_another(joined: HandStage) -> None:
    joined.asked("c1")

    def is_lost() -> None:
        joined.assignors["c1"].before = nothing
        joined.world.remove(PATHS.sync)
        joined.member("c4")
        joined.turn()

    joined.assignors["c1"].before = is_lost
    joined.members[0].obey()

    after = joined.settled()
    assert sorted(after.target) == ["c1", "c2", "c3", "c4"]
    assert all(one.partitions for one in after.target.values()), "c4 is in the answer"
    joined.shares(ALL)


# ---- Leader Failures


class Three(NamedTuple):
    """A running group of c1, the leader, c2 and c3; their assignors, and its state."""

    world: World
    members: list[PollingConsumer]
    assignors: list[Scripted]
    state: GroupState
    log: MemoryLog

    @property
    def calls(self) -> list[int]:
        return [assignor.calls for assignor in self.assignors]

    @property
    def failures(self) -> list[int]:
        """Of how many failures of a leader each member was notified."""
        return [len(member.failures) for member in self.members]

    def expires(self) -> None:
        """The leader's session."""
        expire(self.members[0].consumer.member.store)  # type: ignore[arg-type]

    def computes(self) -> ThreadGate:
        """Where the leader waits in the midst of another assignment."""
        self.assignors[0].before = gate = ThreadGate()
        self.world.more_partitions("t", 7)
        assert gate.reached.wait(10)
        return gate

    def hold(self, partitions: int) -> None:
        eventually(lambda: sum(len(c.held) for c in self.members) == partitions, 15, "all is held")

    def reads_on(self) -> None:
        self.log.end += 30
        eventually(lambda: sum(len(c.records) for c in self.members) >= 6 * self.log.end, 15, "all is read")
        self.world.delivered_once("t", 6, self.log.end)

    def were_notified(self, said: str) -> None:
        """Each member, once, of what c1 is said to have done."""
        eventually(lambda: all(self.failures), 5, "each member was notified")
        for member in self.members:
            (failure,) = member.failures
            assert re.search(rf"leader c1 \(scripted\) failed: .*({said})", str(failure)), member.name


def three(world: World, like: str = EAGER, leader_options: Mapping[str, Any] | None = None, **node: Any) -> Three:
    world.coordinator(**node)
    world.topic("t", 6)
    log, assignors = MemoryLog(end=20), [Scripted(like) for _ in range(3)]
    for number, assignor in enumerate(assignors, 1):
        options = dict(leader_options or {}) if number == 1 else {}
        world.consumer("g", f"c{number}", {"t": 1}, log=log, assignment="client", assignors=[assignor], **options)
        world.stable("g", number)  # so that c1 is the oldest member
    some = Three(world, world.consumers, assignors, world.state("g"), log)
    some.hold(6)
    return some


@protocols
def test_leader_failure_by_expiry_moves_leadership_and_it_rejoins_as_follower(world: World, like: str) -> None:
    some = three(world, like)
    before = some.calls
    some.expires()

    world.stable("g", 3, above=some.state.generation)  # without it and with it again, or at once with it

    assert some.calls[0] == before[0] and some.calls[1] >= before[1] + 1
    some.hold(6)
    some.reads_on()
    assert some.failures == [0, 0, 0]


def test_leader_failure_by_session_expiry_while_computing_gives_no_answer(world: World) -> None:
    some = three(world)
    gate = some.computes()

    some.expires()
    after = world.stable("g", 2, above=some.state.generation)
    eventually(lambda: some.calls[1] == 1, 5, "c2 has answered")
    gate.open()

    again = world.stable("g", 3, above=after.generation)
    some.hold(7)
    assert some.calls[0] == 4, "once for each of its own generations and the one that it did not finish"
    assert again.generation == after.generation + 1
    assert some.failures == [0, 0, 0]


def paused_leader(group: EventGroup, *options: str) -> tuple[GroupState, str]:
    """Three processes; c1 leads with these options and is paused: their state, and the ask that c1 has unread.

    It is made at once: nothing that takes time to start goes before it.
    """
    group.node("a")
    group.start(["c1"], "--assignment", "client", "--session-timeout-ms", "6000", *options)
    group.joined(["c1"])
    group.start(["c2", "c3"], *LONG)
    group.joined(["c1", "c2", "c3"])
    before = group.world.stable("g", 3)
    group.process("c1").pause()
    group.world.put(PATHS.sync_request)
    return before, command_for(group.world, "c1", ASSIGN, 1).ask


@processes
def test_leader_failure_by_sigkill_with_an_ask_out_another_member_is_asked(group: EventGroup) -> None:
    before, ask = paused_leader(group)

    group.process("c1").kill()

    after = group.world.stable("g", 2)

    def share() -> bool:
        owners = group.events().owners(of=["c2", "c3"])
        return owners.keys() == set(group.everything) and all(len(some) == 1 for some in owners.values())

    eventually(share, 15, "c2 and c3 have everything", pause_s=0.1)
    assert after.client is not None and after.client.ask > ask
    assert after.generation == before.generation + 1
    eventually(lambda: asks(group.world) == [after.client.ask], 5, "the dead leader's ask goes")  # type: ignore[union-attr]
    goes_on(group, ["c2", "c3"])


@processes
def test_leader_failure_by_eviction_moves_the_ask_and_it_rejoins_as_follower(group: EventGroup) -> None:
    before, ask = paused_leader(group, "--max-poll-interval-ms", "2000")

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
    gate = some.computes()

    after = world.stable("g", 2, above=some.state.generation)

    ended = world.channel("g", "c1").ended or ""
    assert ended.startswith(("left by itself: poll was", "evicted: it carried out no command")), "whichever is first"
    assert sorted(after.target) == ["c2", "c3"] and some.calls[1] == 1
    gate.open()
    world.stable("g", 3, above=after.generation)
    some.hold(7)


# ---- Assignment Failure


def fails() -> None:
    raise ValueError("no data today")


def exits() -> None:
    raise SystemExit("enough")


def c1_gets(partition: int, topic: str = "t") -> Callable[[Given], Given]:
    return lambda found: {**found, "c1": Assignment({"c1-0": parts(topic, partition)})}


def twice(found: Given) -> Given:
    part = min(min(found["c1"].threads.values()))
    return {**found, "c2": Assignment({"c2-0": found["c2"].threads["c2-0"] | {part}})}


def another_for_c3(found: Given) -> Given:
    return {"c1": found["c1"], "c2": found["c2"], "c9": Assignment()}


WRONG: dict[str, tuple[Callable[[Given], Any], str]] = {
    "a partition twice": (twice, r"it gives t-0 to c2 and to another thread"),
    "a stranger": (another_for_c3, r"it names 'c9', which is no member of the ask"),
    "a stranger more": (
        lambda found: {**found, "c9": Assignment()},
        r"it has 4 entries, more than the ask has members|it names 'c9'",
    ),
    "a stranger without a name": (lambda found: {**found, "a/b": Assignment()}, r"a/b"),
    "another's thread": (
        lambda found: {**found, "c1": Assignment({"c2-0": parts("t", 0)}), "c2": Assignment()},
        r"it names 'c2-0', which is no thread of c1",
    ),
    "an unknown topic": (c1_gets(0, "nope"), r"it assigns nope-0, which its partitions lack"),
    "an unknown partition": (c1_gets(99), r"it assigns t-99, which its partitions lack"),
    "a partition below zero": (c1_gets(-1), r"t-1|-1"),
    "nothing at all": (lambda found: None, r"NoneType"),
    "no assignments": (lambda found: dict.fromkeys(found, 7), r"int"),
    "a state that is no bytes": (lambda found: {**found, "c1": Assignment({}, "text")}, r"bytes"),  # type: ignore[arg-type]
    "an error": (lambda found: fails(), r"its assignor 'scripted' failed: ValueError: no data today"),
    "an exit": (lambda found: exits(), r"its assignor 'scripted' failed: SystemExit: enough"),
}


@pytest.mark.parametrize(("answer", "said"), WRONG.values(), ids=WRONG.keys())
def test_failed_assignment_stops_none_asks_the_next(world: World, answer: Callable[[Given], Any], said: str) -> None:
    fronts = Fronts(Hooked)
    some = three(world, assignment_timeout_ms=5000, wrap=fronts)
    some.assignors[0].answer = answer
    generation = some.state.generation

    world.more_partitions("t", 7)

    after = world.stable("g", 3, above=generation)
    assert after.client is not None and after.generation == generation + 1
    assert (some.calls[1], after.client.attempts) == (1, 0)
    some.hold(7)
    some.were_notified(said)
    failed = [state for state in fronts[0].states() if state.state == FAILED]
    assert failed and {state.generation for state in failed} == {generation}
    assert failed[0].target == some.state.target, "the group runs on"
    stops = [command.generation for _, command in fronts[0].sent_commands() if command.option == STOP_FETCHER]
    assert [number for number in stops if number > generation] == [generation + 1] * 3
    assert asks(world) == [after.client.ask]
    some.reads_on()


def test_assignment_failure_of_a_leader_that_hangs_its_late_answer_is_refused(world: World) -> None:
    some = three(world, assignment_timeout_ms=500)
    generation = some.state.generation
    gate = some.computes()

    eventually(lambda: some.calls[1] == 1, 10, "c2 is asked")
    eventually(lambda: world.state("g").generation == generation + 1, 10, "c2's is adopted")
    adopted = world.state("g").client
    gate.open()
    after = world.stable("g", 3)
    assert after.client is not None and adopted is not None
    assert (after.generation, after.client.ask) == (generation + 1, adopted.ask)
    some.were_notified("it has not answered for 500 ms")
    assert some.calls[0] == generation + 1, "it was asked once"
    some.reads_on()


@pytest.mark.usefixtures("in_pieces")
def test_assignment_failure_of_a_leader_dying_amid_its_answer_is_no_group_failure(world: World) -> None:
    fronts, opener = Fronts(Hooked), kazoo_factory(world.zk, 2000)
    some = three(world, leader_options={"opener": lambda: fronts(opener())})

    def dies_half_way() -> None:
        assert entries(world, asks(world)[-1]) == ["member-c1", "member-c2"]
        fronts[0].die()

    fronts[0].before(creates("/answer"), dies_half_way)
    world.more_partitions("t", 7)

    eventually(lambda: fronts[0].is_over or some.members[0].error, 10, "c1's session is over")
    assert [member.error for member in some.members] == [None] * 3
    some.hold(7)
    after = world.stable("g", 3, above=some.state.generation)
    assert some.calls[1] >= 1 and some.failures == [0, 0, 0]
    eventually(lambda: asks(world) == [after.client.ask], 5, "what it left half goes")  # type: ignore[union-attr]


def test_assignment_failure_unread_by_a_member_is_sent_once_by_the_next_coordinator(joined: HandStage) -> None:
    one, two, three_ = joined.members
    joined.assignors["c1"].before = fails
    ask = joined.asked("c1").ask
    one.obey()
    joined.turn()
    assert joined.state.state == FAILED and "no data today" in (joined.state.reason or "")
    one.obey()
    assert joined.failures == [1, 0, 0]
    assert ASSIGNMENT_FAILED in [command.option for command in two.commands()]

    joined.fails_over()

    other = joined.asked("c2").ask
    made = [(each.leader, each.attempt) for each in joined.front.made_asks()]
    assert made == [("c2", 2)], "the attempts are not reset"
    after = joined.settled()
    assert after.client is not None and (after.generation, after.client.ask) == (2, other)
    assert joined.failures == [1, 1, 1]
    assert {member.failures[0].ask for member in joined.members} == {ask}
    assert three_.held and joined.assignors["c1"].calls == 2


def test_assignment_failure_of_every_leader_asks_the_first_again_after_a_backoff(joined: HandStage) -> None:
    for assignor in joined.assignors.values():
        assignor.before = fails
    for leader in ("c1", "c2", "c3", "c1"):
        joined.asked(leader)
        for member in joined.members:
            member.obey()
        eventually(lambda: joined.turn() and joined.state.state == FAILED, 5, f"{leader} has failed")
    assert joined.state.client is not None and joined.state.client.attempts == 4
    assert (joined.state.generation, joined.state.target, joined.stops) == (1, joined.before.target, [0, 0, 0])

    for assignor in joined.assignors.values():
        assignor.before = nothing

    after = joined.settled()
    assert after.client is not None and (after.generation, after.client.attempts, after.reason) == (2, 0, None)


def reported(group: EventGroup) -> GroupEvents:
    """The processes' events, without those of a failed assignment."""
    lines = {name: group.process(name).lines() for name in ("c1", "c2", "c3")}
    return replayed({name: [one for one in some if '"assignment_failed"' not in one] for name, some in lines.items()})


@processes
def test_assignment_failure_of_a_suspended_process_ends_no_other_process(group: EventGroup) -> None:
    group.node("impatient", "--assignment-timeout-ms", "500")
    before = two_processes(group)
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

"""Client-side assignment beside an older release: no process is ended, no znode is misread.

The release before is this one behind `EarlierRelease`, which shows its reader what the earlier one would make of each
znode, and writes what that would write. The next release is `NextRelease`, as in `test_two_releases.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.client_side import PATHS, Fronts, Hooked, Scripted, ThreadGate, asks
from tests.support.memlog import MemoryLog
from tests.support.next_release import RELEASES, this_release
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World, parts
from zk_group.consumer.errors import InconsistentGroupProtocol
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Create, Listing, Operation, SetData, Store, Watch
from zk_group.coordinator.zk.store import Node as Znode
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED

ALL = parts("t", 0, 1, 2, 3)
BOTH = "client,coordinator"
COMMAND_FIELDS = {
    "version", "option", "ownershipMap", "partitions", "topics", "epoch", "generation", "incarnation",
}  # fmt: skip
"""Of a command, in the release before."""


# ---- the release before


def as_before(path: str, data: bytes) -> bytes:
    """A znode as the previous release reads or writes it."""
    group, _, place = path.removeprefix("/consumers/groups/").partition("/")
    if not data or not path.startswith("/consumers/groups/") or not group:
        return data
    values = json.loads(data)
    if place.startswith(("ids/", "seats/")):
        values = _without(values, "client", "region")  # a `pattern` of theirs stays, which is unknown without the field
    elif place == "state":
        values.pop("client", None)
        values["target"] = {name: _without(one, "member_state", "sent") for name, one in values["target"].items()}
    elif place.startswith("history/"):
        values = _without(values, "assignment_ms", "attempts")
    elif place.startswith("channel/"):
        values = _without(values, "ask", *(["reason"] if "option" in values else []))
        if values.get("option") in (ASSIGN, ASSIGNMENT_FAILED):
            values["option"] = f"not-known-{values['option']}"
    return json.dumps(values, separators=(",", ":")).encode()


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _is_of_asks(path: str) -> bool:
    """Whether the release before would not look there."""
    return path.startswith("/consumers/groups/") and path.split("/")[4:5] in (["sync"], ["sync_request"])


class EarlierRelease(Hooked):
    """The session of a process of the previous release, without asks and without offered assignors."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Znode | None]:
        known = [path for path in paths if not _is_of_asks(path)]
        found = dict(zip(known, super().get_many(known, watch), strict=True))
        nodes = ((path, found.get(path)) for path in paths)
        return [node and node._replace(data=as_before(path, node.data)) for path, node in nodes]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        known = [path for path in paths if not _is_of_asks(path)]
        found = dict(zip(known, super().children_many(known, watch), strict=True))
        return [found.get(path) for path in paths]

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        return super().commit(
            [
                replace(each, data=as_before(each.path, each.data)) if isinstance(each, Create | SetData) else each
                for each in operations
            ]
        )


class Node(Fronts[Hooked]):
    """A coordinator of a release, and the stores in front of its sessions."""

    service: CoordinatorService

    def sends_known_fields(self, consumer: str = "") -> None:
        """Of the commands that were sent, or of those to one consumer: nothing new to the release before."""
        under = PATHS.command_prefix(consumer) if consumer else PATHS.channels
        made = [json.loads(op.data) for front in self for op in front.written(under, Create) if "/command-" in op.path]
        assert made and {name for command in made for name in command} <= COMMAND_FIELDS

    def adopts_only(self, ask: str) -> None:
        """No answer of an earlier time has become the target."""

        def asks_that_were_adopted() -> set[str]:
            states = [state for front in self for state in front.states()]
            return {state.client.ask for state in states if state.client is not None} - {""}

        eventually(lambda: asks_that_were_adopted() == {ask}, 5, "no answer of an earlier time is adopted")


class Mixed:
    """Group `g` over topic `t`, of nodes and members of two releases."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = MemoryLog(50)
        world.topic("t", 4)

    def node(self, name: str, release: Callable[[Store], Hooked] = Hooked) -> Node:
        made = Node(release)
        made.service = self.world.coordinator(name, wrap=made)
        return made

    def takes_over(self, before: Node, name: str, release: Callable[[Store], Hooked] = Hooked) -> Node:
        """Another node, elected after the one before has stopped."""
        assert before.service.term is not None
        epoch = before.service.term.epoch
        made = self.node(name, release)
        self.world.stop_coordinator(before.service)
        self.world.elected(made.service, above=epoch)
        return made

    def member(
        self, name: str, assignment: str, release: Callable[[Store], Store] = this_release, **options: Any
    ) -> PollingConsumer:
        opener = kazoo_factory(self.world.zk, SESSION_MS)
        options |= {"log": self.log, "assignment": assignment, "opener": lambda: release(opener())}
        return self.world.consumer("g", name, {"t": 1}, **options)

    def pending(self, assignment: str) -> tuple[PollingConsumer, PollingConsumer, ThreadGate, str, int]:
        """c1, which has not answered the ask that is for c2 too; c2, what c1 waits at, the ask, and the generation."""
        assignor, gate = Scripted(), ThreadGate()
        one = self.member("c1", assignment, assignors=[assignor])
        self.share(one)
        generation = self.world.stable("g", 1).generation
        assignor.before = gate
        two = self.member("c2", assignment, assignors=[Scripted()])
        assert gate.reached.wait(10)
        (command,) = [each for each in self.world.commands("g", "c1") if each.option == ASSIGN]
        return one, two, gate, command.ask, generation

    def share(self, *members: PollingConsumer) -> None:
        def look() -> bool:
            assert sorted(part for each in members for part in each.held) == sorted(ALL)
            assert [each.error for each in members] == [None] * len(members)
            return True

        eventually(look, 15, f"{', '.join(each.name for each in members)} share everything")

    def all_come(self) -> None:
        self.log.end += 100
        wanted, consumers = 4 * self.log.end, self.world.consumers
        eventually(lambda: len({item for c in consumers for item in c.polled.copy()}) == wanted, 15, "all is read")
        eventually(lambda: sum(len(c.records) for c in consumers) >= wanted, 5, "and committed")
        self.world.delivered_once("t", 4, self.log.end)

    def go_on(self, *members: PollingConsumer) -> None:
        self.share(*members)
        self.all_come()


@pytest.fixture
def mixed(world: World) -> Mixed:
    return Mixed(world)


# ---- an earlier coordinator


def test_leader_assigned_group_continues_under_an_earlier_coordinator_and_after(mixed: Mixed) -> None:
    world, new = mixed.world, mixed.node("new")
    members = [mixed.member(name, BOTH, protocols=("lag", "range")) for name in ("c1", "c2")]
    mixed.share(*members)
    first = world.stable("g", 2)
    assert first.client is not None and first.strategy == "lag"

    old = mixed.takes_over(new, "old", EarlierRelease)

    state = world.stable("g", 2, above=first.generation)
    assert (state.strategy, state.client) == ("range", None)
    mixed.go_on(*members)
    members.append(mixed.member("c3", BOTH, protocols=("lag", "range")))
    state = world.stable("g", 3, above=state.generation)
    mixed.share(*members)

    newer = mixed.takes_over(old, "newer")

    last = world.stable("g", 3, above=state.generation)
    assert last.client is not None and (last.strategy, last.client.ask > first.client.ask) == ("lag", True)
    newer.adopts_only(last.client.ask)
    mixed.go_on(*members)
    assert asks(world) == [last.client.ask]
    assert [member.consumer.member.registrations for member in members] == [1, 1, 1], "no registration was ended"


def test_client_only_group_continues_under_an_earlier_coordinator(mixed: Mixed) -> None:
    world, new = mixed.world, mixed.node("new")
    members = [mixed.member(name, "client") for name in ("c1", "c2")]
    mixed.share(*members)
    before = world.stable("g", 2)
    assert before.client is not None

    old = mixed.takes_over(new, "old", EarlierRelease)

    eventually(lambda: world.state("g").left_out.keys() >= {"c1", "c2"}, 10, "both are left out, in words")
    mixed.all_come()
    mixed.share(*members)
    members.append(mixed.member("c3", "client"))
    eventually(lambda: "c3" in world.state("g").left_out, 10, "so is a later member")

    newer = mixed.takes_over(old, "newer")

    after = world.stable("g", 3, above=before.generation)
    mixed.go_on(*members)
    assert after.client is not None and asks(world) == [after.client.ask]
    newer.adopts_only(after.client.ask)
    assert after.client.ask > before.client.ask
    assert [each.consumer.member.registrations for each in members] == [1, 1, 1]


def test_earlier_coordinator_withdraws_a_pending_ask_and_refuses_its_answer(mixed: Mixed) -> None:
    world, new = mixed.world, mixed.node("new")
    one, two, gate, ask, generation = mixed.pending(BOTH)

    old = mixed.takes_over(new, "old", EarlierRelease)
    eventually(lambda: world.state("g").epoch == 2 and len(world.state("g").target) == 2, 10, "it coordinates")
    gate.open()

    mixed.share(one, two)
    state = world.stable("g", 2, above=generation)
    assert (state.strategy, state.client, world.data(PATHS.answer(ask))) == ("range", None, None)
    mixed.all_come()

    mixed.takes_over(old, "newer")

    last = world.stable("g", 2, above=state.generation)
    assert last.client is not None and last.client.ask > ask, "a name is not used twice"
    mixed.go_on(one, two)
    assert [each.failures for each in (one, two)] == [[], []]


# ---- an earlier consumer


def test_earlier_consumer_gets_known_command_fields_and_coordinator_assignment(mixed: Mixed) -> None:
    world, node = mixed.world, mixed.node("new")
    old = mixed.member("c1", "coordinator", EarlierRelease)
    mixed.share(old)

    new = mixed.member("c2", BOTH)

    mixed.go_on(old, new)
    assert (world.stable("g", 2).client, asks(world)) == (None, [])
    node.sends_known_fields()

    old.close()
    world.consumers.remove(old)
    eventually(lambda: world.stable("g", 1).client is not None, 10, "with the last one updated it goes over")
    again = mixed.member("c1", BOTH)
    mixed.share(again, new)
    world.consumers.append(old)  # what it read counts
    mixed.all_come()

    another = mixed.member("c3", "coordinator", EarlierRelease)

    mixed.share(again, new, another)
    assert world.stable("g", 3).client is None, "and back"
    mixed.all_come()
    node.sends_known_fields("c3")
    assert (old.consumer.member._drain.stale, another.consumer.member._drain.stale) == (0, 0)


@pytest.mark.parametrize(("first", "second"), [("coordinator", "client"), ("client", "coordinator")])
def test_member_of_one_side_only_is_refused_by_a_group_of_the_other_side(mixed: Mixed, first: str, second: str) -> None:
    mixed.node("new")
    releases = {"coordinator": EarlierRelease, "client": this_release}
    one = mixed.member("c1", first, releases[first])
    mixed.share(one)
    before = mixed.world.stable("g", 1)

    two = mixed.member("c2", second, releases[second])

    eventually(lambda: isinstance(two.error, InconsistentGroupProtocol), 10, "it is refused")
    assert "(client-side)" in str(two.error)
    mixed.all_come()
    assert (mixed.world.stable("g", 1).generation, one.held) == (before.generation, ALL)


# ---- the next release


@pytest.mark.parametrize("leader", RELEASES)
@pytest.mark.parametrize("follower", RELEASES)
@pytest.mark.parametrize("coordinator", RELEASES)
def test_releases_read_each_others_asks_and_answers(mixed: Mixed, coordinator: str, leader: str, follower: str) -> None:
    world, assignors = mixed.world, [Scripted("cooperative-sticky"), Scripted("cooperative-sticky")]
    world.coordinator(wrap=RELEASES[coordinator])
    one = mixed.member("c1", "client", RELEASES[leader], assignors=assignors[:1])
    generation = world.stable("g", 1).generation

    two = mixed.member("c2", "client", RELEASES[follower], assignors=assignors[1:])

    after = world.stable("g", 2, above=generation)
    mixed.go_on(one, two)
    assert after.client is not None and asks(world) == [after.client.ask]
    for name, assignor in zip(("c1", "c2"), assignors, strict=True):
        eventually(lambda a=assignor: a.heard[-1][1] == after.generation, 5, f"{name} was notified")
        assert assignor.heard[-1][0] == f"for {name}".encode()
    world.more_partitions("t", 5)
    world.stable("g", 2, above=after.generation)
    assert (one.failures, two.failures) == ([], [])


@pytest.mark.parametrize("first, second", [("this", "next"), ("next", "this")], ids=["upgrade", "downgrade"])
def test_an_ask_that_one_release_made_is_adopted_by_the_other(mixed: Mixed, first: str, second: str) -> None:
    world = mixed.world
    before = world.elected(world.coordinator("first", wrap=RELEASES[first]))
    one, two, gate, ask, generation = mixed.pending("client")

    after = world.coordinator("second", wrap=RELEASES[second])
    world.stop_coordinator(before)
    world.elected(after, above=1)
    gate.open()

    state = world.stable("g", 2, above=generation)
    assert state.client is not None
    assert (state.state, state.generation, state.client.ask) == (STABLE, generation + 1, ask)
    mixed.go_on(one, two)

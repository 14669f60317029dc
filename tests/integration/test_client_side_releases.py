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

from consumer.errors import InconsistentGroupProtocol
from coordinator.service import CoordinatorService
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create, Listing, Node, Operation, SetData, Store, StoreFactory, Watch
from coordinator.zk.znodes.group_state import CLIENT, STABLE
from coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED
from tests.support.client_side import PATHS, Hooked, Scripted, ThreadGate, asks
from tests.support.memlog import MemoryLog
from tests.support.next_release import NextRelease
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World, parts

ALL = parts("t", 0, 1, 2, 3)
BOTH = "client,coordinator"
NEW_FIELDS = {"client", "ask", "reason", "member_state", "sent", "assignment_ms", "attempts"}
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


def _as_seen(path: str, node: Node | None) -> Node | None:
    return node._replace(data=as_before(path, node.data)) if node is not None else None


class EarlierRelease(Hooked):
    """The session of a process of the previous release, without asks and without offered assignors."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        known = [path for path in paths if not _is_of_asks(path)]
        found = dict(zip(known, super().get_many(known, watch), strict=True))
        return [_as_seen(path, found.get(path)) for path in paths]

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


class Fronts:
    """The stores in front of a node's sessions."""

    def __init__(self, release: Callable[[Store], Hooked]) -> None:
        self._release = release
        self.made: list[Hooked] = []

    def __call__(self, store: Store) -> Hooked:
        self.made.append(self._release(store))
        return self.made[-1]

    def commands(self) -> list[dict[str, Any]]:
        """The JSON of every command that was sent."""
        return [
            json.loads(each.data)
            for front in self.made
            for commit in front.commits
            for each in commit
            if isinstance(each, Create) and "/command-" in each.path
        ]

    def adopted(self) -> set[str]:
        """The asks whose answers have become the target."""
        states = [state for front in self.made for state in front.states()]
        return {state.client.ask for state in states if state.client is not None} - {""}

    def written(self) -> set[str]:
        """The names of the fields of everything that was written for the group."""
        return {
            name
            for front in self.made
            for commit in front.commits
            for each in commit
            if isinstance(each, Create | SetData) and each.path.startswith(PATHS.root) and each.data
            for name in json.loads(each.data)
        }


def earlier_opener(world: World) -> StoreFactory:
    opener = kazoo_factory(world.zk, SESSION_MS)
    return lambda: EarlierRelease(opener())


def node(
    world: World, name: str, release: Callable[[Store], Hooked], **options: Any
) -> tuple[CoordinatorService, Fronts]:
    fronts = Fronts(release)
    return world.coordinator(name, wrap=fronts, **options), fronts


def takes_over(world: World, before: CoordinatorService, name: str, release: Callable[[Store], Hooked]) -> Any:
    """Another node, elected after the one before has stopped."""
    assert before.term is not None
    epoch = before.term.epoch
    made, fronts = node(world, name, release)
    world.stop_coordinator(before)
    world.elected(made, above=epoch)
    return made, fronts


def member(world: World, name: str, log: MemoryLog, assignment: str, **options: Any) -> PollingConsumer:
    return world.consumer("g", name, {"t": 1}, log=log, assignment=assignment, **options)


def share(world: World, *members: PollingConsumer) -> None:
    def look() -> bool:
        assert sorted(part for each in members for part in each.held) == sorted(ALL)
        assert [each.error for each in members] == [None] * len(members)
        return True

    eventually(look, 15, f"{', '.join(each.name for each in members)} share everything")


def all_come(world: World, log: MemoryLog, more: int = 100) -> None:
    log.end += more
    wanted = 4 * log.end
    eventually(lambda: len({item for c in world.consumers for item in c.polled.copy()}) == wanted, 15, "all is read")
    eventually(lambda: sum(len(c.records) for c in world.consumers) >= wanted, 5, "and committed")
    world.delivered_once("t", 4, log.end)


# ---- an earlier coordinator


def test_client_only_member_is_left_out_with_a_reason_by_an_earlier_coordinator(world: World) -> None:
    service, fronts = node(world, "old", EarlierRelease)
    world.topic("t", 4)
    log = MemoryLog(50)
    one = member(world, "c1", log, "coordinator")
    share(world, one)
    before = world.stable("g", 1)

    two = member(world, "c2", log, "client")

    eventually(lambda: "c2" in world.state("g").left_out, 10, "it is left out")
    assert world.state("g").left_out["c2"] == "its registration cannot be read"
    (said,) = [text for path, text in service.problems.current().items() if path == PATHS.id("c2")]
    assert PATHS.id("c2") in said
    all_come(world, log)
    assert world.channel("g", "c2").is_live and "c2" in world.names(PATHS.ids), "nothing of it is ended"
    assert (two.error, two.held, two.consumer.member.registrations) == (None, frozenset(), 1)
    assert (world.stable("g", 1).generation, one.held) == (before.generation, ALL)
    assert not NEW_FIELDS - {"reason"} & fronts.written()


def test_region_member_is_left_out_with_a_reason_by_an_earlier_coordinator(world: World) -> None:
    node(world, "old", EarlierRelease)
    world.topic("t", 4)
    log = MemoryLog(50)
    one = member(world, "c1", log, "coordinator")
    share(world, one)
    before = world.stable("g", 1)

    two = member(world, "c2", log, "coordinator", region="r")

    eventually(lambda: "c2" in world.state("g").left_out, 10, "it is left out")
    assert world.state("g").left_out["c2"] == "its registration cannot be read"
    all_come(world, log)
    assert world.channel("g", "c2").is_live and "c2" in world.names(PATHS.ids), "nothing of it is ended"
    assert (two.error, two.held, two.consumer.member.registrations) == (None, frozenset(), 1)
    assert (world.stable("g", 1).generation, one.held) == (before.generation, ALL)


def test_members_offering_both_sides_get_the_strategy_of_an_earlier_coordinator(world: World) -> None:
    _, fronts = node(world, "old", EarlierRelease)
    world.topic("t", 4)
    log = MemoryLog(50)

    members = [member(world, name, log, BOTH, protocols=("lag", "range")) for name in ("c1", "c2")]

    share(world, *members)
    all_come(world, log)
    state = world.stable("g", 2)
    assert (state.strategy, state.client, asks(world)) == ("range", None, [])
    sent = fronts.commands()
    assert sent and {name for command in sent for name in command} <= COMMAND_FIELDS
    assert [len(each.held) for each in members] == [2, 2]


def test_leader_assigned_group_continues_under_an_earlier_coordinator_and_after(world: World) -> None:
    new, _ = node(world, "new", Hooked)
    world.topic("t", 4)
    log = MemoryLog(50)
    members = [member(world, name, log, BOTH, protocols=("lag", "range")) for name in ("c1", "c2")]
    share(world, *members)
    first = world.stable("g", 2)
    assert first.client is not None and first.strategy == "lag"

    old, fronts = takes_over(world, new, "old", EarlierRelease)

    state = world.stable("g", 2, above=first.generation)
    assert (state.strategy, state.client) == ("range", None)
    share(world, *members)
    all_come(world, log)
    members.append(member(world, "c3", log, BOTH, protocols=("lag", "range")))
    state = world.stable("g", 3, above=state.generation)
    share(world, *members)
    assert {name for command in fronts.commands() for name in command} <= COMMAND_FIELDS
    assert not NEW_FIELDS - {"reason"} & fronts.written()

    _, fronts = takes_over(world, old, "newer", Hooked)

    last = world.stable("g", 3, above=state.generation)
    assert last.client is not None and (last.strategy, last.client.ask > first.client.ask) == ("lag", True)
    ask = last.client.ask
    eventually(lambda: fronts.adopted() == {ask}, 5, "no answer of an earlier time is adopted")
    share(world, *members)
    all_come(world, log)
    assert asks(world) == [last.client.ask]
    assert [member.consumer.member.registrations for member in members] == [1, 1, 1], "no registration was ended"


def test_client_only_group_continues_under_an_earlier_coordinator(world: World) -> None:
    new, _ = node(world, "new", Hooked)
    world.topic("t", 4)
    log = MemoryLog(50)
    members = [member(world, name, log, "client") for name in ("c1", "c2")]
    share(world, *members)
    before = world.stable("g", 2)
    assert before.client is not None

    old, _ = takes_over(world, new, "old", EarlierRelease)

    eventually(lambda: world.state("g").left_out.keys() >= {"c1", "c2"}, 10, "both are left out, in words")
    all_come(world, log)
    share(world, *members)
    late = member(world, "c3", log, "client")
    eventually(lambda: "c3" in world.state("g").left_out, 10, "so is a later member")

    _, fronts = takes_over(world, old, "newer", Hooked)

    after = world.stable("g", 3, above=before.generation)
    share(world, *members, late)
    all_come(world, log)
    assert after.client is not None and asks(world) == [after.client.ask]
    ask = after.client.ask
    eventually(lambda: fronts.adopted() == {ask}, 5, "no answer of an earlier time is adopted")
    assert after.client.ask > before.client.ask
    assert [each.consumer.member.registrations for each in (*members, late)] == [1, 1, 1]


def test_earlier_coordinator_withdraws_a_pending_ask_and_refuses_its_answer(world: World) -> None:
    new, _ = node(world, "new", Hooked)
    world.topic("t", 4)
    log, assignor, gate = MemoryLog(50), Scripted(), ThreadGate()
    one = member(world, "c1", log, BOTH, assignors=[assignor])
    share(world, one)
    first = world.stable("g", 1)
    assignor.before = gate
    two = member(world, "c2", log, BOTH, assignors=[Scripted()])
    assert gate.reached.wait(10)
    (command,) = [each for each in world.commands("g", "c1") if each.option == ASSIGN]

    old, _ = takes_over(world, new, "old", EarlierRelease)
    eventually(lambda: world.state("g").epoch == 2 and len(world.state("g").target) == 2, 10, "it coordinates")
    gate.open()

    share(world, one, two)
    state = world.stable("g", 2, above=first.generation)
    assert (state.strategy, state.client, world.data(PATHS.answer(command.ask))) == ("range", None, None)
    all_come(world, log)

    takes_over(world, old, "newer", Hooked)

    last = world.stable("g", 2, above=state.generation)
    assert last.client is not None and last.client.ask > command.ask, "a name is not used twice"
    share(world, one, two)
    all_come(world, log)
    assert [each.failures for each in (one, two)] == [[], []]


def test_leader_request_is_ignored_by_an_earlier_coordinator(world: World) -> None:
    world.put(PATHS.sync_request, b'{"version":1,"by":"c9","incarnation":"x","reason":"topic t has changed"}')
    node(world, "old", EarlierRelease)
    world.topic("t", 4)
    log = MemoryLog(50)

    one = member(world, "c1", log, BOTH)

    share(world, one)
    all_come(world, log)
    assert (world.stable("g", 1).generation, world.data(PATHS.sync_request) is None) == (1, False)


# ---- an earlier consumer


def test_earlier_consumer_gets_known_command_fields_and_coordinator_assignment(world: World) -> None:
    _, fronts = node(world, "new", Hooked)
    world.topic("t", 4)
    log = MemoryLog(50)
    old = member(world, "c1", log, "coordinator", opener=earlier_opener(world))
    share(world, old)

    new = member(world, "c2", log, BOTH)

    share(world, old, new)
    all_come(world, log)
    state = world.stable("g", 2)
    assert (state.client, asks(world)) == (None, [])
    assert {name for command in fronts.commands() for name in command} <= COMMAND_FIELDS
    assert old.consumer.member._drain.stale == 0

    old.close()
    world.consumers.remove(old)
    eventually(lambda: world.stable("g", 1).client is not None, 10, "with the last one updated it goes over")
    again = member(world, "c1", log, BOTH)
    share(world, again, new)
    world.consumers.append(old)  # what it read counts
    all_come(world, log)


def test_earlier_consumer_that_joins_reverts_the_group_to_coordinator_assignment(world: World) -> None:
    _, fronts = node(world, "new", Hooked)
    world.topic("t", 4)
    log = MemoryLog(50)
    new = member(world, "c1", log, BOTH)
    share(world, new)
    assert world.stable("g", 1).client is not None

    old = member(world, "c2", log, "coordinator", opener=earlier_opener(world))

    share(world, new, old)
    assert world.stable("g", 2).client is None
    all_come(world, log)
    to_old = [
        set(json.loads(each.data))
        for front in fronts.made
        for commit in front.commits
        for each in commit
        if isinstance(each, Create) and each.path.startswith(f"{PATHS.channel('c2')}/command-")
    ]
    assert to_old and all(names <= COMMAND_FIELDS for names in to_old)
    assert old.consumer.member._drain.stale == 0


@pytest.mark.parametrize(("first", "second"), [("coordinator", "client"), ("client", "coordinator")])
def test_member_of_one_side_only_is_refused_by_a_group_of_the_other_side(world: World, first: str, second: str) -> None:
    node(world, "new", Hooked)
    world.topic("t", 4)
    log = MemoryLog(50)
    openers: dict[str, Any] = {"coordinator": {"opener": earlier_opener(world)}, "client": {}}
    one = member(world, "c1", log, first, **openers[first])
    share(world, one)
    before = world.stable("g", 1)

    two = member(world, "c2", log, second, **openers[second])

    eventually(lambda: isinstance(two.error, InconsistentGroupProtocol), 10, "it is refused")
    assert "(client-side)" in str(two.error)
    all_come(world, log)
    assert (world.stable("g", 1).generation, one.held) == (before.generation, ALL)


# ---- the next release


def this_release(store: Store) -> Store:
    return store


RELEASES: dict[str, Callable[[Store], Store]] = {"this": this_release, "next": NextRelease}


class NextOffers(FrontStore):
    """A member of the next release: what it offers for client-side assignment has fields that are not known yet."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        return self.behind.commit([self._with_news(each) for each in operations])

    def _with_news(self, each: Operation) -> Operation:
        if not isinstance(each, Create | SetData) or not each.path.startswith((PATHS.ids, PATHS.seats)):
            return each
        values = json.loads(each.data)
        values["client"] = {**values["client"], "version": 9, "weights": {"lag": [1, None]}, "": {}}
        return replace(each, data=json.dumps(values).encode())


@pytest.mark.parametrize("leader", RELEASES)
@pytest.mark.parametrize("follower", RELEASES)
@pytest.mark.parametrize("coordinator", RELEASES)
def test_asks_and_answers_of_one_release_are_read_by_the_other(
    world: World, coordinator: str, leader: str, follower: str
) -> None:
    world.topic("t", 4)
    world.coordinator(wrap=RELEASES[coordinator])
    log, opener = MemoryLog(50), kazoo_factory(world.zk, SESSION_MS)
    assignors = [Scripted("cooperative-sticky"), Scripted("cooperative-sticky")]
    one = member(world, "c1", log, "client", assignors=assignors[:1], opener=lambda: RELEASES[leader](opener()))
    generation = world.stable("g", 1).generation

    two = member(world, "c2", log, "client", assignors=assignors[1:], opener=lambda: RELEASES[follower](opener()))

    after = world.stable("g", 2, above=generation)
    share(world, one, two)
    all_come(world, log)
    assert after.client is not None and asks(world) == [after.client.ask]
    for name, assignor in zip(("c1", "c2"), assignors, strict=True):
        eventually(lambda a=assignor: a.heard[-1][1] == after.generation, 5, f"{name} was notified")
        assert assignor.heard[-1][0] == f"for {name}".encode()
    world.more_partitions("t", 5)
    world.stable("g", 2, above=after.generation)
    assert (one.failures, two.failures) == ([], [])


@pytest.mark.parametrize("first, second", [("this", "next"), ("next", "this")], ids=["upgrade", "downgrade"])
def test_an_ask_that_one_release_made_is_adopted_by_the_other(world: World, first: str, second: str) -> None:
    world.topic("t", 4)
    before = world.coordinator("first", wrap=RELEASES[first])
    world.elected(before)
    log, assignor, gate = MemoryLog(50), Scripted(), ThreadGate()
    one = member(world, "c1", log, "client", assignors=[assignor])
    share(world, one)
    generation = world.stable("g", 1).generation
    assignor.before = gate
    two = member(world, "c2", log, "client", assignors=[Scripted()])
    assert gate.reached.wait(10)
    (command,) = [each for each in world.commands("g", "c1") if each.option == ASSIGN]

    after = world.coordinator("second", wrap=RELEASES[second])
    world.stop_coordinator(before)
    world.elected(after, above=1)
    gate.open()

    state = world.stable("g", 2, above=generation)
    assert state.client is not None
    assert (state.state, state.generation, state.client.ask) == (STABLE, generation + 1, command.ask)
    share(world, one, two)
    all_come(world, log)


def test_known_assignors_of_a_member_of_the_next_release_are_used(world: World) -> None:
    world.topic("t", 4)
    world.coordinator()
    log, opener = MemoryLog(50), kazoo_factory(world.zk, SESSION_MS)
    one = member(world, "c1", log, "client")
    generation = world.stable("g", 1).generation

    two = member(world, "c2", log, "client", opener=lambda: NextOffers(opener()), group_instance_id="c2")

    assert world.stable("g", 2, above=generation).generation == generation + 1
    share(world, one, two)
    all_come(world, log)
    assert json.loads(world.data(PATHS.id("c2")) or b"")["client"]["version"] == 9
    assert json.loads(world.data(PATHS.id("c2")) or b"")["pattern"] == CLIENT

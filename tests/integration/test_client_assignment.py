"""Client-side assignment: one member is the leader, and decides for all (seed 001)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer.assignment.base import Assignment, ClientAssignor, Cluster
from consumer.assignment.consumers import client_assignors
from consumer.config import Subscription
from consumer.errors import InconsistentGroupProtocol
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import GroupPaths
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")


def client(world: World, name: str, topics: dict[str, int] | None = None, **options: Any) -> Any:
    options.setdefault("assignment", "client")
    return world.consumer("g", name, topics or {"t": 1}, **options)


def asks(world: World) -> list[str]:
    return world.names(PATHS.sync)


def test_members_that_assign_by_themselves_share_all_partitions(world: World) -> None:
    world.coordinator()
    world.topic("t", 8)

    client(world, "c1")
    client(world, "c2")

    state = world.stable("g", 2)
    assert state.strategy == "range" and state.client is not None and state.client.ask in asks(world)
    one, two = world.consumers
    eventually(lambda: one.held | two.held == parts("t", *range(8)), 5, "both fetch their share")
    assert one.held.isdisjoint(two.held)


def test_joining_member_is_in_the_next_answer_and_the_old_ask_is_removed(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    client(world, "c1", protocols=("cooperative-sticky",))
    before = world.stable("g", 1)

    client(world, "c2", protocols=("cooperative-sticky",))

    after = world.stable("g", 2)
    assert after.client is not None and before.client is not None and after.client.is_cooperative
    assert after.generation == before.generation + 1
    assert after.client.ask > before.client.ask
    assert eventually(lambda: asks(world) == [after.client.ask], 5, "one ask exists")  # type: ignore[union-attr]
    eventually(lambda: [len(consumer.held) for consumer in world.consumers] == [2, 2], 5, "both fetch their share")


class Scripted(ClientAssignor):
    """Calls the test's function, and then assigns like range."""

    is_cooperative = False

    def __init__(self, name: str = "scripted", does: Any = None) -> None:
        self.name = name
        self.calls = 0
        self.heard: list[tuple[bytes, int]] = []
        self._does = does
        self._range = client_assignors()["range"]

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        self.calls += 1
        if self._does is not None:
            self._does()
        return {
            name: Assignment(one.threads, f"for {name}".encode())
            for name, one in self._range.assign(cluster, metadata).items()
        }

    def on_assignment(self, assignment: Assignment, member_state: bytes, generation: int) -> None:
        self.heard.append((member_state, generation))


def scripted(world: World, name: str, does: Any = None, **options: Any) -> tuple[Any, Scripted]:
    assignor = Scripted(does=does)
    return client(world, name, assignors=[assignor], **options), assignor


def test_coordinator_needs_no_installed_protocol_and_members_get_their_own_state(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)

    _, one = scripted(world, "c1")
    world.stable("g", 1)
    _, two = scripted(world, "c2")

    generation = world.stable("g", 2).generation
    eventually(lambda: one.heard[-1:] == [(b"for c1", generation)], 5, "c1 was notified of its state")
    eventually(lambda: two.heard[-1:] == [(b"for c2", generation)], 5, "c2 was notified of its state")
    assert two.calls == 0 and one.calls >= 1, "the oldest member leads"


def fail() -> None:
    raise ValueError("no data today")


def test_failed_leader_is_replaced_by_the_next_and_every_member_is_notified(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    failing = ThreadRuntime().event()
    one, _ = scripted(world, "c1", lambda: fail() if failing.is_set() else None)
    world.stable("g", 1)
    two, good = scripted(world, "c2")
    generation = world.stable("g", 2).generation
    failing.set()

    world.more_partitions("t", 4)

    world.stable("g", 2, above=generation)
    assert good.calls == 1
    eventually(lambda: one.failures and two.failures, 5, "both were notified of the failure")
    for member in (one, two):
        assert len(member.failures) == 1
        assert "leader c1 (scripted) failed" in str(member.failures[0]) and "no data today" in str(member.failures[0])
    eventually(lambda: one.held | two.held == parts("t", 0, 1, 2, 3), 5, "all is fetched")


def test_failure_of_the_only_leader_is_reported_and_retried(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    failing = ThreadRuntime().event()
    failing.set()

    scripted(world, "c1", lambda: fail() if failing.is_set() else None)

    state = eventually(
        lambda: (state := world.state("g")).client is not None and state.client.attempts > 2 and state, 10, "it fails"
    )
    assert state.state == "RebalanceFailed" and "no data today" in (state.reason or "")
    failing.clear()
    assert world.stable("g", 1).client.attempts == 0  # type: ignore[union-attr]


def test_a_leader_that_hangs_is_followed_by_the_next(world: World) -> None:
    world.coordinator(assignment_timeout_ms=500)
    world.topic("t", 2)
    going_on = ThreadRuntime().event()
    _, hanging = scripted(world, "c1", lambda: going_on.wait(30))
    eventually(lambda: hanging.calls, 10, "c1 is asked")

    two, good = scripted(world, "c2")

    eventually(lambda: good.calls and world.state("g").target.get("c2"), 10, "the answer of c2 is adopted")
    eventually(lambda: two.held, 10, "c2 fetches its partitions independently of c1")
    going_on.set()
    world.stable("g", 2)


def test_a_newcomer_without_a_common_protocol_is_refused(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    client(world, "c1", protocols=("sticky",))
    world.stable("g", 1)

    other = client(world, "c2", protocols=("range",))

    eventually(lambda: isinstance(other.error, InconsistentGroupProtocol), 10, "c2 is refused")
    assert "sticky (client-side)" in str(other.error).replace("'", "")
    assert world.state("g").generation == 1


def test_group_switches_to_client_side_assignment_and_back_by_rolling_restarts(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    names = ("c1", "c2")

    def restart_with(assignment: str) -> None:
        for name in names:
            old = next((each for each in world.consumers if each.name == name), None)
            if old is not None:
                old.close()
                world.consumers.remove(old)
            client(world, name, assignment=assignment)
            world.stable("g", len(world.consumers), above=world.state("g").generation - 1)

    restart_with("coordinator")
    assert world.stable("g", 2).client is None
    restart_with("client,coordinator")
    eventually(lambda: world.stable("g", 2).client is not None, 10, "the group assigns by a leader")
    restart_with("client")
    assert world.stable("g", 2).client is not None
    restart_with("coordinator,client")
    eventually(lambda: world.stable("g", 2).client is None, 10, "the group is the coordinator's again")
    restart_with("coordinator")
    assert world.stable("g", 2).client is None
    eventually(lambda: asks(world) == [], 5, "no ask is left")


def test_topics_that_change_are_the_leaders_business(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    client(world, "c1", {"t.*": 1}, pattern="white_list")
    world.stable("g", 1)

    world.topic("t2", 3)

    eventually(lambda: world.consumers[0].held == parts("t", 0, 1) | parts("t2", 0, 1, 2), 10, "t2 is fetched")
    world.more_partitions("t", 4)
    eventually(lambda: len(world.consumers[0].held) == 7, 10, "the new partitions are fetched")


def test_a_bounce_of_a_static_leader_changes_neither_leader_nor_generation(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    first = client(world, "c1", group_instance_id="c1")
    client(world, "c2", group_instance_id="c2")
    before = world.stable("g", 2)

    first.close()
    world.consumers.remove(first)
    client(world, "c1", group_instance_id="c1")

    eventually(lambda: len(world.consumers[-1].held) == 2, 10, "c1 has what it had")
    after = world.stable("g", 2)
    assert (after.generation, after.client) == (before.generation, before.client)


def test_restarted_static_leader_watches_topics_as_before(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    first = client(world, "c1", {"t.*": 1}, pattern="white_list", group_instance_id="c1")
    before = world.stable("g", 1)

    first.close()
    world.consumers.remove(first)
    again = client(world, "c1", {"t.*": 1}, pattern="white_list", group_instance_id="c1")
    eventually(lambda: len(again.held) == 2, 10, "c1 has what it had")
    assert world.stable("g", 1).client == before.client
    world.topic("t2", 3)

    eventually(lambda: again.held == parts("t", 0, 1) | parts("t2", 0, 1, 2), 10, "t2 is fetched")


def test_a_subscription_that_changes_in_place_is_a_rejoin(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    world.topic("u", 2)
    one = client(world, "c1")
    generation = world.stable("g", 1).generation

    one.consumer.subscribe(Subscription({"u": 1}))

    eventually(lambda: one.held == parts("u", 0, 1), 10, "u is fetched")
    assert world.stable("g", 1).generation == generation + 1

"""The group protocol (sources G8 to G16): client-side assignment, by one member for all.

"Rolling Upgrades", "Subscription Change", "Topic Metadata Change" and the versioned formats.

"Handling Coordinator Failures", "Leader Failures" and "Assignment Failure" are in `test_seed_001_failures.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pytest

from tests.support.client_side import (
    PATHS,
    Fronts,
    HandStage,
    Hooked,
    Scripted,
    ThreadGate,
    asks,
    padded,
    states,
    switches,
)
from tests.support.event_group import EventGroup
from tests.support.stores import FrontStore
from tests.support.wait import Waiting, eventually, within
from tests.support.world import PollingConsumer, World, parts
from zk_group.consumer.config import Subscription
from zk_group.consumer.errors import InconsistentGroupProtocol
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Listing, Node, Watch
from zk_group.coordinator.zk.znodes.group_state import FAILED, MAX_MEMBER_STATE_BYTES, MAX_METADATA_BYTES
from zk_group.coordinator.zk.znodes.partitions import PartitionSet
from zk_group.coordinator.zk.znodes.records import Topic

COOPERATIVE = "cooperative-sticky"
protocols = pytest.mark.parametrize("like", ["range", COOPERATIVE])
NAMES = ("c1", "c2", "c3")


def client(world: World, name: str, topics: dict[str, int] | None = None, **options: Any) -> PollingConsumer:
    """A member whose strategy is a built-in one, or one of `assignors`."""
    return world.consumer("g", name, topics or {"t": 1}, **{"assignment": "client", **options})


def wild(world: World, name: str = "c1", **options: Any) -> PollingConsumer:
    """One of all topics whose names begin with t."""
    return client(world, name, {"t.*": 1}, pattern="white_list", **options)


def replaced(world: World, one: PollingConsumer) -> None:
    """It has left, for another process in its place."""
    one.close()
    world.consumers.remove(one)


@pytest.fixture
def served(served: World) -> World:
    """And topic `u`, of four partitions, too."""
    served.topic("u", 4)
    return served


@pytest.fixture
def front(world: World) -> Hooked:
    """The store in front of a running coordinator's session, which may have to wait for its turn beside processes."""
    fronts = Fronts(Hooked)
    world.elected(world.coordinator(wrap=fronts, session_timeout_ms=10_000))
    return fronts[0]


def holds(member: PollingConsumer, *wanted: PartitionSet, timeout_s: float = 10.0, wait: Waiting = eventually) -> None:
    whole = frozenset().union(*wanted)
    wait(lambda: member.held == whole, timeout_s, f"{member.name} holds {sorted(map(str, whole))}")


# ---- Rolling Upgrades: changes affecting subscription


@pytest.mark.parametrize("like", ["range", "round-robin", "sticky", "cooperative-sticky", "lag", "rack"])
def test_rolling_upgrade_of_a_subscription_gives_each_member_only_its_own_topics(world: World, like: str) -> None:
    world.coordinator()
    for topic in ("a", "b", "c"):
        world.topic(topic, 4)
    wanted = {"c1": {"a"}, "c2": {"a", "b"}, "c3": {"b"}, "c4": {"b", "c"}}
    for name in ("c1", "c2", "c3"):
        client(world, name, dict.fromkeys(wanted[name], 1), protocols=(like,))
    client(world, "c4", {"[bc]": 1}, protocols=(like,), pattern="white_list")

    world.stable("g", 4)

    every = parts("a", *range(4)) | parts("b", *range(4)) | parts("c", *range(4))
    eventually(lambda: frozenset().union(*(c.held for c in world.consumers)) == every, 10, "all is held")
    for member in world.consumers:
        assigned = {part.topic for what, some in member.events.copy() if what == "assigned" for part in some}
        assert assigned <= wanted[member.name], member.name
        assert member.held, "no member is idle"


@protocols
def test_rolling_upgrade_of_a_subscription_gives_new_topics_to_updated_members_only(served: World, like: str) -> None:
    for name in ("c1", "c2"):
        client(served, name, protocols=(like,))
    generation = served.stable("g", 2).generation
    for before in served.consumers.copy():
        replaced(served, before)
        generation = served.stable("g", 1, above=generation).generation
        client(served, before.name, {"t": 1, "u": 1}, protocols=(like,))
        generation = served.stable("g", 2, above=generation).generation
        if before.name == "c1":
            assert all(part.topic == "t" for part in served.consumers[0].held), "c2 knows the old topic only"
            eventually(lambda: parts("u", *range(4)) <= served.consumers[-1].held, 5, "c1 has the new one")

    eventually(lambda: [len(c.held) for c in served.consumers] == [4, 4], 10, "both share both")


# ---- Rolling Upgrades: assignment strategy changes


def test_group_switches_to_client_side_assignment_and_back_by_rolling_restarts(served: World) -> None:

    def restart_with(assignment: str) -> None:
        for name in ("c1", "c2"):
            for old in [each for each in served.consumers if each.name == name]:
                replaced(served, old)
            client(served, name, assignment=assignment)
            served.stable("g", len(served.consumers), above=served.state("g").generation - 1)

    restart_with("coordinator")
    assert served.stable("g", 2).client is None
    restart_with("client,coordinator")
    eventually(lambda: served.stable("g", 2).client is not None, 10, "the group assigns by a leader")
    restart_with("client")
    assert served.stable("g", 2).client is not None
    restart_with("coordinator,client")
    eventually(lambda: served.stable("g", 2).client is None, 10, "the group is the coordinator's again")
    restart_with("coordinator")
    assert served.stable("g", 2).client is None
    eventually(lambda: asks(served) == [], 5, "no ask is left")


def test_a_newcomer_without_a_common_protocol_is_refused(served: World) -> None:
    client(served, "c1", protocols=("sticky",))
    served.stable("g", 1)

    other = client(served, "c2", protocols=("range",))

    eventually(lambda: isinstance(other.error, InconsistentGroupProtocol), 10, "c2 is refused")
    assert "sticky (client-side)" in str(other.error).replace("'", "")
    assert served.state("g").generation == 1


class Step(NamedTuple):
    """Every process in turn is restarted so; `used` after each: the strategy, and whether a leader decides by it."""

    assignment: str
    protocols: str
    used: list[tuple[str, bool]]


def changes(old: str, new: str) -> tuple[bool, list[Step]]:
    """Of the leader's strategy, in two rounds."""
    one, other = (old, True), (new, True)
    both = Step("client", f"{new},{old}", [one, one, other])
    return True, [Step("client", old, [one] * 3), both, Step("client", new, [other] * 3)]


RANGE, STICKY = ("range", False), (COOPERATIVE, False)
UPGRADES: dict[str, tuple[bool, list[Step]]] = {
    "of_the_strategy_switches_once_when_the_last_process_has_it-range": changes("range", COOPERATIVE),
    "of_the_strategy_switches_once_when_the_last_process_has_it-cooperative-sticky": changes(COOPERATIVE, "lag"),
    "to_client_side_assignment_and_back_consumes_records_once": (
        False,
        [
            Step("coordinator", "range", [RANGE] * 3),
            Step("client,coordinator", "range", [RANGE, RANGE, ("range", True)]),
            Step("coordinator", "range", [RANGE] * 3),
        ],
    ),
    "of_static_members_to_client_side_switches_with_the_last": (
        True,
        [
            Step("coordinator", COOPERATIVE, [STICKY] * 3),
            Step("client,coordinator", COOPERATIVE, [STICKY, STICKY, (COOPERATIVE, True)]),
        ],
    ),
}


@pytest.mark.full("processes, beside the same in virtual time")
@pytest.mark.parametrize(("are_static", "steps"), UPGRADES.values(), ids=UPGRADES.keys())
def test_rolling_upgrade(group: EventGroup, front: Hooked, are_static: bool, steps: list[Step]) -> None:
    first, *later = steps

    def start(name: str, step: Step) -> None:
        static = ("--group-instance-id", name) if are_static else ()  # a restarting process stays a member
        some = ("--assignment", step.assignment, "--protocols", step.protocols, "--session-timeout-ms", "20000")
        group.start([name], *static, *some)

    def used() -> tuple[str, bool]:
        state = group.world.stable("g", 3)
        return state.strategy, state.client is not None

    for name in NAMES:
        start(name, first)
    before = group.joined(NAMES)
    for step in later:
        for name, wanted in zip(NAMES, step.used, strict=True):
            group.stop([name])
            start(name, step)
            after = group.joined(NAMES)
            eventually(lambda now=wanted: used() == now, 10, str(wanted))  # type: ignore[misc]
        group.consumes(20)

    expected = [each for each, _ in groupby(each for step in steps for each in step.used)]
    # ZooKeeper shows a state before its writer has noted that.
    eventually(lambda: switches(front.states()) == expected, 10, f"the strategies are {expected}")
    if first.used[0] == STICKY:
        assert after.owners() == before.owners(), "a strategy that is sticky moves nothing for it"
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed, "every record was consumed once"
    if steps[-1].assignment == "coordinator":
        eventually(lambda: asks(group.world) == [], 5, "no ask is left")


# ---- Subscription Change


@protocols
def test_subscription_change_makes_another_ask_without_reregistration_of_others(served: World, like: str) -> None:
    one, two = (client(served, name, protocols=(like,)) for name in ("c1", "c2"))
    before = served.stable("g", 2)
    eventually(lambda: len(one.held | two.held) == 4, 5, "all is held")
    registrations, events, held = served.registrations("g"), one.events.copy(), one.held

    two.consumer.subscribe(Subscription({"u": 1}))

    holds(one, parts("t", *range(4)))
    holds(two, parts("u", *range(4)))
    after = served.stable("g", 2)
    assert (after.generation, served.registrations("g")) == (before.generation + 1, registrations)
    moved = [("assigned", one.held - held)] if like == COOPERATIVE else [("revoked", held), ("assigned", one.held)]
    eventually(lambda: one.events == events + moved, 5, "c1 has been called back")


def test_subscription_change_to_an_equal_one_makes_no_generation(served: World) -> None:
    one = client(served, "c1")
    before = served.stable("g", 1)
    id_before = served.store.get(PATHS.id("c1"))

    one.consumer.subscribe(Subscription({"t": 1}))

    eventually(lambda: served.store.get(PATHS.id("c1")) != id_before, 5, "it has registered in place")
    holds(served.consumer("probe", "p", {"u": 1}), parts("u", *range(4)))
    assert served.stable("g", 1) == before


def test_subscription_change_during_an_ask_waits_and_is_in_the_next_ask(joined: HandStage) -> None:
    joined.topic("u", 4)
    ask = joined.asked("c1").ask
    one, two, _ = joined.members

    two.consumer.subscribe(Subscription({"u": 1}))
    two.obey()
    joined.turn()

    assert [made.reason for made in joined.front.made_asks()][1:] == ["joined c3"], "it waits"
    one.obey()
    joined.turn()
    assert joined.state.client is not None and joined.state.client.ask == ask
    assert joined.settled().generation == joined.before.generation + 2
    assert [made.reason for made in joined.front.made_asks()][2:] == ["changed c2"]
    assert two.held == parts("u", *range(4))


def test_subscription_change_of_a_static_member_is_kept_through_a_restart(served: World) -> None:
    one = client(served, "c1", group_instance_id="c1")
    before = served.stable("g", 1).generation
    one.consumer.subscribe(Subscription({"u": 1}))
    holds(one, parts("u", *range(4)))
    generation = served.stable("g", 1).generation
    assert generation == before + 1

    replaced(served, one)
    again = client(served, "c1", {"u": 1}, group_instance_id="c1")

    holds(again, parts("u", *range(4)))
    assert served.stable("g", 1).generation == generation


def test_a_bounce_of_a_static_leader_changes_neither_leader_nor_generation(served: World) -> None:
    for name in ("c1", "c2"):
        client(served, name, group_instance_id=name)
    before = served.stable("g", 2)

    replaced(served, served.consumers[0])
    again = client(served, "c1", group_instance_id="c1")

    eventually(lambda: len(again.held) == 2, 10, "c1 has what it had")
    after = served.stable("g", 2)
    assert (after.generation, after.client) == (before.generation, before.client)


# ---- Topic Metadata Change


@protocols
def test_topic_metadata_change_of_new_extended_deleted_topics_reaches_a_wildcard(world: World, like: str) -> None:
    world.coordinator()
    world.topic("t1", 2)
    one, two = (wild(world, name, protocols=(like,), session_timeout_ms=30_000) for name in ("c1", "c2"))
    generation = world.stable("g", 2).generation

    def both_hold(*wanted: PartitionSet, above: int) -> int:
        """Long before the leader reads the topics again in any case: its watch tells."""
        whole = frozenset().union(*wanted)
        within(lambda: one.held | two.held == whole, 5, f"{sorted(map(str, whole))} are held")
        assert not one.held & two.held
        return world.stable("g", 2, above=above).generation

    world.topic("t2", 3)
    generation = both_hold(parts("t1", 0, 1), parts("t2", 0, 1, 2), above=generation)
    world.more_partitions("t1", 5)
    generation = both_hold(parts("t1", *range(5)), parts("t2", 0, 1, 2), above=generation)
    world.remove(world.brokers.topic("t2"))
    generation = both_hold(parts("t1", *range(5)), above=generation)
    world.topic("other", 1)
    world.topic("t3", 1)
    both_hold(parts("t1", *range(5)), parts("t3", 0), above=generation)
    assert [member.failures for member in (one, two)] == [[], []]


@protocols
def test_topic_metadata_change_recreated_topic_is_another_topic(served: World, like: str) -> None:
    one = client(served, "c1", protocols=(like,))
    before = served.stable("g", 1)

    is_recreated(served)

    second = read_topics(served)["t"].id
    assert before.topics["t"] != second
    eventually(lambda: served.state("g").topics.get("t") == second, 10, "the new one is adopted")
    assert served.state("g").generation > before.generation
    holds(one, parts("t", 0, 1))
    eventually(lambda: served.channel("g", "c1").topics == {"t": second}, 5, "and it runs")
    assert one.failures == []


def grows(world: World) -> None:
    world.more_partitions("t", 5)


def goes(world: World) -> None:
    world.remove(world.brokers.topic("t"))


def is_recreated(world: World) -> None:
    goes(world)
    world.topic("t", 2)


@pytest.mark.parametrize(("change", "partitions"), [(grows, 5), (goes, 0), (is_recreated, 2)])
def test_topic_metadata_change_during_an_ask_outdates_its_answer_without_failure(
    world: World, front: Hooked, change: Callable[[World], None], partitions: int
) -> None:
    world.topic("t", 2)
    assignor, gate = Scripted(), ThreadGate()
    one = client(world, "c1", assignors=[assignor])
    before = world.stable("g", 1)
    assignor.answer = lambda found: (gate(), found)[1]  # type: ignore[func-returns-value]
    two = client(world, "c2", assignors=[Scripted()])
    assert gate.reached.wait(10)

    change(world)
    ThreadRuntime().sleep(1.0)  # the coordinator has read it
    gate.open()

    eventually(lambda: len(front.made_asks()) == 3, 10, "the leader is asked again")
    after = world.stable("g", 2)
    eventually(lambda: one.held | two.held == parts("t", *range(partitions)), 10, "all is held")
    assert after.generation == before.generation + 1, "the outdated answer is not adopted"
    assert [made.outdated for made in front.made_asks()] == [0, 0, 1]
    assert after.topics == {name: one.id for name, one in read_topics(world).items()}
    assert one.failures == two.failures == []


def read_topics(world: World) -> dict[str, Topic]:
    """Every topic there is."""
    nodes = {name: world.store.get(world.brokers.topic(name)) for name in world.names(world.brokers.topics)}
    return {name: Topic.parse("topic", name, node.data, node.stat.czxid) for name, node in nodes.items() if node}


def test_topic_metadata_change_several_in_assignment_delay_ms_make_one_generation(world: World, front: Hooked) -> None:
    world.topic("t0", 1)
    one = wild(world, assignment_delay_ms=1500)
    before = world.stable("g", 1)
    began = ThreadRuntime().monotonic()

    for number in range(1, 6):
        world.topic(f"t{number}", 1)

    holds(one, *(parts(f"t{number}", 0) for number in range(6)))
    assert ThreadRuntime().monotonic() - began >= 1.4
    assert world.stable("g", 1).generation == before.generation + 1
    assert len(front.made_asks()) == 2


def test_topic_metadata_change_of_successive_partitions_is_batched_by_the_leader(world: World, front: Hooked) -> None:
    topics = {f"t{number}": 1 for number in range(3)}
    for topic in topics:
        world.topic(topic, 1)
    one = client(world, "c1", topics, assignment_delay_ms=3000)
    probe = world.consumer("probe", "p", topics)
    before = world.stable("g", 1)

    for topic in topics:
        world.more_partitions(topic, 2)
        eventually(lambda name=topic: parts(name, 1) <= probe.held, 5, "the coordinator has seen it")

    holds(one, *(parts(topic, 0, 1) for topic in topics))
    assert world.stable("g", 1).generation == before.generation + 1
    assert len(front.made_asks()) == 2


def test_topic_metadata_change_without_subscribers_makes_no_ask(world: World, front: Hooked) -> None:
    world.topic("t1", 1)
    wild(world, assignment_delay_ms=0)
    before = world.stable("g", 1)

    world.topic("other", 1)

    holds(world.consumer("probe", "p", {"other": 1}), parts("other", 0))
    assert (world.stable("g", 1), len(front.made_asks())) == (before, 1)


def test_topic_metadata_change_is_seen_by_the_next_leader_when_the_first_has_left(served: World) -> None:
    one = wild(served)
    served.stable("g", 1)
    two = wild(served, "c2")
    generation = served.stable("g", 2).generation
    one.close()
    served.stable("g", 1, above=generation)

    served.topic("t2", 1)

    holds(two, parts("t", *range(4)), parts("t2", 0))


def test_restarted_static_leader_watches_topics_as_before(served: World) -> None:
    first = wild(served, group_instance_id="c1")
    before = served.stable("g", 1)

    replaced(served, first)
    again = wild(served, group_instance_id="c1")
    holds(again, parts("t", *range(4)))
    assert served.stable("g", 1).client == before.client
    served.topic("t2", 3)

    holds(again, parts("t", *range(4)), parts("t2", 0, 1, 2))


def test_restarted_static_leader_sees_partitions_that_were_added_while_it_was_away(served: World) -> None:
    first = wild(served, group_instance_id="c1")
    served.stable("g", 1)

    replaced(served, first)
    served.more_partitions("t", 5)

    holds(wild(served, group_instance_id="c1"), parts("t", *range(5)))


class DeafToTopics(FrontStore):
    """Loses the event of every watch on a topic, or on the list of them."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return self.behind.get_many(paths, None if paths and paths[0].startswith("/brokers") else watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return self.behind.children_many(paths, None if paths[0].startswith("/brokers") else watch)


def test_topic_metadata_change_with_a_lost_watch_is_seen_within_a_session_timeout(served: World) -> None:
    opener = kazoo_factory(served.zk, 2000)
    one = wild(served, opener=lambda: DeafToTopics(opener()))
    holds(one, parts("t", *range(4)))

    served.topic("t2", 1)

    # The session timeout, and an ask.
    holds(one, parts("t", *range(4)), parts("t2", 0), timeout_s=4, wait=within)


# ---- the formats: Version => int16


def of_version_2(data: bytes) -> bytes:
    """Metadata as a later release may write it: with fields that this one does not know."""
    values = {"not_yet_known": {"a": [1, {"b": None}]}, "wählbar": 0.5, **json.loads(data), "version": 2}
    return json.dumps(values).encode()


@pytest.mark.parametrize("later", ["c1", "c2"])
@protocols
def test_metadata_of_version_2_coexists_with_version_1_under_any_leader(served: World, like: str, later: str) -> None:
    made = {name: Scripted(like) for name in ("c1", "c2")}
    made[later].writes = of_version_2
    for number, (name, assignor) in enumerate(made.items(), 1):
        client(served, name, assignors=[assignor])
        served.stable("g", number)

    eventually(lambda: [len(c.held) for c in served.consumers] == [2, 2], 5, "both have a half")
    seen = {name: json.loads(data) for name, data in made["c1"].seen[-1].items()}
    assert {name: values["version"] for name, values in seen.items()} == {"c1": 1, "c2": 1, later: 2}
    assert seen[later]["wählbar"] == 0.5, "its bytes are what it wrote"
    assert [c.failures for c in served.consumers] == [[], []]


def test_unreadable_metadata_leaves_its_member_idle_and_the_others_continue(served: World) -> None:
    one = client(served, "c1", assignors=[Scripted()])
    served.stable("g", 1)
    garbled = Scripted()
    garbled.writes = lambda data: b"\xff\x00 none of ours"

    two = client(served, "c2", assignors=[garbled])

    served.stable("g", 2)
    holds(one, parts("t", *range(4)))
    assert (two.held, two.error) == (frozenset(), None)


# ---- sizes: nothing without a bound


def sized(world: World, name: str, *sizes: int) -> PollingConsumer:
    """A member with so many bytes of metadata for each of its protocols."""
    assignors = [Scripted(name=f"scripted-{nth}") for nth in range(len(sizes))]
    for assignor, size in zip(assignors, sizes, strict=True):
        assignor.writes = padded(size)
    return client(world, name, assignors=assignors)


def test_bounds_metadata_of_exactly_64_kb_is_taken(served: World) -> None:
    one = sized(served, "c1", MAX_METADATA_BYTES)

    eventually(lambda: one.held == parts("t", *range(4)) or one.error, 10, "it is taken or refused")
    assert one.error is None


@pytest.mark.parametrize("sizes", [(65_537,), (70_000,), (40_000, 40_000), (300_000,), (900_000,)])
def test_bounds_metadata_over_64_kb_is_refused_with_size_others_continue(served: World, sizes: tuple[int, ...]) -> None:
    one = sized(served, "c1", *(1000 for _ in sizes))
    holds(one, parts("t", *range(4)))
    generation = served.stable("g", 1).generation

    two = sized(served, "c2", *sizes)

    eventually(lambda: two.error, 10, "it is refused")
    assert str(sum(sizes)) in str(two.error) and str(MAX_METADATA_BYTES) in str(two.error)
    assert (served.stable("g", 1).generation, one.held) == (generation, parts("t", *range(4)))


def test_bounds_a_member_state_of_exactly_64_kb_is_taken(served: World) -> None:
    assignor = Scripted()
    assignor.answer = states(MAX_MEMBER_STATE_BYTES)

    one = client(served, "c1", assignors=[assignor])

    eventually(lambda: assignor.heard or one.failures, 10, "it is adopted or not")
    assert one.failures == []
    assert [len(state) for state, _ in assignor.heard] == [MAX_MEMBER_STATE_BYTES]


@pytest.mark.parametrize("size", [65_537, 70_000, 200_000, 900_000, 2_000_000])
def test_bounds_member_state_over_64_kb_fails_with_its_size_before_anything_stops(joined: HandStage, size: int) -> None:
    joined.assignors["c1"].answer = states(size)
    joined.asked("c1")

    joined.members[0].obey()

    eventually(lambda: joined.turn() and joined.state.state == FAILED, 5, "c1 has failed")
    reason = joined.state.reason or ""
    assert "leader c1 (scripted) failed: " in reason
    assert str(size) in reason and str(MAX_MEMBER_STATE_BYTES) in reason
    assert (joined.state.target, joined.stops) == (joined.before.target, [0, 0, 0])
    after = joined.settled()
    assert (after.generation, len(joined.members[2].held) > 0) == (joined.before.generation + 1, True)
    assert joined.failures == [1, 1, 1]
    assert all(str(size) in str(member.failures[0]) for member in joined.members)

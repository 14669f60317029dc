"""Seed 001, "Rolling Upgrades", "Subscription Change", "Topic Metadata Change" and the versioned formats.

"Handling Coordinator Failures", "Leader Failures" and "Assignment Failure" are in `test_seed_001_failures.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from consumer.config import Subscription
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Listing, Node, Watch
from coordinator.zk.znodes.group_state import FAILED, MAX_MEMBER_STATE_BYTES, MAX_METADATA_BYTES
from coordinator.zk.znodes.partitions import PartitionSet
from coordinator.zk.znodes.records import Topic
from tests.support.client_side import PATHS, Hooked, Scripted, ThreadGate, a_hand_stage, asks, padded, states, switches
from tests.support.event_group import EventGroup
from tests.support.hand import ManualStage
from tests.support.stores import FrontStore
from tests.support.wait import Waiting, eventually, within
from tests.support.world import PollingConsumer, World, parts

EAGER, COOPERATIVE = "range", "cooperative-sticky"
protocols = pytest.mark.parametrize("like", [EAGER, COOPERATIVE])
NAMES = ("c1", "c2", "c3")


def client(
    world: World, name: str, topics: dict[str, int] | None = None, like: str = EAGER, **options: Any
) -> PollingConsumer:
    """A member whose strategy is a built-in one."""
    return world.consumer("g", name, topics or {"t": 1}, assignment="client", protocols=(like,), **options)


def scripted(
    world: World, name: str, topics: dict[str, int] | None = None, like: str = EAGER, **options: Any
) -> tuple[PollingConsumer, Scripted]:
    assignor = Scripted(like)
    return world.consumer("g", name, topics or {"t": 1}, assignment="client", assignors=[assignor], **options), assignor


def recorded(world: World, **options: Any) -> Hooked:
    """The store in front of a running coordinator's session."""
    fronts: list[Hooked] = []
    options.setdefault("session_timeout_ms", 10_000)  # a thread beside processes may have to wait for its turn
    world.elected(world.coordinator(wrap=lambda store: fronts.append(Hooked(store)) or fronts[-1], **options))
    return fronts[0]


def switched(front: Hooked, *expected: tuple[str, bool]) -> None:
    """The coordinator has used these strategies. ZooKeeper shows a state before its writer has noted that."""
    eventually(lambda: switches(front.states()) == list(expected), 10, f"the strategies are {expected}")


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
        client(world, name, dict.fromkeys(wanted[name], 1), like)
    client(world, "c4", {"[bc]": 1}, like, pattern="white_list")

    world.stable("g", 4)

    every = parts("a", *range(4)) | parts("b", *range(4)) | parts("c", *range(4))
    eventually(lambda: frozenset().union(*(c.held for c in world.consumers)) == every, 10, "all is held")
    for member in world.consumers:
        assigned = {part.topic for what, some in member.events.copy() if what == "assigned" for part in some}
        assert assigned <= wanted[member.name], member.name
        assert member.held, "no member is idle"


@protocols
def test_rolling_upgrade_of_a_subscription_gives_new_topics_to_updated_members_only(world: World, like: str) -> None:
    world.coordinator()
    for topic in ("old", "new"):
        world.topic(topic, 4)
    for name in ("c1", "c2"):
        client(world, name, {"old": 1}, like)
    generation = world.stable("g", 2).generation
    for name in ("c1", "c2"):
        before = next(each for each in world.consumers if each.name == name)
        before.close()
        generation = world.stable("g", 1, above=generation).generation
        world.consumers.remove(before)
        client(world, name, {"old": 1, "new": 1}, like)
        generation = world.stable("g", 2, above=generation).generation
        if name == "c1":
            assert all(part.topic == "old" for part in world.consumers[0].held), "c2 knows the old topic only"
            eventually(lambda: parts("new", *range(4)) <= world.consumers[-1].held, 5, "c1 has the new one")

    eventually(lambda: [len(c.held) for c in world.consumers] == [4, 4], 10, "both share both")


# ---- Rolling Upgrades: assignment strategy changes


@pytest.mark.full("processes, beside the same in virtual time")
@pytest.mark.parametrize(("old", "new"), [("range", "cooperative-sticky"), ("cooperative-sticky", "lag")])
def test_rolling_upgrade_of_the_strategy_switches_once_when_the_last_process_has_it(
    group: EventGroup, old: str, new: str
) -> None:
    front = recorded(group.world)
    options = ("--assignment", "client", "--session-timeout-ms", "20000")
    for name in NAMES:  # static: a restarting process stays a member
        group.start([name], "--group-instance-id", name, *options, "--protocols", old)
    group.joined(NAMES)

    for offered, used in ((f"{new},{old}", (old, old, new)), (new, (new, new, new))):
        for name, strategy in zip(NAMES, used, strict=True):
            group.stop([name])
            group.start([name], "--group-instance-id", name, *options, "--protocols", offered)
            group.joined(NAMES)
            eventually(lambda: group.world.stable("g", 3).strategy == strategy, 10, strategy)  # noqa: B023

    switched(front, (old, True), (new, True))
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed, "every record was consumed once"


@pytest.mark.full("processes, beside the same in virtual time")
def test_rolling_upgrade_to_client_side_assignment_and_back_consumes_records_once(group: EventGroup) -> None:
    front = recorded(group.world)
    group.start(NAMES, "--assignment", "coordinator", "--session-timeout-ms", "20000")
    group.joined(NAMES)

    for assignment in ("client,coordinator", "coordinator"):
        for name in NAMES:
            group.stop([name])
            group.start([name], "--assignment", assignment, "--session-timeout-ms", "20000")
            group.joined(NAMES)
        group.consumes(20)
        is_client_side = group.world.state("g").client is not None
        assert is_client_side == (assignment == "client,coordinator")

    switched(front, ("range", False), ("range", True), ("range", False))
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed
    eventually(lambda: asks(group.world) == [], 5, "no ask is left")


@pytest.mark.full("processes, beside the same in virtual time")
def test_rolling_upgrade_of_static_members_to_client_side_switches_with_the_last(group: EventGroup) -> None:
    front = recorded(group.world)
    options = ("--session-timeout-ms", "20000", "--protocols", "cooperative-sticky")
    for name in NAMES:
        group.start([name], "--group-instance-id", name, "--assignment", "coordinator", *options)
    before = group.joined(NAMES)

    for name, is_client_side in zip(NAMES, (False, False, True), strict=True):
        group.stop([name])
        group.start([name], "--group-instance-id", name, "--assignment", "client,coordinator", *options)
        after = group.joined(NAMES)
        eventually(lambda: (group.world.stable("g", 3).client is not None) == is_client_side, 10, "its side")  # noqa: B023

    switched(front, ("cooperative-sticky", False), ("cooperative-sticky", True))
    assert after.owners() == before.owners(), "a strategy that is sticky moves nothing for it"
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed


# ---- Subscription Change


@protocols
def test_subscription_change_makes_another_ask_without_reregistration_of_others(world: World, like: str) -> None:
    world.coordinator()
    world.topic("t", 4)
    world.topic("u", 4)
    one, two = client(world, "c1", like=like), client(world, "c2", like=like)
    before = world.stable("g", 2)
    eventually(lambda: len(one.held | two.held) == 4, 5, "all is held")
    registrations, events, held = world.registrations("g"), one.events.copy(), one.held

    two.consumer.subscribe(Subscription({"u": 1}))

    holds(one, parts("t", *range(4)))
    holds(two, parts("u", *range(4)))
    after = world.stable("g", 2)
    assert (after.generation, world.registrations("g")) == (before.generation + 1, registrations)
    heard = [("revoked", held), ("assigned", one.held)] if like == EAGER else [("assigned", one.held - held)]
    eventually(lambda: one.events == events + heard, 5, "c1 has been called back")


def test_subscription_change_to_an_equal_one_makes_no_generation(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = client(world, "c1")
    before = world.stable("g", 1)
    id_before = world.store.get(PATHS.id("c1"))

    one.consumer.subscribe(Subscription({"t": 1}))

    eventually(lambda: world.store.get(PATHS.id("c1")) != id_before, 5, "it has registered in place")
    world.topic("other", 1)
    probe = world.consumer("probe", "p", {"other": 1})
    holds(probe, parts("other", 0))
    assert world.stable("g", 1) == before


def test_subscription_change_during_an_ask_waits_and_is_in_the_next_ask(world: World, stage: ManualStage) -> None:
    with a_hand_stage(world, stage) as hands:
        for topic in ("t", "u"):
            hands.topic(topic, 4)
        hand, front = hands.coordinator("a")
        one, two = hands.member("c1"), hands.member("c2")
        before = hands.settled(hand)
        hands.member("c3")
        ask = hands.asked(hand, "c1").ask

        two.consumer.subscribe(Subscription({"u": 1}))
        two.obey()
        hand.turn("g")

        assert [made.reason for made in front.made_asks()][1:] == ["joined c3"], "it waits"
        one.obey()
        hand.turn("g")
        assert hands.state.client is not None and hands.state.client.ask == ask
        after = hands.settled(hand)
        assert after.generation == before.generation + 2
        assert [made.reason for made in front.made_asks()][2:] == ["changed c2"]
        assert two.held == parts("u", *range(4))


def test_subscription_change_of_a_static_member_is_kept_through_a_restart(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    world.topic("u", 2)
    one = client(world, "c1", group_instance_id="c1")
    world.stable("g", 1)
    one.consumer.subscribe(Subscription({"u": 1}))
    holds(one, parts("u", 0, 1))
    generation = world.stable("g", 1).generation

    one.close()
    world.consumers.remove(one)
    again = client(world, "c1", {"u": 1}, group_instance_id="c1")

    holds(again, parts("u", 0, 1))
    assert world.stable("g", 1).generation == generation


# ---- Topic Metadata Change


@protocols
def test_topic_metadata_change_of_new_extended_deleted_topics_reaches_a_wildcard(world: World, like: str) -> None:
    world.coordinator()
    world.topic("t1", 2)
    wild = {"pattern": "white_list", "session_timeout_ms": 30_000}
    one, two = (client(world, name, {"t.*": 1}, like, **wild) for name in ("c1", "c2"))
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
def test_topic_metadata_change_recreated_topic_is_another_topic(world: World, like: str) -> None:
    world.coordinator()
    first = world.topic("t", 2)
    one = client(world, "c1", like=like)
    before = world.stable("g", 1)

    world.remove(world.brokers.topic("t"))
    second = world.topic("t", 2)

    assert first.id != second.id
    after = eventually(
        lambda: state if (state := world.state("g")).topics.get("t") == second.id else None,
        10,
        "the new one is adopted",
    )
    assert after is not None and after.generation > before.generation
    holds(one, parts("t", 0, 1))
    eventually(lambda: world.channel("g", "c1").topics == {"t": second.id}, 5, "and it runs")
    assert one.failures == []


def grows(world: World) -> None:
    world.more_partitions("t", 5)


def goes(world: World) -> None:
    world.remove(world.brokers.topic("t"))


def is_made_anew(world: World) -> None:
    goes(world)
    world.topic("t", 2)


@pytest.mark.parametrize(("change", "partitions"), [(grows, 5), (goes, 0), (is_made_anew, 2)])
def test_topic_metadata_change_during_an_ask_outdates_its_answer_without_failure(
    world: World, change: Callable[[World], None], partitions: int
) -> None:
    front = recorded(world)
    world.topic("t", 2)
    one, assignor = scripted(world, "c1")
    before = world.stable("g", 1)
    gate = ThreadGate()
    assignor.answer = lambda found: (gate(), found)[1]  # type: ignore[func-returns-value]
    two, _ = scripted(world, "c2")
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


def test_topic_metadata_change_several_in_assignment_delay_ms_make_one_generation(world: World) -> None:
    front = recorded(world)
    world.topic("t0", 1)
    one = client(world, "c1", {"t.*": 1}, pattern="white_list", assignment_delay_ms=1500)
    before = world.stable("g", 1)
    began = ThreadRuntime().monotonic()

    for number in range(1, 6):
        world.topic(f"t{number}", 1)

    holds(one, *(parts(f"t{number}", 0) for number in range(6)))
    assert ThreadRuntime().monotonic() - began >= 1.4
    assert world.stable("g", 1).generation == before.generation + 1
    assert len(front.made_asks()) == 2


def test_topic_metadata_change_of_successive_partitions_is_batched_by_the_leader(world: World) -> None:
    front = recorded(world)
    for number in range(3):
        world.topic(f"t{number}", 1)
    topics = {f"t{number}": 1 for number in range(3)}
    one = client(world, "c1", topics, assignment_delay_ms=3000)
    probe = world.consumer("probe", "p", topics)
    before = world.stable("g", 1)

    for number in range(3):
        world.more_partitions(f"t{number}", 2)
        eventually(lambda n=number: parts(f"t{n}", 1) <= probe.held, 5, "the coordinator has seen it")

    holds(one, *(parts(f"t{number}", 0, 1) for number in range(3)))
    assert world.stable("g", 1).generation == before.generation + 1
    assert len(front.made_asks()) == 2


def test_topic_metadata_change_without_subscribers_makes_no_ask(world: World) -> None:
    front = recorded(world)
    world.topic("t1", 1)
    client(world, "c1", {"t.*": 1}, pattern="white_list", assignment_delay_ms=0)
    before = world.stable("g", 1)

    world.topic("other", 1)

    probe = world.consumer("probe", "p", {"other": 1})
    holds(probe, parts("other", 0))
    assert (world.stable("g", 1), len(front.made_asks())) == (before, 1)


def test_topic_metadata_change_is_seen_by_the_next_leader_when_the_first_has_left(world: World) -> None:
    world.coordinator()
    world.topic("t1", 1)
    one = client(world, "c1", {"t.*": 1}, pattern="white_list")
    world.stable("g", 1)
    two = client(world, "c2", {"t.*": 1}, pattern="white_list")
    generation = world.stable("g", 2).generation
    one.close()
    world.stable("g", 1, above=generation)

    world.topic("t2", 1)

    holds(two, parts("t1", 0), parts("t2", 0))


class DeafToTopics(FrontStore):
    """Loses the event of every watch on a topic, or on the list of them."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return self.behind.get_many(paths, None if paths and paths[0].startswith("/brokers") else watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return self.behind.children_many(paths, None if paths[0].startswith("/brokers") else watch)


def test_topic_metadata_change_with_a_lost_watch_is_seen_within_a_session_timeout(world: World) -> None:
    world.coordinator()
    world.topic("t1", 1)
    opener = kazoo_factory(world.zk, 2000)
    one = client(world, "c1", {"t.*": 1}, pattern="white_list", opener=lambda: DeafToTopics(opener()))
    holds(one, parts("t1", 0))

    world.topic("t2", 1)

    holds(one, parts("t1", 0), parts("t2", 0), timeout_s=4, wait=within)  # the session timeout, and an ask


# ---- the formats: Version => int16


def of_version_2(data: bytes) -> bytes:
    """Metadata as a later release may write it: with fields that this one does not know."""
    values = {"not_yet_known": {"a": [1, {"b": None}]}, "wählbar": 0.5, **json.loads(data), "version": 2}
    return json.dumps(values).encode()


@pytest.mark.parametrize("later", ["c1", "c2"])
@protocols
def test_metadata_of_version_2_coexists_with_version_1_under_any_leader(world: World, like: str, later: str) -> None:
    world.coordinator()
    world.topic("t", 4)
    made = {}
    for name in ("c1", "c2"):
        assignor = Scripted(like)
        assignor.writes = of_version_2 if name == later else bytes
        made[name] = assignor
        world.consumer("g", name, {"t": 1}, assignment="client", assignors=[assignor])
        world.stable("g", len(made))

    eventually(lambda: [len(c.held) for c in world.consumers] == [2, 2], 5, "both have a half")
    seen = {name: json.loads(data) for name, data in made["c1"].seen[-1].items()}
    assert {name: values["version"] for name, values in seen.items()} == {
        name: 2 if name == later else 1 for name in ("c1", "c2")
    }
    assert seen[later]["wählbar"] == 0.5, "its bytes are what it wrote"
    assert [c.failures for c in world.consumers] == [[], []]


def test_unreadable_metadata_leaves_its_member_idle_and_the_others_continue(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    one, _ = scripted(world, "c1")
    world.stable("g", 1)
    garbled = Scripted()
    garbled.writes = lambda data: b"\xff\x00 none of ours"

    two = world.consumer("g", "c2", {"t": 1}, assignment="client", assignors=[garbled])

    world.stable("g", 2)
    holds(one, parts("t", *range(4)))
    assert (two.held, two.error) == (frozenset(), None)


# ---- sizes: nothing without a bound


def sized(world: World, name: str, *sizes: int, **options: Any) -> PollingConsumer:
    """A member with so many bytes of metadata for each of its protocols."""
    assignors = []
    for nth, size in enumerate(sizes):
        assignors.append(Scripted(name=f"scripted-{nth}"))
        assignors[-1].writes = padded(size)
    return world.consumer("g", name, {"t": 1}, assignment="client", assignors=assignors, **options)


def test_bounds_metadata_of_exactly_64_kb_is_taken(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)

    one = sized(world, "c1", MAX_METADATA_BYTES)

    eventually(lambda: one.held == parts("t", 0, 1) or one.error, 10, "it is taken or refused")
    assert one.error is None


@pytest.mark.parametrize("sizes", [(65_537,), (70_000,), (40_000, 40_000), (300_000,), (900_000,)])
def test_bounds_metadata_over_64_kb_is_refused_with_its_size_and_others_continue(
    world: World, sizes: tuple[int, ...]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = sized(world, "c1", *(1000 for _ in sizes))
    holds(one, parts("t", 0, 1))
    generation = world.stable("g", 1).generation

    two = sized(world, "c2", *sizes)

    eventually(lambda: two.error, 10, "it is refused")
    assert str(sum(sizes)) in str(two.error) and str(MAX_METADATA_BYTES) in str(two.error)
    assert (world.stable("g", 1).generation, one.held) == (generation, parts("t", 0, 1))


def test_bounds_a_member_state_of_exactly_64_kb_is_taken(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    assignor = Scripted()
    assignor.answer = states(MAX_MEMBER_STATE_BYTES)

    one = world.consumer("g", "c1", {"t": 1}, assignment="client", assignors=[assignor])

    eventually(lambda: assignor.heard or one.failures, 10, "it is adopted or not")
    assert one.failures == []
    assert [len(state) for state, _ in assignor.heard] == [MAX_MEMBER_STATE_BYTES]


@pytest.mark.parametrize("size", [65_537, 70_000, 200_000, 900_000, 2_000_000])
def test_bounds_a_member_state_over_64_kb_fails_with_its_size_before_anything_stops(
    world: World, stage: ManualStage, size: int
) -> None:
    with a_hand_stage(world, stage) as hands:
        hands.topic("t", 4)
        hand, _ = hands.coordinator("a")
        one, two = hands.member("c1"), hands.member("c2")
        before = hands.settled(hand)
        stops = hands.stops
        hands.assignors["c1"].answer = states(size)
        three = hands.member("c3")
        hands.asked(hand, "c1")

        one.obey()

        eventually(lambda: hand.turn("g") and hands.state.state == FAILED, 5, "c1 has failed")
        reason = hands.state.reason or ""
        assert "leader c1 (scripted) failed: " in reason
        assert str(size) in reason and str(MAX_MEMBER_STATE_BYTES) in reason
        assert (hands.state.target, hands.stops[:2]) == (before.target, stops)
        after = hands.settled(hand)
        assert (after.generation, len(three.held) > 0) == (before.generation + 1, True)
        assert [len(member.failures) for member in (one, two, three)] == [1, 1, 1]
        assert all(str(size) in str(member.failures[0]) for member in (one, two, three))

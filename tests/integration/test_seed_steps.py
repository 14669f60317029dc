"""The draft, step by step (sources D9 to D20): a coordinator's start-up, the steps after its end, a watch that fires.

D is in `test_seed_rebalance.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.hand import ManualStage
from tests.support.listening import Listening, listening_on
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, expire, parts
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import EMPTY
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, CoordinatorRecord


@pytest.fixture
def listening(world: World) -> Iterator[Listening]:
    """Listeners that have not started yet, where there is a topic `old`."""
    world.topic("old", 2)
    with listening_on(world.zk) as listening:
        yield listening


# ---- A. On Coordinator Startup: the elector


def test_a_elector_tries_at_once_and_the_callback_starts_the_coordinator_up(world: World) -> None:
    world.topic("t", 2)
    consumer = world.consumer("g", "c1", {"t": 1})
    service = world.coordinator("a")

    world.elected(service)

    record = CoordinatorRecord.parse(COORDINATOR, world.data(COORDINATOR) or b"")
    assert (record.node, record.epoch) == ("a", 1)
    world.stable("g", 1)
    eventually(lambda: consumer.held == parts("t", 0, 1), 5, "groups from before the election are coordinated")


def test_a_elector_that_finds_another_leader_listens_and_starts_nothing(world: World) -> None:
    first = world.coordinator("a")
    world.elected(first)
    second = world.coordinator("b")
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})

    assert world.stable("g", 1).epoch == 1
    assert second.term is None
    assert first.term is not None and first.term.epoch == 1


# ---- A. coordinatorStartup


def test_a_startup_1_reads_all_topics_and_begins_with_no_interest_in_any(world: World, listening: Listening) -> None:
    world.topic("a", 1)
    world.topic("b", 3)

    listening.start()

    found = listening.directory.topics
    assert {name: topic.partitions for name, topic in found.items()} == {"a": (0,), "b": (0, 1, 2), "old": (0, 1)}
    assert listening.directory.consumer_groups_per_topic == {}


def test_a_startup_2_1_adds_each_group_to_its_topics(world: World, stage: ManualStage, listening: Listening) -> None:
    world.topic("a", 1)
    stage.puppet("g", "c1", {"a": 1})
    stage.puppet("g", "c2", {"b": 2})
    stage.puppet("h", "c1", {"b": 1})

    listening.start()

    assert listening.directory.groups() == ["g", "h"]
    assert listening.directory.consumer_groups_per_topic == {"a": {"g"}, "b": {"g", "h"}}


def test_a_startup_2_2_notes_the_groups_with_wildcards(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"a": 1})
    stage.puppet("w", "c1", {"a.*": 1}, WHITE_LIST)

    listening.start()

    assert set(listening.directory.groups_with_wildcard_topics) == {"w"}
    assert listening.directory.groups_of("a") == {"g", "w"}
    assert listening.directory.groups_of("ab") == {"w"}


def test_a_startup_2_3_requests_a_turn_of_every_group(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.topic("t", 1)
    hand = stage.hand()
    hand.settle("stable", stage.puppet("stable", "c1", {"t": 1}))
    stage.puppet("new", "c1", {"t": 1})

    listening.start()

    assert {("stable", "coordinator elected"), ("new", "coordinator elected")} <= set(listening.asked)


def test_a_startup_3_1_listens_for_topics(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"later": 1})
    listening.start()
    listening.asked.clear()

    world.topic("later", 1)

    listening.wait_for("g", "topic later appeared")


def test_a_startup_3_2_listens_for_partitions_of_each(world: World, stage: ManualStage, listening: Listening) -> None:
    for name in ("a", "b"):
        world.topic(name, 1)
        stage.puppet(f"group-of-{name}", "c1", {name: 1})
    listening.start()

    for name in ("a", "b"):
        world.more_partitions(name, 2)

        listening.wait_for(f"group-of-{name}", f"topic {name} has 2 partitions")


def test_a_startup_4_1_listens_for_groups(stage: ManualStage, listening: Listening) -> None:
    listening.start()
    assert listening.directory.groups() == []

    stage.puppet("later", "c1", {"t": 1})

    listening.wait_for("later", "c1")


def test_a_startup_4_2_listens_for_the_members_of_each_group(stage: ManualStage, listening: Listening) -> None:
    for group in ("g", "h"):
        stage.puppet(group, "c1", {"t": 1})
    listening.start()

    for group in ("g", "h"):
        stage.puppet(group, "c2", {"t": 1})

        listening.wait_for(group, "joined c2")


def test_a_startup_5_resigns_after_its_session_expired(world: World) -> None:
    service = world.coordinator("a", session_timeout_ms=10_000)
    world.elected(service)
    old = world.session_of(service)

    expire(old)

    eventually(lambda: world.session_of(service) is not old and old.lost, 10, "the node has another session")
    world.elected(service, above=1)


def test_a_startup_6_starts_the_request_handlers(world: World) -> None:
    before = sum(thread.name.startswith("handler-") for thread in threading.enumerate())
    world.topic("t", 1)

    world.elected(world.coordinator(rebalance_handlers=3))

    def running() -> int:
        return sum(thread.name.startswith("handler-") for thread in threading.enumerate()) - before

    eventually(lambda: running() == 3, 5, "three handlers run")
    for group in ("g", "h"):
        world.consumer(group, "c1", {"t": 1})
    for group in ("g", "h"):
        world.stable(group, 1)


# ---- B. On Coordinator Change/Failover


def test_b_failover_election_winner_starts_up(world: World) -> None:
    services = [world.coordinator(node) for node in ("a", "b", "c")]
    first = world.elected(*services)
    world.topic("t", 4)
    consumer = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=10))
    before = world.stable("g", 1)

    world.stop_coordinator(first)

    rest = [service for service in services if service is not first]
    world.elected(*rest, above=1)
    world.more_partitions("t", 5)
    after = world.stable("g", 1, above=before.generation)
    assert after.epoch == 2
    eventually(lambda: consumer.held == parts("t", 0, 1, 2, 3, 4), 5, "the next coordinator coordinates")


def test_b_new_session_1_keeps_no_data_of_the_old_one(world: World) -> None:
    service = world.coordinator("a", session_timeout_ms=10_000)
    world.elected(service)
    world.topic("t", 2)
    world.topic("gone", 2)
    consumer = world.consumer("g", "c1", {"t": 1, "gone": 1})
    before = world.stable("g", 1)
    assert set(before.topics) == {"gone", "t"}

    expire(world.session_of(service))
    world.remove(world.brokers.topic("gone"))

    world.elected(service, above=1)
    after = world.stable("g", 1, above=before.generation)
    assert (set(after.topics), after.epoch) == ({"t"}, 2)
    eventually(lambda: consumer.held == parts("t", 0, 1), 5, "only what is still there")


def test_b_new_session_2_expiration_of_the_next_session_is_noticed_too(world: World) -> None:
    service = world.coordinator("a", session_timeout_ms=10_000)
    for epoch in (1, 2):
        world.elected(service, above=epoch - 1)
        expire(world.session_of(service))

    world.elected(service, above=2)

    assert service.term is not None and service.term.epoch == 3


def test_b_new_session_3_is_a_candidate_again(world: World) -> None:
    services = [world.coordinator(node, session_timeout_ms=10_000) for node in ("a", "b")]
    first = world.elected(*services)
    second = next(service for service in services if service is not first)
    expire(world.session_of(first))
    world.elected(second, above=1)

    world.stop_coordinator(second)

    world.elected(first, above=2)


# ---- GroupChangeListener.handleChildChange


def test_group_change_1_gets_the_newly_added_group(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    listening.start()
    listening.asked.clear()

    stage.puppet("added", "c1", {"old": 1})

    listening.wait_for("added", "c1")
    assert listening.directory.groups() == ["added", "g"]
    assert listening.groups_asked() == {"added"}


def test_group_change_2_listens_for_the_members_of_the_new_group(stage: ManualStage, listening: Listening) -> None:
    listening.start()
    stage.puppet("added", "c1", {"old": 1})
    listening.wait_for("added", "c1")

    stage.puppet("added", "c2", {"old": 1})

    listening.wait_for("added", "joined c2")


def test_group_change_3_1_adds_the_group_to_a_topic_that_others_read(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    listening.start()

    stage.puppet("added", "c1", {"old": 1})

    groups = listening.directory.consumer_groups_per_topic
    eventually(lambda: groups == {"old": {"added", "g"}}, 5, "both groups are interested")


def test_group_change_3_2_adds_a_topic_that_was_not_read_before(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    listening.start()

    stage.puppet("added", "c1", {"unread": 1})

    groups = listening.directory.consumer_groups_per_topic
    eventually(lambda: groups == {"old": {"g"}, "unread": {"added"}}, 5, "the topic has its first group")


def test_group_change_4_notes_a_new_group_with_wildcard_subscriptions(stage: ManualStage, listening: Listening) -> None:
    listening.start()

    stage.puppet("white", "c1", {"o.*": 1}, WHITE_LIST)
    stage.puppet("black", "c1", {"o.*": 1}, BLACK_LIST)

    eventually(lambda: listening.directory.groups_of("old") == {"white"}, 5, "the white list means it")
    eventually(lambda: listening.directory.groups_of("new") == {"black"}, 5, "the black list means all others")


def test_group_change_5_rebalances_a_group_that_reads_existing_topics_and_no_other(world: World) -> None:
    world.topic("t", 2)
    ensure(world.store, GroupPaths("empty").skeleton)
    world.elected(world.coordinator())

    ensure(world.store, GroupPaths("empty-yet").skeleton)
    consumer = world.consumer("added", "c1", {"t": 1})

    world.stable("added", 1)
    eventually(lambda: consumer.held == parts("t", 0, 1), 5, "the new group's consumer has its partitions")
    for group in ("empty", "empty-yet"):
        assert (world.state(group).state, world.state(group).generation) == (EMPTY, 0)


# ---- GroupMemberChangeListener.handleChildChange


def test_member_change_1_forgets_topics_without_subscribers(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    stage.puppet("other", "c1", {"gone": 1})
    leaver = stage.puppet("g", "c2", {"gone": 1, "gone-too": 1})
    wild = stage.puppet("g", "c3", {"o.*": 1}, WHITE_LIST)
    listening.start()
    directory = listening.directory
    assert directory.consumer_groups_per_topic == {"old": {"g"}, "gone": {"g", "other"}, "gone-too": {"g"}}

    leaver.close()
    eventually(lambda: directory.consumer_groups_per_topic == {"old": {"g"}, "gone": {"other"}}, 5, "its topics go")
    wild.close()
    eventually(lambda: directory.groups_with_wildcard_topics == {}, 5, "its wildcard goes")


def test_member_change_2_does_nothing_for_a_group_without_a_consumer(world: World) -> None:
    world.topic("t", 2)
    world.coordinator()
    only = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    only.close()

    def look() -> bool:
        state = world.state("g")
        return (state.state, dict(state.target), state.reason) == (EMPTY, {}, None)

    eventually(look, 10, "the group is empty")
    assert world.commands("g", "c1") == []
    assert world.owners("g") == {}


def test_member_change_2_otherwise_asks_for_a_turn(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    leaver = stage.puppet("g", "c2", {"old": 1})
    listening.start()

    stage.puppet("g", "c3", {"old": 1})
    listening.wait_for("g", "joined c3")
    leaver.close()
    listening.wait_for("g", "left c2")


# ---- TopicChangeListener.handleChildChange


def test_topic_change_1_gets_the_newly_added_topic(world: World, listening: Listening) -> None:
    listening.start()

    world.topic("added", 3)

    eventually(lambda: "added" in listening.directory.topics, 5, "the topic is known")
    assert listening.directory.topics["added"].partitions == (0, 1, 2)


def test_topic_change_2_1_listens_for_its_partitions(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"added": 1})
    listening.start()
    world.topic("added", 1)
    listening.wait_for("g", "topic added appeared")

    world.more_partitions("added", 4)

    listening.wait_for("g", "topic added has 4 partitions")


def test_topic_change_2_2_turns_of_interested_groups(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.puppet("static", "c1", {"added": 1})
    stage.puppet("white", "c1", {"add.*": 1}, WHITE_LIST)
    stage.puppet("black", "c1", {"old": 1}, BLACK_LIST)
    stage.puppet("other", "c1", {"old": 1})
    stage.puppet("other-white", "c1", {"ad": 1}, WHITE_LIST)
    stage.puppet("other-black", "c1", {"add.*": 1}, BLACK_LIST)
    listening.start()
    listening.asked.clear()

    world.topic("added", 1)

    for group in ("static", "white", "black"):
        listening.wait_for(group, "topic added appeared")
    assert listening.groups_asked() == {"static", "white", "black"}


# ---- TopicPartitionChangeListener.handleChildChange


def test_topic_partition_change_asks_interested_groups(world: World, stage: ManualStage, listening: Listening) -> None:
    stage.puppet("static", "c1", {"old": 1})
    stage.puppet("white", "c1", {"o.*": 1}, WHITE_LIST)
    stage.puppet("other", "c1", {"new": 1})
    stage.puppet("other-black", "c1", {"old": 1}, BLACK_LIST)
    listening.start()
    listening.asked.clear()

    world.more_partitions("old", 3)

    for group in ("static", "white"):
        listening.wait_for(group, "topic old has 3 partitions")
    assert listening.groups_asked() == {"static", "white"}

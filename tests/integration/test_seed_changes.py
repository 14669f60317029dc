"""Seed 000, part C, step by step: what happens when a watch fires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.zk.update import ensure
from coordinator.zk.znodes.group_state import EMPTY
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST
from tests.support.hand import ManualStage
from tests.support.listening import Listening, listening_on
from tests.support.wait import eventually
from tests.support.world import World, parts


@pytest.fixture
def listening(world: World) -> Iterator[Listening]:
    """Listeners that have not started yet, where there is a topic `old`."""
    world.topic("old", 2)
    with listening_on(world.zk) as listening:
        yield listening


# ---- GroupChangeListener.handleChildChange


def test_group_change_1_gets_the_newly_added_group(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    listening.start()
    listening.asked.clear()

    stage.puppet("added", "c1", {"old": 1})

    listening.wait_for("added", "c1")
    assert listening.listeners.groups() == ["added", "g"]
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

    groups = listening.interests.consumer_groups_per_topic
    eventually(lambda: groups == {"old": {"added", "g"}}, 5, "both groups are interested")


def test_group_change_3_2_adds_a_topic_that_was_not_read_before(stage: ManualStage, listening: Listening) -> None:
    stage.puppet("g", "c1", {"old": 1})
    listening.start()

    stage.puppet("added", "c1", {"unread": 1})

    groups = listening.interests.consumer_groups_per_topic
    eventually(lambda: groups == {"old": {"g"}, "unread": {"added"}}, 5, "the topic has its first group")


def test_group_change_4_notes_a_new_group_with_wildcard_interests(stage: ManualStage, listening: Listening) -> None:
    listening.start()

    stage.puppet("white", "c1", {"o.*": 1}, WHITE_LIST)
    stage.puppet("black", "c1", {"o.*": 1}, BLACK_LIST)

    eventually(lambda: listening.interests.groups_of("old") == {"white"}, 5, "the white list means it")
    eventually(lambda: listening.interests.groups_of("new") == {"black"}, 5, "the black list means all others")


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
    interests = listening.interests
    assert interests.consumer_groups_per_topic == {"old": {"g"}, "gone": {"g", "other"}, "gone-too": {"g"}}

    leaver.close()
    eventually(lambda: interests.consumer_groups_per_topic == {"old": {"g"}, "gone": {"other"}}, 5, "its topics go")
    wild.close()
    eventually(lambda: interests.groups_with_wildcard_topics == {}, 5, "its wildcard goes")


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

    eventually(lambda: "added" in listening.listeners.topics(), 5, "the topic is known")
    assert listening.listeners.topics()["added"].partitions == (0, 1, 2)


def test_topic_change_2_1_listens_for_the_partitions_of_the_new_topic(
    world: World, stage: ManualStage, listening: Listening
) -> None:
    stage.puppet("g", "c1", {"added": 1})
    listening.start()
    world.topic("added", 1)
    listening.wait_for("g", "topic added appeared")

    world.more_partitions("added", 4)

    listening.wait_for("g", "topic added has 4 partitions")


def test_topic_change_2_2_asks_for_a_turn_of_each_interested_group_and_no_other(
    world: World, stage: ManualStage, listening: Listening
) -> None:
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


def test_topic_partition_change_requests_a_turn_of_each_interested_group_only(
    world: World, stage: ManualStage, listening: Listening
) -> None:
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

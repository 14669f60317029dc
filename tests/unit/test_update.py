"""Changing a znode by compare-and-set; and decisions of `topics sync` and `groups export-offsets`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.property.tree import MemoryTree
from tests.support.stores import Behind, Interrupted, lost_reply, nothing
from zk_group.consumer.logs.kafka.requests import Described
from zk_group.coordinator.admin.groups import ShownGroup, ShownPartition
from zk_group.coordinator.admin.regions import request
from zk_group.coordinator.admin.topics import (
    CREATED,
    GROWN,
    LEFT_ALONE,
    REMOVED,
    REPLACED,
    create_topic,
    delete_topic,
    planned,
)
from zk_group.coordinator.cli.topics import exported, mismatches, readable_topics
from zk_group.coordinator.zk.errors import CoordinatorError, StoreError, UsageError
from zk_group.coordinator.zk.store import Delete, Node, SetData, Stat
from zk_group.coordinator.zk.update import TRIES, Change, update
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import REGIONS, Brokers, RegionPaths
from zk_group.coordinator.zk.znodes.records import Topic
from zk_group.coordinator.zk.znodes.regions import RESET, Region, RegionRequest

PATH = "/counter"


def reply_lost(tree: MemoryTree, meanwhile: Callable[[], object] = nothing) -> Interrupted:
    """Loses the reply of the first commit that did happen; then `meanwhile` runs, before anything is read again."""
    return Interrupted(tree.open(), after=lambda: (meanwhile(), lost_reply()))


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    tree.put(PATH, b"1")
    return tree


def counted(node: Node | None) -> Change[int]:
    assert node is not None
    number = int(node.data) + 1
    return Change([SetData(PATH, str(number).encode(), node.stat.version)], number)


def test_znode_changed_by_another_client_is_read_again(tree: MemoryTree) -> None:
    assert update(Interrupted(tree.open(), lambda: tree.put(PATH, b"10")), PATH, counted) == 11
    assert tree.data(PATH) == b"11"


def test_a_commit_whose_reply_was_lost_is_not_sent_again_once_it_has_happened(tree: MemoryTree) -> None:
    behind = Behind(tree.open())  # from the loss on its server lags, until a sync

    def lags() -> None:
        behind.lacks = PATH.__eq__
        lost_reply()

    store = Interrupted(behind, after=lags)

    assert update(store, PATH, counted) == 2
    assert (tree.data(PATH), store.commits) == (b"2", 1)


def test_a_commit_that_was_lost_is_sent_again(tree: MemoryTree) -> None:
    assert update(Interrupted(tree.open(), lost_reply), PATH, counted) == 2
    assert tree.data(PATH) == b"2"


def test_a_znode_that_keeps_changing_ends_the_update(tree: MemoryTree) -> None:
    store = Interrupted(tree.open())

    def restless(node: Node | None) -> Change[int]:
        tree.put(PATH, b"10")
        return counted(node)

    with pytest.raises(StoreError, match="/counter keeps changing"):
        update(store, PATH, restless)
    assert store.commits == TRIES


def test_update_without_a_change_commits_nothing(tree: MemoryTree) -> None:
    store = Interrupted(tree.open())

    assert update(store, PATH, lambda node: Change((), node is not None))
    assert store.commits == 0


def test_deletion_with_a_lost_reply_leaves_a_successor_of_the_same_name_alone(tree: MemoryTree) -> None:
    store = reply_lost(tree, lambda: tree.put(PATH, b"1"))

    def removed(node: Node | None) -> Change[None]:
        assert node is not None
        return Change([Delete(PATH, node.stat.version)], None)

    update(store, PATH, removed)

    assert (tree.data(PATH), store.commits) == (b"1", 1)


def test_topic_deletion_with_a_lost_reply_leaves_a_topic_created_again_alone(tree: MemoryTree) -> None:
    brokers = Brokers("/brokers")
    tree.ensure(brokers.topics)
    create_topic(tree.open(), brokers, "t", 2)
    store = reply_lost(tree, lambda: create_topic(tree.open(), brokers, "t", 3))

    delete_topic(store, brokers, "t")

    assert tree.data(brokers.topic("t")) is not None and store.commits == 1


def test_region_request_with_a_lost_reply_is_not_sent_again_once_it_may_be_answered(tree: MemoryTree) -> None:
    paths = RegionPaths("r")
    tree.ensure(REGIONS)
    tree.put(paths.root, Region(groups=("g",)).to_bytes())
    store = reply_lost(tree, lambda: tree.commit([Delete(paths.request)], 0))

    with pytest.raises(StoreError, match="the reply to the request for region r was lost: look at"):
        request(store, "r", RegionRequest(RESET, "ann"))

    assert (tree.data(paths.request), store.commits) == (None, 1)


# ---- `topics sync`: only its own znodes change, and only for their own cluster


STAT = Stat(1, 1, 1, 0, 0, 0, 0)


def node(topic_id: str, partitions: int, **more: str) -> Node:
    values = {"version": 3, "topic_id": topic_id, "partitions": {str(n): [] for n in range(partitions)}, **more}
    return Node(json.dumps(values).encode(), STAT)


def topic(topic_id: str, partitions: int) -> Topic:
    return Topic("t", topic_id, tuple(range(partitions)))


def plan(nodes: dict[str, Node], there: dict[str, Topic]) -> list[tuple[str, str]]:
    return [(change.topic, change.what) for change in planned(nodes, there, "mine", Brokers())]


def test_only_topics_of_sync_are_created_extended_replaced_and_removed() -> None:
    nodes = {name: node("id", 2, cluster="mine") for name in ("same", "grown", "another", "gone")}
    nodes |= {"embedded": node("id", 2), "both": node("id", 2), "odd": Node(b"{", STAT)}
    there = {"same": topic("id", 2), "grown": topic("id", 3), "another": topic("id-2", 1), "new": topic("id", 1)}
    there |= {"both": topic("other", 5), "odd": topic("id", 1)}

    assert dict(plan(nodes, there)) == {
        "another": REPLACED, "gone": REMOVED, "grown": GROWN, "new": CREATED, "both": LEFT_ALONE, "odd": LEFT_ALONE,
    }  # fmt: skip


def test_another_clusters_topics_are_never_touched() -> None:
    with pytest.raises(UsageError, match="synced from the Kafka cluster theirs"):
        plan({"t": node("id", 1, cluster="theirs")}, {})


class Answer(NamedTuple):
    """The brokers' metadata of a topic."""

    id: str
    partitions: frozenset[int]
    error: str = ""


def test_topic_deleted_meanwhile_is_left_out_and_an_unreadable_one_has_a_reason() -> None:
    answers = {
        "t": Answer("id", frozenset({1, 0})),
        "deleted": Answer("", frozenset(), "no such topic"),
        "secret": CoordinatorError("not allowed"),
    }

    assert readable_topics(answers) == ({"t": topic("id", 2)}, {"secret": "not allowed"})
    with pytest.raises(CoordinatorError, match="no broker"):  # none is readable
        readable_topics({"t": CoordinatorError("no broker"), "u": CoordinatorError("none either")})
    assert readable_topics({}) == ({}, {})


# ---- `groups export-offsets`: the offsets committed to Kafka, and the outcome of each


class Kafka:
    """A Kafka with one group."""

    def __init__(self, state: str = "EMPTY", members: int = 0) -> None:
        self.state = state, members
        self.committed: list[tuple[str, Mapping[tuple[str, int], int]]] = []
        self.refused: dict[tuple[str, int], str] = {}
        self.partitions = frozenset(range(3))

    def group(self, group: str) -> tuple[str, int]:
        return self.state

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], str]:
        self.committed.append((group, dict(offsets)))
        return self.refused

    def describe(self, topics: Collection[str]) -> Any:
        return SimpleNamespace(results=lambda: {topic: Described("id", self.partitions) for topic in topics})


def group(*offsets: int | None) -> ShownGroup:
    partitions = [ShownPartition(TopicPartition("t", n), "id", None, None, at) for n, at in enumerate(offsets)]
    return ShownGroup("g", GroupState(), (), tuple(partitions))


def test_each_existing_offset_is_committed_under_the_name_in_kafka() -> None:
    kafka = Kafka()

    assert exported(kafka, "g", group(None)) == kafka.committed == [], "nothing is sent when there is nothing to send"
    rows = exported(kafka, "shadow", group(5, None, 7))

    assert kafka.committed == [("shadow", {("t", 0): 5, ("t", 2): 7})]
    assert rows == [("shadow", "t", 0, 5, "Successful"), ("shadow", "t", 2, 7, "Successful")]


def test_offsets_of_other_topics_are_not_sent_and_refused_ones_have_a_reason() -> None:
    kafka = Kafka("DEAD")
    kafka.refused = {("t", 1): "not allowed"}
    found = group(5, 6, 7)
    earlier = replace(found.partitions[0], topic_id="earlier")

    rows = exported(kafka, "g", replace(found, partitions=(earlier, *found.partitions[1:])))

    assert kafka.committed == [("g", {("t", 1): 6, ("t", 2): 7})]
    assert "earlier" in rows[0][-1]
    assert [row[-1] for row in rows[1:]] == ["not allowed", "Successful"]


def test_a_partition_that_kafka_lacks_or_whose_topic_has_no_id_is_a_mismatch() -> None:
    found = group(5, 6, 7)
    unknown = replace(found.partitions[2], topic_id=None)

    kafka = Kafka()
    kafka.partitions = frozenset({0})

    assert mismatches(kafka, replace(found, partitions=(*found.partitions[:2], unknown))) == {
        ("t", 1): "Kafka has no such partition",
        ("t", 2): "its topic has no id",
    }


@pytest.mark.parametrize(("state", "members"), [("STABLE", 2), ("EMPTY", 1), ("PREPARING_REBALANCING", 0)])
def test_a_group_with_members_in_kafka_is_refused(state: str, members: int) -> None:
    kafka = Kafka(state, members)

    with pytest.raises(UsageError, match="export under another name with --as"):
        exported(kafka, "g", group(5))

    assert kafka.committed == []

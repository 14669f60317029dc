"""Decisions of `topics sync` and `groups export-offsets`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from consumer.logs.kafka.requests import Described
from coordinator.admin.groups import ShownGroup, ShownPartition
from coordinator.admin.topics import CREATED, GROWN, LEFT_ALONE, REMOVED, REPLACED, planned
from coordinator.cli.topics import exported, mismatches, readable_topics
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.store import Node, Stat
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

# ---- only its own znodes change, and only for their own cluster


STAT = Stat(1, 1, 1, 0, 0, 0, 0)


def node(topic_id: str, partitions: int, **more: str) -> Node:
    values = {"version": 3, "topic_id": topic_id, "partitions": {str(n): [] for n in range(partitions)}, **more}
    return Node(json.dumps(values).encode(), STAT)


def topic(topic_id: str, partitions: int) -> Topic:
    return Topic("t", topic_id, tuple(range(partitions)))


def plan(nodes: dict[str, Node], there: dict[str, Topic]) -> list[tuple[str, str]]:
    return [(change.topic, change.what) for change in planned(nodes, there, "mine", Brokers())]


def test_topics_of_the_brokers_are_created_extended_replaced_and_removed() -> None:
    nodes = {name: node("id", 2, cluster="mine") for name in ("same", "grown", "another", "gone")}
    there = {"same": topic("id", 2), "grown": topic("id", 3), "another": topic("id-2", 1), "new": topic("id", 1)}

    assert plan(nodes, there) == [("another", REPLACED), ("gone", REMOVED), ("grown", GROWN), ("new", CREATED)]


def test_topic_not_created_by_sync_is_unchanged() -> None:
    nodes = {"embedded": node("id", 2), "both": node("id", 2), "odd": Node(b"{", STAT)}

    assert plan(nodes, {"both": topic("other", 5), "odd": topic("id", 1)}) == [
        ("both", LEFT_ALONE),
        ("odd", LEFT_ALONE),
    ]


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


def test_error_of_the_brokers_is_raised_when_no_topic_is_readable() -> None:
    with pytest.raises(CoordinatorError, match="no broker"):
        readable_topics({"t": CoordinatorError("no broker"), "u": CoordinatorError("none either")})
    assert readable_topics({}) == ({}, {})


# ---- the offsets committed to Kafka, and the outcome of each


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


def test_nothing_is_sent_when_there_is_nothing_to_send() -> None:
    kafka = Kafka()

    assert exported(kafka, "g", group(None)) == [] and kafka.committed == []


@pytest.mark.parametrize(("state", "members"), [("STABLE", 2), ("EMPTY", 1), ("PREPARING_REBALANCING", 0)])
def test_a_group_with_members_in_kafka_is_refused(state: str, members: int) -> None:
    kafka = Kafka(state, members)

    with pytest.raises(UsageError, match="export under another name with --as"):
        exported(kafka, "g", group(5))

    assert kafka.committed == []

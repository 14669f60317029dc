"""Decisions of `topics sync`: only its own znodes change, and only for their own cluster."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from coordinator.admin.topics import CREATED, GROWN, LEFT_ALONE, REMOVED, REPLACED, planned
from coordinator.cli.topics import readable_topics
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.store import Node, Stat
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

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

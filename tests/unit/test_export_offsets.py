"""Decisions of `groups export-offsets`: the offsets committed to Kafka, and the outcome of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from consumer.logs.kafka.requests import Described
from coordinator.admin.groups import ShownGroup, ShownPartition
from coordinator.cli.topics import exported, mismatches
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition


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

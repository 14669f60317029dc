"""Implementation of `groups export-offsets`: commit a group's offsets to Kafka, to a group without members."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ..zk.errors import UsageError
from .groups import ShownGroup

MAY_BE_SET = ("EMPTY", "DEAD")

Place = tuple[str, int]
"""Topic, partition."""

TopicWithId = tuple[str, str]
"""Topic, topic id."""

Row = tuple[str, str, int, int, str]
"""The group's name in Kafka, topic, partition, offset, result."""


class KafkaGroups(Protocol):
    """The Kafka operations of an export."""

    def group(self, group: str) -> tuple[str, int]:
        """State of a group, as `EMPTY` or `STABLE`, and the number of its members."""

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> Mapping[Place, str]:
        """Commit offsets; the refused partitions, with the reason."""

    def partitions(self, topics: Collection[TopicWithId]) -> Mapping[TopicWithId, frozenset[int] | str]:
        """The partitions of topics, or why Kafka has no topic with that name and id."""


def export_offsets(kafka: KafkaGroups, name: str, group: ShownGroup) -> list[Row]:
    """Commit a group's offsets as those of Kafka's group `name`; a row for each.

    :raises UsageError: when that group has members in Kafka.
    :raises CoordinatorError: when Kafka does not answer.
    """
    state, members = kafka.group(name)
    if state not in MAY_BE_SET or members:
        raise UsageError(
            f"group {name} has {members} members in Kafka ({state.capitalize()}), which own its offsets there: "
            "stop them, or export under another name with --as"
        )
    offsets: dict[Place, int] = {each.partition: each.offset for each in group.partitions if each.offset is not None}
    topics = {(part.partition.topic, part.topic_id) for part in group.partitions if part.topic_id is not None}
    strange = mismatches(group, kafka.partitions(topics))
    valid = {place: offset for place, offset in offsets.items() if place not in strange}
    refused = kafka.commit_offsets(name, valid) if valid else {}
    reasons = {**strange, **refused}
    return [
        (name, topic, number, offset, reasons.get((topic, number), "Successful"))
        for (topic, number), offset in sorted(offsets.items())
    ]


def mismatches(group: ShownGroup, there: Mapping[TopicWithId, frozenset[int] | str]) -> dict[Place, str]:
    """Partitions whose topic id differs from Kafka's, or that Kafka does not have, with the reason.

    :param there: Kafka's answer for the topics with an id.
    """
    found: dict[Place, str] = {}
    for part in group.partitions:
        topic, number = part.partition
        partitions = there[topic, part.topic_id] if part.topic_id is not None else "its topic has no id"
        if isinstance(partitions, str):
            found[topic, number] = partitions
        elif number not in partitions:
            found[topic, number] = "Kafka has no such partition"
    return found

"""Start positions resolved: the offset at which a group begins with a partition of which it has none.

Whoever claims such a partition first asks the log, once, and records the answer in `offsets/` before it fetches: every
later owner starts there too, also when the first one has died before it committed anything (the control variables of
seed 002).
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.zk.partitions import TopicPartition
from coordinator.zk.records import BegunRecord
from coordinator.zk.store import Node

from .errors import NoOffsetForPartition
from .logs import Log, UnknownTopic, knows_topics
from .start_position import END, Place, StartRule


class Found(NamedTuple):
    """Where a partition begins, and what it was resolved from."""

    offset: int
    place: Place


class Starts:
    """Resolves the starts of one consumer.

    A log of which nothing is known yet begins, and ends, at 0: nothing was ever written to it.
    """

    def __init__(self, source: Log, rule: StartRule) -> None:
        self._log = source
        self.rule = rule

    def find(self, partition: TopicPartition, topic_id: str, came_later: bool) -> Found:
        """Where `partition` begins.

        :param came_later: whether it came up after the group had begun.
        :raises NoOffsetForPartition: when the configuration says that this is an error.
        :raises LogError: when the log cannot tell just now.
        """
        place = self.rule.place(came_later)
        if place is None:
            raise NoOffsetForPartition(
                f"the group has no offset for {partition}, and auto_offset_reset is none: set one with "
                "`zk-coordinator groups reset-offsets`, or say where to start with start_position"
            )
        return Found(self.offset_of(place, partition, topic_id), place)

    def offset_of(self, place: Place, partition: TopicPartition, topic_id: str) -> int:
        """The offset of `place` in `partition` now.

        :raises LogError: when the log cannot tell just now.
        """
        where = (partition.topic, topic_id, partition.partition)
        try:
            if place.timestamp_ms is not None:
                return self._log.offset_for_timestamp(*where, place.timestamp_ms)
            return self._log.latest(*where) if place.name == END else self._log.earliest(*where)
        except UnknownTopic:
            if knows_topics(self._log):
                raise  # recorded, a 0 would be for good
            return 0


def find_nowhere(partition: TopicPartition, topic_id: str, came_later: bool) -> Found:
    """Of a member that fetches nothing.

    :raises NoOffsetForPartition: always.
    """
    raise NoOffsetForPartition(f"{partition} was assigned to a member that fetches nothing")


def came_later(where: str, node: Node | None, topic_id: str, partition: int) -> bool:
    """Whether a partition came up after the group had begun with its topic, as `offsets/[topic]` notes.

    Without a note an earlier release made the znode: its groups begin every partition at its beginning.

    :raises BadData: when the note cannot be read.
    """
    if node is None or not node.data:
        return True
    return BegunRecord.parse(where, node.data).came_later(topic_id, partition)

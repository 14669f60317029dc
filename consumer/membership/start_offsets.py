"""Start positions resolved: the offset at which a group begins with a partition that has none.

The first owner of such a partition asks the log, once, and records the answer in `offsets/` before it fetches: every
later owner starts there too, also when the first one has died before any commit (the control variables of seed 002).
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.zk.store import Node
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import BegunRecord

from ..errors import NoOffsetForPartition
from ..logs import Log, UnknownTopic, knows_topics
from .start_position import END, OffsetSpec, StartRule


class StartOffset(NamedTuple):
    """Where a partition begins, and the position that it was resolved from."""

    offset: int
    place: OffsetSpec


class Starts:
    """Resolves the starts of one consumer.

    A log without any record of a partition begins, and ends, at 0.

    :param region: the consistent region of plain consumers that the group is in: no offset can be set in one.
    """

    def __init__(self, source: Log, rule: StartRule, region: str = "") -> None:
        self._log = source
        self._region = region
        self.rule = rule

    def find(self, partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        """Where `partition` begins.

        :param came_later: whether it was added after the group had begun.
        :raises NoOffsetForPartition: when `auto_offset_reset` is `none`.
        :raises LogError: when the log does not answer.
        """
        place = self.rule.place(came_later)
        if place is None:
            set_one = "" if self._region else "set one with `zk-coordinator groups reset-offsets`, or "
            raise NoOffsetForPartition(
                f"the group has no offset for {partition}, and auto_offset_reset is none: {set_one}"
                "choose a start with start_position"
            )
        return StartOffset(self.offset_of(place, partition, topic_id), place)

    def offset_of(self, place: OffsetSpec, partition: TopicPartition, topic_id: str) -> int:
        """The offset of `place` in `partition` now.

        :raises LogError: when the log does not answer.
        """
        where = (partition.topic, topic_id, partition.partition)
        try:
            if place.timestamp_ms is not None:
                return self._log.offset_for_timestamp(*where, place.timestamp_ms)
            return self._log.latest(*where) if place.name == END else self._log.earliest(*where)
        except UnknownTopic:
            if knows_topics(self._log):
                raise  # a recorded 0 would be permanent
            return 0


def find_nowhere(partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
    """For a member that fetches nothing.

    :raises NoOffsetForPartition: always.
    """
    raise NoOffsetForPartition(f"{partition} was assigned to a member that fetches nothing")


def came_later(where: str, node: Node | None, topic_id: str, partition: int) -> bool:
    """Whether a partition was added after the group had begun with its topic, by the note in `offsets/[topic]`.

    A znode without a note is of an earlier release: its groups begin every partition at its beginning.

    :raises BadData: when the note cannot be read.
    """
    if node is None or not node.data:
        return True
    return BegunRecord.parse(where, node.data).came_later(topic_id, partition)

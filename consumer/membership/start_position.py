"""The start position of partitions that have no offset in the group (sources R4).

`start_position` is `beginning`, `end`, `committed` or a point in time. It applies only to partitions that existed when
the group began: an offset of the group has precedence, and what is added later (a partition, a created or recreated
topic) is read from its beginning, so that no record of it is lost. `committed`, the default, leaves the decision to
`auto_offset_reset`, Kafka's.

The first owner of such a partition asks the log, once, and records the answer in `offsets/` before it fetches: every
later owner starts there too, also when the first one has died before any commit (sources R9, R14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.store import Node
from zk_group.coordinator.zk.values import epoch_ms, require, time_text
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import shown
from zk_group.coordinator.zk.znodes.records import BegunRecord

from ..errors import NoOffsetForPartition
from ..logs.base import Log, UnknownTopic

BEGINNING, END, COMMITTED = "beginning", "end", "committed"
EARLIEST, LATEST, NONE = "earliest", "latest", "none"
RESETS = (EARLIEST, LATEST, NONE)

ACCEPTED_FORMS = (
    "start_position must be beginning, end, committed, or a time: 2026-11-21T10:00:00.000Z, or milliseconds since 1970 "
    "from 0 to 999999999999999"
)


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """A position in a partition: its beginning, its end, or the first record at or after a time.

    :ivar timestamp_ms: of such a record, since the epoch; None with the other two.
    """

    name: str
    timestamp_ms: int | None = None

    @property
    def text(self) -> str:
        """The recorded and logged form: `beginning`, `end`, or the time in UTC."""
        return self.name if self.timestamp_ms is None else time_text(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class StartRule:
    """The configured start position.

    :ivar position: None for `committed`.
    :ivar reset: `auto_offset_reset`: `earliest`, `latest` or `none`.
    """

    position: OffsetSpec | None
    reset: str

    @classmethod
    def parse(cls, start_position: str | int, auto_offset_reset: str) -> StartRule:
        """
        A whole number is milliseconds since the epoch in every case. A time without a zone is UTC, as in
        `groups reset-offsets --to-datetime`: executors in different zones must start at the same position.

        :raises UsageError: when one of them is invalid.
        """
        wrong = f"auto_offset_reset must be one of {', '.join(RESETS)}, not {shown(auto_offset_reset)}"
        require(auto_offset_reset in RESETS, wrong)
        return cls(_parsed(str(start_position).strip()), auto_offset_reset)

    def place(self, came_later: bool) -> OffsetSpec | None:
        """Where to start; None for an error: `committed`, no offset, and `none`.

        :param came_later: whether the partition was added after the group had begun.
        """
        if self.position is None and self.reset == NONE:
            return None
        if came_later:
            return OffsetSpec(BEGINNING)
        return self.position or OffsetSpec(END if self.reset == LATEST else BEGINNING)


def _parsed(text: str) -> OffsetSpec | None:
    if text in (BEGINNING, END):
        return OffsetSpec(text)
    if text == COMMITTED:
        return None
    try:
        if text.isascii() and text.isdecimal() and len(text) <= 15:
            return OffsetSpec("timestamp", int(text))
        time_ms = epoch_ms(text)
    except ValueError as error:
        raise UsageError(f"{ACCEPTED_FORMS}; not {shown(text)}") from error
    require(time_ms >= 0, f"{ACCEPTED_FORMS}; {shown(text)} is before 1970")
    return OffsetSpec("timestamp", time_ms)


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
        where = (partition.topic, topic_id, partition.partition)
        try:
            if place.timestamp_ms is not None:
                return StartOffset(self._log.offset_for_timestamp(*where, place.timestamp_ms), place)
            return StartOffset(self._log.latest(*where) if place.name == END else self._log.earliest(*where), place)
        except UnknownTopic:
            if self._log.knows_topics:
                raise  # a recorded 0 would be permanent
            return StartOffset(0, place)


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

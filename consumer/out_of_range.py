"""Offsets that the log does not have (any more): where to go on, by `auto_offset_reset`, and never without a word."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from coordinator.zk.partitions import TopicPartition

from .logs import Log, OffsetOutOfRange
from .metrics import Meter
from .start_position import EARLIEST, LATEST, NONE

log = logging.getLogger(__name__)


class Jump(NamedTuple):
    """Fetching of a partition goes on at `after` instead of `before`."""

    topic_id: str
    before: int
    after: int


class OutOfRange:
    """Partitions of which the log does not have the next offset. They are not fetched until their jump was taken.

    :param reset: `earliest`, `latest`, or `none`: then there is no jump, and `refuse` raises.
    """

    def __init__(self, source: Log, meter: Meter, reset: str = EARLIEST) -> None:
        self._log = source
        self._meter = meter
        self._reset = reset
        self._jumps: dict[TopicPartition, Jump] = {}
        self._refused: dict[TopicPartition, OffsetOutOfRange] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._jumps or partition in self._refused

    @property
    def partitions(self) -> Set[TopicPartition]:
        """All of them."""
        return self._jumps.keys() | self._refused.keys()

    @property
    def jumps(self) -> Mapping[TopicPartition, Jump]:
        """What is to be taken, with `forget`."""
        return dict(self._jumps)

    def note(self, partition: TopicPartition, topic_id: str, offset: int, error: OffsetOutOfRange) -> None:
        """The log does not have `offset`: find where to go on.

        :raises LogError: when the log cannot tell just now; the next fetch notes it again.
        """
        if self._reset == NONE:
            self._refused[partition] = error
            return
        find = self._log.latest if self._reset == LATEST else self._log.earliest
        after = find(partition.topic, topic_id, partition.partition)
        if after == offset:
            raise error  # the log contradicts itself, or has just changed: look again
        self._jumps[partition] = Jump(topic_id, offset, after)
        self._meter.offset_reset()
        log.warning(
            "offset out of range: partition=%s offset=%d goes_on_at=%d auto_offset_reset=%s reason=%s",
            partition, offset, after, self._reset, error,
        )  # fmt: skip

    def refuse(self, partitions: Set[TopicPartition]) -> None:
        """
        :raises OffsetOutOfRange: when an offset of one of these is out of range, and `auto_offset_reset` is `none`.
        """
        for partition in sorted(self._refused.keys() & partitions):
            error = self._refused[partition]
            raise OffsetOutOfRange(
                f"{error}; auto_offset_reset is none, so {partition} waits: set an offset with "
                "`zk-coordinator groups reset-offsets`, or choose earliest or latest"
            )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These have another position by now, or are not fetched any more."""
        for partition in partitions:
            self._jumps.pop(partition, None)
            self._refused.pop(partition, None)

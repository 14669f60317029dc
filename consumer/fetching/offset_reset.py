"""Offsets out of range: the reset by `auto_offset_reset`, which is always logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set

from coordinator.zk.znodes.partitions import TopicPartition

from ..logs import Log, OffsetOutOfRange
from ..membership.start_position import EARLIEST, LATEST, NONE
from ..metrics import Meter
from ..types import Jump

log = logging.getLogger(__name__)


class OutOfRangePartitions:
    """Partitions whose next offset is out of range. They are not fetched until their jump was taken.

    :param reset: `earliest`, `latest`, or `none`: without a jump, `refuse` raises.
    :param region: the consistent region of plain consumers that the group is in: positions are never reset in one.
    """

    def __init__(self, source: Log, meter: Meter, reset: str = EARLIEST, region: str = "") -> None:
        self._log = source
        self._meter = meter
        self._reset = NONE if region else reset
        self._region = region
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
        """The jumps to take, followed by `forget`."""
        return dict(self._jumps)

    def note(self, partition: TopicPartition, topic_id: str, offset: int, error: OffsetOutOfRange) -> None:
        """The log does not have `offset`: resolve the reset position.

        :raises LogError: when the log does not answer; the next fetch notes it again.
        """
        if self._reset == NONE:
            self._refused[partition] = error
            return
        find = self._log.latest if self._reset == LATEST else self._log.earliest
        after = find(partition.topic, topic_id, partition.partition)
        if after == offset:
            raise error  # the log's offsets are inconsistent, or have just changed: fetch again
        self._jumps[partition] = Jump(topic_id, offset, after)
        self._meter.offset_reset()
        log.warning(
            "offset out of range: partition=%s offset=%d goes_on_at=%d auto_offset_reset=%s reason=%s",
            partition, offset, after, self._reset, error,
        )  # fmt: skip

    def refuse(self, partitions: Set[TopicPartition]) -> None:
        """
        :raises OffsetOutOfRange: when one of these is out of range, and there is no jump; the message has a remedy.
        """
        for partition in sorted(self._refused.keys() & partitions):
            raise OffsetOutOfRange(f"{self._refused[partition]}; {self._remedy(partition)}")

    def _remedy(self, partition: TopicPartition) -> str:
        if not self._region:
            return (
                f"auto_offset_reset is none, so {partition} waits: set an offset with "
                "`zk-coordinator groups reset-offsets`, or choose earliest or latest"
            )
        return (
            f"a consistent region never jumps, so {partition} waits: restore the log, or go back to a checkpoint whose "
            f"offsets it has (`zk-coordinator regions reset {self._region} --to NUMBER`, or `--to-initial`); where it "
            f"has those of none, stop the group, then `regions remove-group {self._region} GROUP`, "
            "`groups reset-offsets`, and a reset of the region if other groups are in it"
        )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These have another position by now, or are not fetched any more."""
        for partition in partitions:
            self._jumps.pop(partition, None)
            self._refused.pop(partition, None)

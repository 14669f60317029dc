"""Fetching: positions of the assigned partitions, and records from the log in a fair order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import Runtime
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..logs import Log, OffsetOutOfRange, UnknownTopic, released
from ..membership.start_position import EARLIEST
from ..metrics import Meter, unread
from ..types import Fetch, Position
from .offset_reset import OutOfRangePartitions

log = logging.getLogger(__name__)

LOOK_FOR_DATA_S = 0.02
"""Minimum interval between fetches from an empty log."""

LONGEST_WAIT_S = 1.0
"""Maximum backoff, however long the last fetch took: a log that hung for a minute must not pause fetching for nine."""


class Looks:
    """The backoff after empty fetches: short, but fetches take at most a tenth of the time.

    A fetch costs some microseconds a partition. Without the backoff, a thousand idle partitions would keep a CPU busy.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._next = float("-inf")

    @property
    def wait_s(self) -> float:
        """Seconds until the next fetch; 0 when the backoff is over."""
        return max(0.0, self._next - self._runtime.monotonic())

    def at_once(self) -> None:
        """End the backoff: something has changed."""
        self._next = float("-inf")

    def note(self, began: float, is_empty: bool) -> None:
        """Count a fetch that began at `began`."""
        now = self._runtime.monotonic()
        self._next = now + min(LONGEST_WAIT_S, max(LOOK_FOR_DATA_S, 9 * (now - began))) if is_empty else now


class Fetcher:
    """The positions of one consumer. A revoked partition is removed with its fetched records.

    :param region: the consistent region of plain consumers that the group is in; empty without one.
    :ivar out_of_range: partitions whose position is out of range; they wait for `jump`.
    """

    def __init__(
        self, source: Log, meter: Meter | None = None, auto_offset_reset: str = EARLIEST, region: str = ""
    ) -> None:
        self._meter = meter or unread()
        self.out_of_range = OutOfRangePartitions(source, self._meter, auto_offset_reset, region)
        self._log = source
        self._positions: dict[TopicPartition, Position] = {}
        self._turn: list[TopicPartition] = []
        self._complaints: dict[TopicPartition, str] = {}

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Partition -> its fetch position."""
        return dict(self._positions)

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these partitions too."""
        self._positions.update(starts)
        self._turn = sorted(self._positions)

    def end(self, partitions: PartitionSet | Iterable[TopicPartition]) -> None:
        """Stop fetching these."""
        partitions = list(partitions)
        self.out_of_range.forget(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
            self._complaints.pop(partition, None)
            released(self._log, partition.topic, partition.partition)
        self._turn = [partition for partition in self._turn if partition in self._positions]

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`: later fetched records were dropped."""
        self.out_of_range.forget([partition])
        self._positions[partition] = self._positions[partition]._replace(offset=offset)

    def jump(self) -> None:
        """Reset the positions that are out of range, by `auto_offset_reset`."""
        for partition, jump in self.out_of_range.jumps.items():
            self.rewind(partition, jump.after)

    def fetch(
        self,
        max_records: int,
        max_bytes: int,
        only: Collection[TopicPartition] | None = None,
        max_partition_bytes: int | None = None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> list[Fetch]:
        """The available records, by partition, beginning after the partition served last.

        :param max_records: maximum records over all partitions.
        :param max_bytes: maximum bytes; a partition's first record may exceed it.
        :param only: fetch only these; all when it is None.
        :param max_partition_bytes: the same as `max_bytes`, of one partition.
        :param is_enough: checked after each partition with records; those not served come first in the next fetch.
        """
        of_each = max_bytes if max_partition_bytes is None else max_partition_bytes
        fetches: list[Fetch] = []
        unknown: set[tuple[str, str]] = set()  # topics without data: one partition answers for all
        for partition in list(self._turn):
            if max_records <= 0 or max_bytes <= 0 or (fetches and is_enough()):
                break
            if partition in self.out_of_range or (only is not None and partition not in only):
                continue
            if unknown and (partition.topic, self._positions[partition].topic_id) in unknown:
                continue
            try:
                fetched = self._fetch(partition, max_records, min(max_bytes, of_each), unknown)
            except BaseException:
                for each in fetches:  # these are not returned
                    self.rewind(each.partition, each.first)
                raise
            if fetched is None:
                continue
            fetches.append(fetched)
            rows, size = fetched.rows, fetched.nbytes
            max_records -= rows
            max_bytes -= size
            self._meter.fetched(rows, size)
            self._turn.remove(partition)
            self._turn.append(partition)
        return fetches

    def _fetch(
        self, partition: TopicPartition, max_records: int, max_bytes: int, unknown: set[tuple[str, str]]
    ) -> Fetch | None:
        position = self._positions[partition]
        try:
            batches, next_offset = self._log.fetch(
                partition.topic, position.topic_id, partition.partition, position.offset, max_bytes, max_records
            )
            self._complaints.pop(partition, None)
        except OffsetOutOfRange as error:
            self._note(partition, position, error)
            return None
        except UnknownTopic:
            unknown.add((partition.topic, position.topic_id))
            return None  # nothing was written to it yet
        except (CoordinatorError, OSError) as error:
            self._log_problem(partition, str(error))
            return None
        if next_offset == position.offset:
            return None
        self._positions[partition] = position._replace(offset=next_offset)
        return Fetch(partition, position.topic_id, position.offset, next_offset, batches)

    def _note(self, partition: TopicPartition, position: Position, error: OffsetOutOfRange) -> None:
        try:
            self.out_of_range.note(partition, position.topic_id, position.offset, error)
            if partition not in self.out_of_range.jumps:
                self._log_problem(partition, str(error))
        except (CoordinatorError, OSError) as problem:
            self._log_problem(partition, str(problem))

    def _log_problem(self, partition: TopicPartition, problem: str) -> None:
        """Log a partition's error once; it does not stop the others."""
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition fetch failed: partition=%s problem=%s", partition, problem)

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return dict(self._complaints)

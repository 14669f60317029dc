"""Fetching: positions of the partitions that are held, and records from the log in a fair order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.runtime import Runtime

from .holder import Start
from .logs import Log, OffsetOutOfRange, UnknownTopic, released
from .metrics import Meter, unread
from .out_of_range import OutOfRange
from .start_position import EARLIEST

log = logging.getLogger(__name__)

LOOK_FOR_DATA_S = 0.02
"""How often an empty log is looked at again, at most."""

LONGEST_WAIT_S = 1.0
"""The longest wait, however long the last look took: a log that hung for a minute must not be left alone for nine."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where fetching of a partition stands: the next offset, in the topic of that id."""

    topic_id: str
    offset: int


@dataclass(frozen=True)
class Fetch:
    """What one partition gave: batches of consecutive records, `first` up to, not including, `next`.

    Arrow takes some ten microseconds to measure a batch: that is done once.
    """

    partition: TopicPartition
    topic_id: str
    first: int
    next: int
    batches: list[pa.RecordBatch]

    @cached_property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)


class Looks:
    """When to look again for records where there were none: often, but not for more than a tenth of the time.

    A look costs some microseconds a partition. Without this, a thousand idle partitions would keep a processor busy.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._next = float("-inf")

    @property
    def wait_s(self) -> float:
        """Seconds until the next look is due; 0 when it is."""
        return max(0.0, self._next - self._runtime.monotonic())

    def at_once(self) -> None:
        """Something has changed: the next look is due."""
        self._next = float("-inf")

    def note(self, began: float, is_empty: bool) -> None:
        """Count a look that began at `began`."""
        now = self._runtime.monotonic()
        self._next = now + min(LONGEST_WAIT_S, max(LOOK_FOR_DATA_S, 9 * (now - began))) if is_empty else now


class Fetcher:
    """The positions of one consumer. A partition that is given up is forgotten with whatever was fetched of it.

    :ivar out_of_range: partitions whose position the log does not have; they wait for `jump`.
    """

    def __init__(self, source: Log, meter: Meter | None = None, auto_offset_reset: str = EARLIEST) -> None:
        self._meter = meter or unread()
        self.out_of_range = OutOfRange(source, self._meter, auto_offset_reset)
        self._log = source
        self._positions: dict[TopicPartition, Position] = {}
        self._turn: list[TopicPartition] = []
        self._complaints: dict[TopicPartition, str] = {}

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Partition -> where fetching stands."""
        return dict(self._positions)

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Fetch these partitions too."""
        for partition, start in starts.items():
            self._positions[partition] = Position(start.topic_id, start.offset)
        self._turn = sorted(self._positions)

    def end(self, partitions: PartitionSet | Iterable[TopicPartition]) -> None:
        """Fetch these no more."""
        partitions = list(partitions)
        self.out_of_range.forget(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
            self._complaints.pop(partition, None)
            released(self._log, partition.topic, partition.partition)
        self._turn = [partition for partition in self._turn if partition in self._positions]

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Go on from `offset`: what was fetched after it has become nobody's."""
        self.out_of_range.forget([partition])
        self._positions[partition] = replace(self._positions[partition], offset=offset)

    def jump(self) -> None:
        """Go on where `auto_offset_reset` says with every partition whose position is out of range."""
        for partition, jump in self.out_of_range.jumps.items():
            self.rewind(partition, jump.after)

    def fetch(
        self,
        max_records: int,
        max_bytes: int,
        wanted: Collection[TopicPartition] | None = None,
        max_partition_bytes: int | None = None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> list[Fetch]:
        """What is there now, partition by partition, beginning after the one that came last.

        :param max_records: records at most, over all partitions.
        :param max_bytes: bytes at most, but for a partition's first record.
        :param wanted: fetch only these; all when it is None.
        :param max_partition_bytes: the same as `max_bytes`, of one partition.
        :param is_enough: is asked once something was found; who had no turn is looked at first next time.
        """
        of_each = max_bytes if max_partition_bytes is None else max_partition_bytes
        found: list[Fetch] = []
        unknown: set[tuple[str, str]] = set()  # topics without data: what is true of one partition is true of all
        for partition in list(self._turn):
            if max_records <= 0 or max_bytes <= 0 or (found and is_enough()):
                break
            if partition in self.out_of_range or (wanted is not None and partition not in wanted):
                continue
            if unknown and (partition.topic, self._positions[partition].topic_id) in unknown:
                continue
            try:
                fetched = self._fetch(partition, max_records, min(max_bytes, of_each), unknown)
            except BaseException:
                for each in found:  # nobody gets these
                    self.rewind(each.partition, each.first)
                raise
            if fetched is None:
                continue
            found.append(fetched)
            rows, size = fetched.rows, fetched.nbytes
            max_records -= rows
            max_bytes -= size
            self._meter.fetched(rows, size)
            self._turn.remove(partition)
            self._turn.append(partition)
        return found

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
            return None  # nothing has been written to it yet
        except (CoordinatorError, OSError) as error:
            self._complain(partition, str(error))
            return None
        if next_offset == position.offset:
            return None
        self._positions[partition] = replace(position, offset=next_offset)
        return Fetch(partition, position.topic_id, position.offset, next_offset, batches)

    def _note(self, partition: TopicPartition, position: Position, error: OffsetOutOfRange) -> None:
        try:
            self.out_of_range.note(partition, position.topic_id, position.offset, error)
            if partition not in self.out_of_range.jumps:
                self._complain(partition, str(error))
        except (CoordinatorError, OSError) as problem:
            self._complain(partition, str(problem))

    def _complain(self, partition: TopicPartition, problem: str) -> None:
        """One partition's trouble is said once and does not stop the others."""
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition cannot be fetched: partition=%s problem=%s", partition, problem)

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return dict(self._complaints)

"""Fetching: positions of the assigned partitions, and their records as the log's source returns them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import Runtime
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..logs import Log, OffsetOutOfRange, Source, UnknownTopic
from ..membership.start_position import EARLIEST, LATEST, NONE
from ..metrics import Meter, unread
from ..types import Fetch, Jump, Position

log = logging.getLogger(__name__)

LOOK_FOR_DATA_S = 0.02
"""Minimum interval between fetches from an empty log."""

PENDING_S = 0.002
"""Interval between fetches while received records wait for something."""

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

    def note(self, began: float, is_empty: bool, is_pending: bool = False) -> None:
        """Count a fetch that began at `began`.

        :param is_pending: see `Source`.
        """
        now = self._runtime.monotonic()
        wait_s = PENDING_S if is_pending else min(LONGEST_WAIT_S, max(LOOK_FOR_DATA_S, 9 * (now - began)))
        self._next = now + wait_s if is_empty else now


class Fetcher:
    """The positions of one consumer. A revoked partition is removed with its fetched records.

    :param region: the consistent region of plain consumers that the group is in; empty without one.
    :param source: the source of the records; that of the log when it is None.
    :ivar out_of_range: partitions whose position is out of range; they wait for `jump`.
    """

    def __init__(
        self,
        log: Log,
        meter: Meter | None = None,
        auto_offset_reset: str = EARLIEST,
        region: str = "",
        source: Source | None = None,
    ) -> None:
        self._meter = meter or unread()
        self.out_of_range = OutOfRangePartitions(log, self._meter, auto_offset_reset, region)
        self._source = source or log.source()
        self._positions: dict[TopicPartition, Position] = {}
        self._suspended: PartitionSet = frozenset()
        self._complaints: dict[TopicPartition, str] = {}

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Partition -> its fetch position."""
        return dict(self._positions)

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return dict(self._complaints)

    @property
    def is_pending(self) -> bool:
        """See `Source`."""
        return self._source.is_pending

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these partitions too."""
        self._positions.update(starts)
        self._source.assign(starts)

    def end(self, partitions: PartitionSet | Iterable[TopicPartition]) -> None:
        """Stop fetching these."""
        partitions = list(partitions)
        self.out_of_range.forget(partitions)
        self._suspended -= frozenset(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
            self._complaints.pop(partition, None)
        self._source.release(partitions)

    def suspend(self, partitions: PartitionSet) -> None:
        """Suspend fetching of exactly these: what was fetched stays, and the others are fetched."""
        if partitions == self._suspended:
            return
        self._source.release(partitions - self._suspended)
        resumed, self._suspended = self._suspended - partitions, partitions
        self._source.assign({partition: self._positions[partition] for partition in resumed})

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`: later fetched records were dropped."""
        self.out_of_range.forget([partition])
        position = self._positions[partition] = self._positions[partition]._replace(offset=offset)
        if partition not in self._suspended:
            self._source.assign({partition: position})

    def jump(self) -> None:
        """Reset the positions that are out of range, by `auto_offset_reset`."""
        for partition, jump in self.out_of_range.jumps.items():
            self.rewind(partition, jump.after)

    def fetch(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """The available records, one fetch of a partition at most; see `Source.poll`."""
        fetches = [fetch for fetch in self._source.poll(max_bytes, wanted) if self._continues(fetch)]
        for fetch in fetches:
            self._positions[fetch.partition] = Position(fetch.topic_id, fetch.next)
            self._meter.fetched(fetch.rows, fetch.nbytes)
        problems = self._source.problems
        if self._complaints or problems:
            self._note(problems)
        return fetches

    def _continues(self, fetch: Fetch) -> bool:
        """Whether a fetch begins at the position; one that does not would leave a gap, or duplicates."""
        position = self._positions.get(fetch.partition)
        if position == (fetch.topic_id, fetch.first):
            return True
        log.error("fetch discarded: partition=%s first=%d position=%s", fetch.partition, fetch.first, position)
        if position is not None:
            self._source.assign({fetch.partition: position})
        return False

    def _note(self, problems: Mapping[TopicPartition, CoordinatorError | OSError]) -> None:
        """Log each partition's problem once; it does not stop the others. An unknown topic has no records yet."""
        for partition in self._complaints.keys() - problems.keys():
            del self._complaints[partition]
        for partition, problem in problems.items():
            if isinstance(problem, OffsetOutOfRange):
                self._note_out_of_range(partition, problem)
            elif not isinstance(problem, UnknownTopic):
                self._log_problem(partition, str(problem))

    def _note_out_of_range(self, partition: TopicPartition, error: OffsetOutOfRange) -> None:
        if partition in self.out_of_range:
            return
        position = self._positions[partition]
        try:
            self.out_of_range.note(partition, position.topic_id, position.offset, error)
            if partition not in self.out_of_range.jumps:
                self._log_problem(partition, str(error))
        except (CoordinatorError, OSError) as problem:
            self._log_problem(partition, str(problem))

    def _log_problem(self, partition: TopicPartition, problem: str) -> None:
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition fetch failed: partition=%s problem=%s", partition, problem)


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

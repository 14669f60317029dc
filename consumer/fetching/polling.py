"""Fetching: positions of the assigned partitions, and their records as the log's source returns them.

The fetching part of `poll` fetches when needed, and chooses the records to return (KIP-41). Auto commits; lag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..config import ConsumerConfig
from ..errors import CommitFailed
from ..logs.base import (
    Fetch,
    FetchLimits,
    Jump,
    Log,
    OffsetOutOfRange,
    Position,
    Source,
    TopicIdPartition,
    UnknownTopic,
)
from ..membership.start_position import EARLIEST, LATEST, NONE
from ..metrics import Meter, unread
from .partition_state import PartitionState
from .poll_order import HEURISTICS, ORDERS, UNBOUNDED
from .record_buffer import Buffer, Record, records_of

log = logging.getLogger(__name__)

LOOK_FOR_DATA_S = 0.02
"""Minimum interval between fetches from an empty log."""

PENDING_S = 0.002
"""Interval between fetches while received records wait for something."""

LONGEST_WAIT_S = 1.0
"""Maximum backoff, however long the last fetch took: a log that hung for a minute must not pause fetching for nine."""

FETCH_S = 0.005
"""Time limit of a fetch that has records: opening the files of a thousand partitions takes a second."""

READ_AGAIN_S = 5.0


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
        """End the backoff: something has changed, or records were requested."""
        self._next = float("-inf")

    def note(self, began: float, is_empty: bool, is_pending: bool = False) -> None:
        """Count a fetch that began at `began`.

        :param is_pending: see `Source`.
        """
        now = self._runtime.monotonic()
        wait_s = PENDING_S if is_pending else min(LONGEST_WAIT_S, max(LOOK_FOR_DATA_S, 9 * (now - began)))
        self._next = now + wait_s if is_empty else now


class Fetcher:
    """The assigned partitions of one consumer.

    :param auto_offset_reset: `earliest`, `latest`, or `none`: without a jump, `refuse_out_of_range` raises.
    :param region: the consistent region of plain consumers that the group is in, in which positions are never reset;
        empty without one.
    :param source: the source of the records; that of the log when it is None.
    :ivar assignment: the assigned partitions in order. Replaced by each change, never edited: other threads read it.
    """

    def __init__(
        self,
        opened: Log,
        meter: Meter | None = None,
        auto_offset_reset: str = EARLIEST,
        region: str = "",
        source: Source | None = None,
    ) -> None:
        self._meter = meter or unread()
        self._log = opened
        self._reset = NONE if region else auto_offset_reset
        self._region = region
        self._source = source or opened.source()
        self.assignment: Mapping[TopicPartition, PartitionState] = {}

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Partition -> its fetch position."""
        return {partition: state.fetched for partition, state in self.assignment.items()}

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return {partition: state.problem for partition, state in self.assignment.items() if state.problem}

    @property
    def out_of_range(self) -> Set[TopicPartition]:
        """Partitions whose position is out of range. They are not fetched until their jump was taken."""
        return {partition for partition, state in self.assignment.items() if state.reset is not None}

    @property
    def jumps(self) -> Mapping[TopicPartition, Jump]:
        """The jumps to take, with `jump` or `rewind`."""
        resets = ((partition, state.reset) for partition, state in self.assignment.items())
        return {partition: reset for partition, reset in resets if isinstance(reset, Jump)}

    @property
    def is_pending(self) -> bool:
        return self._source.is_pending

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these partitions too."""
        begun = {partition: PartitionState(start, start) for partition, start in starts.items()}
        self.assignment = dict(sorted({**self.assignment, **begun}.items()))
        self._source.assign(starts)

    def end(self, partitions: PartitionSet | Iterable[TopicPartition]) -> None:
        """Stop fetching these."""
        gone = frozenset(partitions)
        self.assignment = {partition: state for partition, state in self.assignment.items() if partition not in gone}
        self._source.release(gone)

    def suspend(self, partitions: PartitionSet) -> None:
        """Pause exactly these: what was fetched stays, and the others are fetched."""
        changed = {part: state for part, state in self.assignment.items() if state.is_paused != (part in partitions)}
        if not changed:
            return
        self._source.release(partition for partition, state in changed.items() if not state.is_paused)
        for state in changed.values():
            state.is_paused = not state.is_paused
        self._source.assign({partition: state.fetched for partition, state in changed.items() if not state.is_paused})

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`: later fetched records were dropped."""
        state = self.assignment[partition]
        state.seek(offset)
        if not state.is_paused:
            self._source.assign({partition: state.fetched})

    def jump(self) -> None:
        """Reset the positions that are out of range, by `auto_offset_reset`."""
        for partition, jump in self.jumps.items():
            self.rewind(partition, jump.after)

    def fetch(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """The available records, one fetch of a partition at most; see `Source.poll`."""
        fetches = [fetch for fetch in self._source.poll(max_bytes, wanted) if self._continues(fetch)]
        for fetch in fetches:
            self.assignment[fetch.partition].fetched = Position(fetch.topic_id, fetch.next)
            self._meter.fetched(fetch.rows, fetch.nbytes)
        self._note(self._source.problems)
        return fetches

    def _continues(self, fetch: Fetch) -> bool:
        """Whether a fetch begins at the position; one that does not would leave a gap, or duplicates."""
        state = self.assignment.get(fetch.partition)
        position = state.fetched if state is not None else None
        if position == (fetch.topic_id, fetch.first):
            return True
        log.error("fetch discarded: partition=%s first=%d position=%s", fetch.partition, fetch.first, position)
        if position is not None:
            self._source.assign({fetch.partition: position})
        return False

    def _note(self, problems: Mapping[TopicPartition, CoordinatorError | OSError]) -> None:
        """Log each partition's problem once; it does not stop the others. An unknown topic has no records yet."""
        for partition in self.complaints.keys() - problems.keys():
            self.assignment[partition].problem = ""
        for partition, problem in problems.items():
            if isinstance(problem, OffsetOutOfRange):
                self._note_out_of_range(partition, problem)
            elif not isinstance(problem, UnknownTopic):
                self._log_problem(partition, str(problem))

    def _note_out_of_range(self, partition: TopicPartition, error: OffsetOutOfRange) -> None:
        """The log does not have the next offset: resolve the reset position."""
        state = self.assignment[partition]
        if state.reset is not None:
            return
        topic_id, offset = state.fetched
        if self._reset == NONE:
            state.reset = error
            return self._log_problem(partition, str(error))
        find = self._log.latest if self._reset == LATEST else self._log.earliest
        try:
            after = find(partition.topic, topic_id, partition.partition)
        except (CoordinatorError, OSError) as problem:  # the next fetch notes it again
            return self._log_problem(partition, str(problem))
        if after == offset:  # the log's offsets are inconsistent, or have just changed: fetch again
            return self._log_problem(partition, str(error))
        state.reset = Jump(topic_id, offset, after)
        self._meter.offset_reset()
        log.warning(
            "offset out of range: partition=%s offset=%d goes_on_at=%d auto_offset_reset=%s reason=%s",
            partition, offset, after, self._reset, error,
        )  # fmt: skip

    def refuse_out_of_range(self, partitions: Set[TopicPartition]) -> None:
        """
        :raises OffsetOutOfRange: when one of these is out of range, and there is no jump; the message has a remedy.
        """
        for partition in sorted(self.assignment.keys() & partitions):
            if isinstance(error := self.assignment[partition].reset, OffsetOutOfRange):
                raise OffsetOutOfRange(f"{error}; {self._remedy(partition)}")

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

    def _log_problem(self, partition: TopicPartition, problem: str) -> None:
        state = self.assignment[partition]
        if state.problem != problem:
            state.problem = problem
            log.error("partition fetch failed: partition=%s problem=%s", partition, problem)


def fetcher_of(config: ConsumerConfig, opened: Log, meter: Meter | None, clock: Callable[[], float]) -> Fetcher:
    """The fetcher of a consumer, with its limits of a fetch."""
    source = opened.source(FetchLimits(config.max_partition_fetch_bytes, FETCH_S, clock))
    return Fetcher(opened, meter, config.auto_offset_reset, config.region, source)


class Polling:
    """The records of one consumer, from the log to the application. A poll fetches at most once, and never waits.

    :param on_fetched: called with fetched records, and the time right before `may_fetch` allowed it.
    :param on_reset: called with positions that were reset because they were out of range.
    :param may_fetch: asked before each fetch.
    :ivar looks: the backoff after empty fetches; ended by what changes the partitions.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        fetcher: Fetcher,
        runtime: Runtime,
        on_fetched: Callable[[Sequence[Fetch], float], None],
        on_reset: Callable[[Mapping[TopicPartition, Jump]], None],
        may_fetch: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._fetcher = fetcher
        self._runtime = runtime
        self._on_fetched = on_fetched
        self._on_reset = on_reset
        self._may_fetch = may_fetch
        self._buffer = Buffer()
        self._pick, self._behind = ORDERS[config.poll_order]
        self._prefetch_rule = HEURISTICS[config.prefetch]
        self.looks = Looks(runtime)
        self._prefetches = Looks(runtime)

    # ---- partitions

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these too."""
        self._fetcher.begin(starts)
        self.looks.at_once()

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these; their buffered records and pauses are dropped."""
        self._fetcher.end(partitions)
        for partition in partitions:
            self._buffer.drop(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`."""
        self._fetcher.rewind(partition, offset)
        self._buffer.drop(partition)
        self.looks.at_once()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Neither return nor fetch records of these; their buffered records stay."""
        self._fetcher.suspend(self.paused | frozenset(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return and fetch these again."""
        self._fetcher.suspend(self.paused - frozenset(partitions))
        self.looks.at_once()

    @property
    def paused(self) -> PartitionSet:
        """The partitions that are paused. Thread-safe."""
        return frozenset(partition for partition, state in self._fetcher.assignment.items() if state.is_paused)

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """Partition -> the offset of the next record that is returned. Thread-safe."""
        return {partition: state.position for partition, state in self._fetcher.assignment.items()}

    def position(self, partition: TopicPartition) -> Position | None:
        """The same of one partition, None when it is not assigned."""
        state = self._fetcher.assignment.get(partition)
        return state.position if state is not None else None

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return self._fetcher.complaints

    @property
    def retained(self) -> tuple[int, int]:
        """Buffered records and their bytes. Thread-safe."""
        return self._buffer.rows, self._buffer.nbytes

    # ---- records

    def poll(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        """The next records; then a fetch for the following poll.

        :param max_records: limit below `max_poll_records`.
        :raises OffsetOutOfRange: when the log does not have an offset, and `auto_offset_reset` is `none`.
        """
        self._reset_out_of_range()
        has_some = any(self._buffer.there())
        if not has_some:
            if self.looks.wait_s:
                return {}
            self._fetch(self.looks, self._fetchable(), at_least=1)
        fetches = self._take(max_records)
        try:
            if has_some and not self._prefetches.wait_s:
                self._prefetch()
            self._buffer.pack()
            return {fetch.partition: records_of(fetch) for fetch in fetches}
        except BaseException:
            for fetch in fetches:  # not returned: a commit must not pass them
                self.seek(fetch.partition, fetch.first)
            raise

    def put_back(self, records: Mapping[TopicPartition, list[Record]]) -> None:
        """These were not returned: the next poll begins with them."""
        for partition, batch in records.items():
            self.seek(partition, batch[0].offset)

    def ranges_of(self, records: Mapping[TopicPartition, list[Record]]) -> dict[TopicPartition, tuple[int, Position]]:
        """Partition -> the first offset of these records, which the last poll took, and the position after them."""
        assignment = self._fetcher.assignment
        return {partition: (batch[0].offset, assignment[partition].position) for partition, batch in records.items()}

    def _reset_out_of_range(self) -> None:
        """Only for partitions without buffered records: earlier records are returned first."""
        out_of_range = self._fetcher.out_of_range
        if not out_of_range:
            return
        alone = out_of_range - self._buffer.left(out_of_range).keys()
        self._fetcher.refuse_out_of_range(alone)
        if jumps := {partition: jump for partition, jump in self._fetcher.jumps.items() if partition in alone}:
            self._on_reset(jumps)
            for partition, jump in jumps.items():
                self.seek(partition, jump.after)

    def _take(self, max_records: int | None) -> list[Fetch]:
        bounds = [bound for bound in (max_records, self._config.max_poll_records) if bound is not None and bound > 0]
        picked = self._pick(self._buffer.there(), min(bounds, default=UNBOUNDED))
        fetches = self._buffer.take(picked, self._config.fetch_max_bytes)
        taken = [(fetch.partition, fetch.rows) for fetch in fetches]
        left = self._buffer.left(fetch.partition for fetch in fetches)
        self._buffer.put_behind(self._behind(taken, left))
        return fetches

    def _prefetch(self) -> None:
        most = self._config.max_poll_records if self._config.max_poll_records > 0 else UNBOUNDED
        waiting = dict(self._buffer.there())
        if targets := self._prefetch_rule(waiting, self._fetchable(), len(self._fetcher.assignment), most):
            self._fetch(self._prefetches, targets)

    def _fetchable(self) -> Collection[TopicPartition]:
        held, paused = self._fetcher.assignment.keys(), self.paused
        return held - paused if paused else held

    def _fetch(self, looks: Looks, targets: Collection[TopicPartition], at_least: int = 0) -> None:
        """Fetch within the limits.

        :param at_least: bytes to fetch even without room: when paused partitions fill the buffer, the others continue
            with one record at a time.
        """
        config = self._config
        room = max(at_least, min(config.fetch_max_bytes, config.buffer_memory - self._buffer.nbytes))
        began = self._runtime.monotonic()
        if not self._may_fetch():
            return  # the lease has expired during an automatic commit
        fetched = self._fetcher.fetch(max(0, room), targets)
        looks.note(began, not fetched, self._fetcher.is_pending)
        for fetch in fetched:
            self._buffer.add(self._fetcher.assignment[fetch.partition], fetch)
        self._on_fetched(fetched, began)


class AutoCommit:
    """Commits inside `poll`, before it returns new records; before partitions are revoked; and on close.

    Records of earlier polls are committed, so an application that has processed its records when it polls again
    loses none. Uncommitted records are fetched again, by the partition's next owner.

    :param commit: commits the returned records; it may raise `CommitFailed`.
    :ivar is_enabled: False after the application has failed: it may not have processed what was returned.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, commit: Callable[[], None]) -> None:
        self.is_enabled = config.enable_auto_commit
        self._consumer = config.consumer
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._runtime = runtime
        self._commit = commit
        self._last = runtime.monotonic()

    def if_due(self) -> None:
        """Every `auto_commit_interval_ms`."""
        if self.is_enabled and self._runtime.monotonic() - self._last >= self._interval_s:
            self.now()

    def now(self) -> None:
        """Commit; a failure is logged, and the next call tries again."""
        if not self.is_enabled:
            return
        try:
            self._commit()
        except CommitFailed as error:
            log.warning("auto commit failed: consumer=%s reason=%s", self._consumer, error)
        self._last = self._runtime.monotonic()


class Lag:
    """Records between the position and the end of the log, over the assigned partitions: Kafka's records-lag.

    A slot's position is that after fetched records, a consumer's after returned ones. Computed in the thread that reads
    metrics (logs are thread-safe), at most once in `READ_AGAIN_S`: the consumer's own thread never waits for it. A
    partition whose end cannot be read is left out.
    """

    def __init__(self, source: Log, fetcher: Fetcher | Polling, runtime: Runtime) -> None:
        self._log = source
        self._fetcher = fetcher
        self._runtime = runtime
        self._read_at = float("-inf")
        self._lags: dict[TopicPartition, int] = {}

    def reported(self, meter: Meter) -> None:
        """Report it as metrics, with the partitions that cannot be fetched, and the log's outages."""
        meter.reads_log(self.of_each, lambda: len(self._fetcher.complaints), lambda: self._log.outages)

    def of_each(self) -> Mapping[TopicPartition, int]:
        """Of each partition."""
        now = self._runtime.monotonic()
        if now - self._read_at >= READ_AGAIN_S:
            self._read_at = now
            positions = {
                TopicIdPartition(topic, position.topic_id, partition): position.offset
                for (topic, partition), position in self._fetcher.positions.items()
            }
            ends = self._log.latest_of(positions)  # the fetcher logs the problem of one without an end
            self._lags = {
                TopicPartition(place.topic, place.partition): max(0, end - positions[place])
                for place, end in ends.items()
                if isinstance(end, int)
            }
        return self._lags

"""The interfaces of a log: lookups of offsets, the source of a reader's records, and errors.

With the source over a log whose partitions are fetched one by one, in turns.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, Protocol

import pyarrow as pa

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

LOG_SCHEMA = pa.schema([
    ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
    ("offset", pa.int64()), ("timestamp", TIMESTAMP), ("timestampType", pa.int32()), ("headers", HEADERS),
])  # fmt: skip
"""The schema of a fetched batch: the columns of Spark's Kafka source in their order, with Spark's Arrow types.

`timestampType` is Kafka's: 0 when the producer set the time, 1 when the log did. A record without headers has null.
"""


POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.default_memory_pool()
"""The memory pool of pending records. mimalloc, the default, takes up to a half more for exactly sized blocks."""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, the limit of Spark's and Python's dates."""


class LogError(CoordinatorError):
    """A log cannot be read or written; the message names the file and the offsets."""


class OffsetOutOfRange(LogError):
    """An offset before the earliest or after the latest one; the message has both."""


class UnknownTopic(LogError):
    """The log has no topic of this name with this id: it was deleted, or never written to."""


class Position(NamedTuple):
    """A place in a partition: the next offset to fetch, in the topic of that id."""

    topic_id: str
    offset: int


@dataclass(frozen=True)
class Fetch:
    """Fetched records of one partition: consecutive batches, `first` up to, not including, `next`.

    Measuring a batch takes Arrow about ten microseconds: that is done once.
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


class Jump(NamedTuple):
    """Fetching of a partition continues at `after` instead of `before`."""

    topic_id: str
    before: int
    after: int


Offsets = Mapping[TopicPartition, int]
NO_OFFSETS: Offsets = {}


class Fetched(NamedTuple):
    """The result of one fetch: batches of `LOG_SCHEMA` in the order of their offsets, and the next offset."""

    batches: list[pa.RecordBatch]
    next_offset: int


class OffsetAndTimestamp(NamedTuple):
    """A record: its offset, and its time in milliseconds since the epoch. As kafka-python's."""

    offset: int
    timestamp: int


class FetchLimits(NamedTuple):
    """Limits of one fetch besides its bytes.

    :ivar max_partition_bytes: Arrow memory of one partition's records, where each partition is fetched by itself.
    :ivar max_s: seconds after which a fetch that has records ends.
    :ivar clock: monotonic seconds, where each partition is fetched by itself.
    """

    max_partition_bytes: int = 1 << 31
    max_s: float = inf
    clock: Callable[[], float] = time.monotonic


NO_LIMITS = FetchLimits()


class TopicIdPartition(NamedTuple):
    """A partition of a topic with an id."""

    topic: str
    topic_id: str
    partition: int


class Log(Protocol):
    """A log of topics. A topic is a name and an id: recreated under its name it is another topic.

    :ivar knows_topics: whether a topic unknown to it may exist: a broker that has just started knows none.
    :ivar outages: number of outages of its servers.

    Every method raises `UnknownTopic` when the log has no such topic, and `LogError` when its data cannot be read.
    Safe to call from several threads.
    """

    knows_topics: bool = False

    @property
    def outages(self) -> int:
        return 0

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset of the oldest record; `latest` when there is none."""

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """The offset of the next record to be written."""

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        """The first offset with a record of `timestamp_ms` (since the epoch) or later; `latest` without one."""

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record of `timestamp_ms` (since the epoch) or later; None without one."""

    def latest_of(self, places: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int | CoordinatorError]:
        """The `latest` of each partition, or what it raised."""
        found: dict[TopicIdPartition, int | CoordinatorError] = {}
        for place in places:
            try:
                found[place] = self.latest(*place)
            except (CoordinatorError, OSError) as error:
                found[place] = error if isinstance(error, CoordinatorError) else CoordinatorError(str(error))
        return found

    def source(self, limits: FetchLimits = NO_LIMITS) -> Source:
        """The source of one reader; a log that prefetches has one at a time."""
        raise NotImplementedError

    def close(self) -> None:
        """Free all resources. Batches that were returned stay valid."""


class Source(Protocol):
    """The records of one reader's partitions, as they come. Not for several threads.

    It has fetch positions of its own, which `assign` sets: a log that prefetches is ahead of its reader.
    """

    def assign(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Fetch these partitions too, from these positions; one that is assigned already continues there."""

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop their records that were not returned."""

    def poll(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """Records of any assigned partitions, at most one fetch of each. Does not block.

        :param max_bytes: Arrow memory of all fetches; one record may exceed it. 0 for a reader whose buffer is full.
        :param wanted: the partitions of which the reader wants records now; all when it is None. A log that pushes may
            return records of others, too.
        """

    @property
    def is_pending(self) -> bool:
        """Whether records have been received that one of the next polls returns."""

    @property
    def problems(self) -> Mapping[TopicPartition, CoordinatorError | OSError]:
        """Assigned partitions that cannot be fetched now, each with the reason. Their earlier records were returned."""


class PullLog(Log, Protocol):
    """A log whose partitions are fetched one by one."""

    def source(self, limits: FetchLimits = NO_LIMITS) -> Source:
        return PullSource(self, limits)

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        """Records from `offset` on, up to the limit, but at least one if there is one.

        Does not block; returns no batches when there is no record at `offset` yet, at little cost.

        :param max_bytes: Arrow memory of all batches.
        :raises OffsetOutOfRange: when `offset` is before the earliest or after the latest one.
        """


class PullSource(Source):
    """Fetches assigned partitions in the order in which they had records last."""

    is_pending = False

    def __init__(self, log: PullLog, limits: FetchLimits) -> None:
        self._log = log
        self._limits = limits
        self._positions: dict[TopicPartition, Position] = {}
        self._problems: dict[TopicPartition, CoordinatorError | OSError] = {}

    def assign(self, starts: Mapping[TopicPartition, Position]) -> None:
        self._positions = dict(sorted({**self._positions, **starts}.items()))
        for partition in starts:
            self._problems.pop(partition, None)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
            self._problems.pop(partition, None)

    def poll(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """See `Source`. Records that were fetched before an unexpected error are fetched again."""
        until = self._limits.clock() + self._limits.max_s
        fetches = list[Fetch]()
        unknown: set[tuple[str, str]] = set()  # topics without data: one partition answers for all
        for partition, position in self._positions.items():
            if max_bytes <= 0 or (fetches and self._limits.clock() >= until):
                break
            topic_id, offset = position
            topic = (partition.topic, topic_id)
            if topic in unknown or (wanted is not None and partition not in wanted):
                continue
            most = min(max_bytes, self._limits.max_partition_bytes)
            try:
                batches, following = self._log.fetch(*topic, partition.partition, offset, most)
            except (CoordinatorError, OSError) as error:
                self._problems[partition] = error
                if isinstance(error, UnknownTopic):
                    unknown.add(topic)
                continue
            self._problems.pop(partition, None)
            if following != offset:
                fetches.append(Fetch(partition, topic_id, offset, following, batches))
                max_bytes -= fetches[-1].nbytes
        for fetch in fetches:
            self._positions[fetch.partition] = self._positions.pop(fetch.partition)._replace(offset=fetch.next)
        return fetches

    @property
    def problems(self) -> Mapping[TopicPartition, CoordinatorError | OSError]:
        return self._problems


def no_headers(rows: int) -> pa.Array:
    """Null for each row.

    The children of `pa.nulls` are as long as the array, and stay whole in every batch that is cut from it.
    """
    nothing = [pa.py_buffer(bytes(rows // 8 + 1)), pa.py_buffer(bytes(4 * (rows + 1)))]
    return pa.Array.from_buffers(HEADERS, rows, nothing, rows, children=[pa.nulls(0, HEADERS.value_type)])


def fitting_rows(batch: pa.RecordBatch, max_bytes: int) -> int:
    """Number of rows of `batch`, from its first, within `max_bytes`."""
    most: int = batch.num_rows
    if batch.nbytes <= max_bytes:
        return most
    return bisect_right(range(1, most + 1), max_bytes, key=lambda rows: batch.slice(0, rows).nbytes)

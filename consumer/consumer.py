"""The consumer as a library, with the manners of Kafka's: `poll`, `commit`, and callbacks inside `poll`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from coordinator.zk.errors import IncarnationOver, StoreError
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.runtime import Runtime, ThreadRuntime
from coordinator.zk.serving import MetricsServer
from coordinator.zk.store import StoreFactory

from .config import ConsumerConfig, Subscription
from .errors import CommitFailed
from .fetcher import LOOK_FOR_DATA_S, Fetch, Fetcher, Looks
from .holder import Start
from .lag import lag_readers
from .logs import Log, UnknownTopic, open_log
from .member import Member
from .metrics import ConsumerMetrics
from .trace import recorder_of

COMMIT_TRIES = 5


class Record(NamedTuple):
    """One record, as it was fetched. `timestamp_ms` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Callbacks:
    """What happens to this consumer's partitions. All are called inside `poll` or `close`."""

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        """These are now fetched."""

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        """These are given up after this call: what was processed may still be committed here."""

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        """These are somebody else's already; nothing can be committed."""


class Consumer:
    """One member of a group. Not for several threads.

    Positions begin where the group's offsets stand, else at the earliest record, and follow what `poll` returned;
    offsets follow `commit`.

    :param source: where records come from; the configuration's `log_dir` when it is not given.
    :param metrics: what is counted and measured, for several consumers in one process to share. It is served when the
        configuration has a `metrics_port`; give that to one of them.
    :raises CoordinatorError: when it cannot be served there.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        callbacks: Callbacks | None = None,
        source: Log | None = None,
        open_store: StoreFactory | None = None,
        runtime: Runtime | None = None,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self._config = config
        self._runtime = runtime or ThreadRuntime(recorder_of(config, "consumer"))
        self._log = source or open_log(config.log_dir)
        self._looks = Looks(self._runtime)
        metrics = metrics or ConsumerMetrics()
        self._meter = metrics.of(config.group, config.consumer)
        self._fetcher = Fetcher(self._log, self._meter)
        self._meter.reads_log(*lag_readers(self._log, self._fetcher, self._runtime))
        self._callbacks = callbacks or Callbacks()
        opener = open_store or kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
        self._member = Member(config, subscription, opener, self._runtime, self, earliest_in(self._log), self._meter)
        self._server = MetricsServer(metrics.registry, config.metrics_host, config.metrics_port, self._runtime)
        self._server.start()

    # ---- what an application calls

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """Records that nobody else gets, as soon as there are any; empty when `timeout_ms` milliseconds are over.

        Commands of the coordinator are obeyed in here, and the callbacks called.

        :param max_records: at most so many, and never more than `max_poll_records`.
        :raises Superseded: when a newer process has this consumer's name.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made.
        """
        self._meter.polled()
        deadline = self._runtime.monotonic() + timeout_ms / 1000
        self._looks.at_once()
        while True:
            self._member.tend()
            if self._member.may_fetch and not self._looks.wait_s and (records := self._fetch(max_records)):
                return records
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0:
                return {}
            self._member.wake.wait(min(left_s, self._looks.wait_s or LOOK_FOR_DATA_S))

    def commit(self) -> None:
        """Make the offsets of everything that `poll` has returned the group's.

        :raises CommitFailed: when the partitions are somebody else's by now, and nothing was committed; or when
            ZooKeeper does not answer, and whether anything was is not known.
        """
        for _ in range(COMMIT_TRIES):
            channel = self._member.channel
            running = channel.running if channel is not None else {}
            offsets = {part: position.offset for part, position in self._fetcher.positions.items()}
            moved = {part: offset for part, offset in offsets.items() if running.get(part) != offset}
            if not moved:
                return
            try:
                return self._member.advance(moved)
            except IncarnationOver as over:
                raise CommitFailed(f"the offsets were not committed: {over}") from over
            except StoreError:
                self._runtime.sleep(0.05)
        raise CommitFailed("whether the offsets were committed is not known: ZooKeeper does not answer")

    def assignment(self) -> PartitionSet:
        """What is fetched now."""
        return frozenset(self._fetcher.positions)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that `poll` returns, None when the partition is not held."""
        position = self._fetcher.positions.get(partition)
        return position.offset if position else None

    @property
    def member(self) -> Member:
        """The membership, for those who look inside."""
        return self._member

    def close(self) -> None:
        """Leave the group: callbacks, then everything is given up in one commit, then the session ends."""
        self._member.close()
        self._server.close()
        self._log.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what the member calls

    def assigned(self, starts: Mapping[TopicPartition, Start]) -> None:
        """See `Holder`."""
        self._fetcher.begin(starts)
        self._looks.at_once()
        self._callbacks.on_partitions_assigned(frozenset(starts))

    def revoke(self, partitions: PartitionSet) -> None:
        """See `Holder`."""
        self._callbacks.on_partitions_revoked(partitions)
        self._fetcher.end(partitions)

    def lost(self, partitions: PartitionSet) -> None:
        """See `Holder`."""
        self._fetcher.end(partitions)
        self._callbacks.on_partitions_lost(partitions)

    # ---- records

    def _fetch(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        bounds = [bound for bound in (max_records, self._config.max_poll_records) if bound is not None and bound > 0]
        began = self._runtime.monotonic()
        fetched = self._fetcher.fetch(min(bounds, default=2**31), self._config.fetch_max_bytes)
        self._looks.note(began, is_empty=not fetched)
        self._member.fetched(fetched)
        return {fetch.partition: records_of(fetch) for fetch in fetched}


def earliest_in(source: Log) -> Callable[[str, str, int], int]:
    """A function that gives a partition's first offset: 0 where nothing has been written yet."""

    def earliest(topic: str, topic_id: str, partition: int) -> int:
        try:
            return source.earliest(topic, topic_id, partition)
        except UnknownTopic:
            return 0

    return earliest


def records_of(fetch: Fetch) -> list[Record]:
    """A fetch's rows as records."""
    return [record for batch in fetch.batches for record in _records_in(batch)]


def _records_in(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of `batch`, read column by column: rows as dictionaries take twice as long."""
    columns: list[list[Any]] = [_plain(batch.column(name)).to_pylist() for name in _COLUMNS]
    for topic, partition, offset, stamp_us, stamp_type, key, value, headers in zip(*columns, strict=True):
        stamp_ms = stamp_us // 1000 if stamp_us is not None else -1
        pairs = tuple((item["key"], item["value"]) for item in headers or ())
        yield Record(topic, partition, offset, stamp_ms, stamp_type, key, value, pairs)


_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


def _plain(column: pa.Array) -> pa.Array:
    """Times in microseconds: as datetimes they would need a database of time zones, which small images lack."""
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column

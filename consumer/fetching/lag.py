"""A consumer's lag: Kafka's records-lag, computed at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from coordinator.zk.runtime import Runtime
from coordinator.zk.znodes.partitions import TopicPartition

from ..logs import Log, TopicIdPartition, ends_of, outages_of
from ..types import Position

READ_AGAIN_S = 5.0


class FetchPositions(Protocol):
    """A slot's `Fetcher`, with the position after fetched records, or a consumer's `Polling`, with the position after
    returned records."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]: ...
    @property
    def complaints(self) -> Mapping[TopicPartition, str]: ...


class Lag:
    """Records between the position and the end of the log, over the assigned partitions.

    Computed in the thread that reads metrics (logs are thread-safe), at most once in `READ_AGAIN_S`: the consumer's
    own thread never waits for it. A partition whose end cannot be read is left out.
    """

    def __init__(self, source: Log, fetcher: FetchPositions, runtime: Runtime) -> None:
        self._log = source
        self._fetcher = fetcher
        self._runtime = runtime
        self._read_at = float("-inf")
        self._lags: dict[TopicPartition, int] = {}

    @property
    def total(self) -> int:
        """Over all partitions."""
        return sum(self.of_each.values())

    @property
    def most(self) -> int:
        """Of the partition with the largest lag."""
        return max(self.of_each.values(), default=0)

    @property
    def of_each(self) -> Mapping[TopicPartition, int]:
        """Of each partition."""
        now = self._runtime.monotonic()
        if now - self._read_at >= READ_AGAIN_S:
            self._read_at = now
            self._lags = self._lags_now()
        return self._lags

    def _lags_now(self) -> dict[TopicPartition, int]:
        positions = {
            TopicIdPartition(topic, position.topic_id, partition): position.offset
            for (topic, partition), position in self._fetcher.positions.items()
        }
        ends = ends_of(self._log, positions)  # the fetcher logs the problem of one without an end
        return {
            TopicPartition(place.topic, place.partition): max(0, end - positions[place])
            for place, end in ends.items()
            if isinstance(end, int)
        }


Reader = Callable[[], float]
Readers = tuple[Reader, Reader, Reader, Reader, Callable[[], Mapping[TopicPartition, int]]]
"""The parameters of `Meter.reads_log`."""


def lag_readers(source: Log, fetcher: FetchPositions, runtime: Runtime) -> Readers:
    """The lag, the largest lag, the partitions that cannot be fetched, outages, and the lag of each partition."""
    lag = Lag(source, fetcher, runtime)
    failing, outages = lambda: len(fetcher.complaints), lambda: outages_of(source)
    return lambda: lag.total, lambda: lag.most, failing, outages, lambda: lag.of_each

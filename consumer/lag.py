"""How far a consumer is behind its log: Kafka's records-lag, read when somebody wants to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from coordinator.zk.partitions import TopicPartition
from coordinator.zk.runtime import Runtime

from .fetcher import Position
from .logs import Log, Place, ends_of, outages_of

READ_AGAIN_S = 5.0


class Fetching(Protocol):
    """Whoever fetches: a slot's `Fetcher`, whose position is after what it fetched, or a consumer's `Polling`, whose is
    after what it returned."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]: ...
    @property
    def complaints(self) -> Mapping[TopicPartition, str]: ...


class Lag:
    """Records between the position and the end of the log, over the partitions that are held.

    Computed by whoever reads metrics, in that thread (a log bears several), and at most once in `READ_AGAIN_S`: the
    consumer's own thread never waits for it. A partition whose end cannot be read is left out.
    """

    def __init__(self, source: Log, fetcher: Fetching, runtime: Runtime) -> None:
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
        """Of the partition that is furthest behind."""
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
        stands = {
            Place(topic, position.topic_id, partition): position.offset
            for (topic, partition), position in self._fetcher.positions.items()
        }
        ends = ends_of(self._log, stands)  # the fetcher says what is wrong with one that has none
        return {
            TopicPartition(place.topic, place.partition): max(0, end - stands[place])
            for place, end in ends.items()
            if isinstance(end, int)
        }


class LagReaders(NamedTuple):
    """What `Meter.reads_log` takes."""

    lag: Callable[[], float]
    lag_max: Callable[[], float]
    failing: Callable[[], float]
    outages: Callable[[], float]
    lag_of_each: Callable[[], Mapping[TopicPartition, int]]


def lag_readers(source: Log, fetcher: Fetching, runtime: Runtime) -> LagReaders:
    """The lag, the largest one, the partitions that cannot be fetched, outages, and the lag of each partition."""
    lag = Lag(source, fetcher, runtime)
    return LagReaders(
        lambda: lag.total,
        lambda: lag.most,
        lambda: len(fetcher.complaints),
        lambda: outages_of(source),
        lambda: lag.of_each,
    )

"""How far a consumer is behind its log: Kafka's records-lag, read when somebody wants to know."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import Runtime

from .fetcher import Fetcher
from .logs import Log

READ_AGAIN_S = 5.0


class Lag:
    """Records between what was fetched last and the end of the log, over the partitions that are held.

    Computed by whoever reads metrics, in that thread (a log bears several), and at most once in `READ_AGAIN_S`: the
    consumer's own thread never waits for it. A partition whose end cannot be read is left out.
    """

    def __init__(self, source: Log, fetcher: Fetcher, runtime: Runtime) -> None:
        self._log = source
        self._fetcher = fetcher
        self._runtime = runtime
        self._read_at = float("-inf")
        self._lags: list[int] = []

    @property
    def total(self) -> int:
        """Over all partitions."""
        return sum(self._read())

    @property
    def most(self) -> int:
        """Of the partition that is furthest behind."""
        return max(self._read(), default=0)

    def _read(self) -> list[int]:
        now = self._runtime.monotonic()
        if now - self._read_at >= READ_AGAIN_S:
            self._read_at = now
            self._lags = list(self._lags_now())
        return self._lags

    def _lags_now(self) -> list[int]:
        lags = []
        for (topic, partition), position in self._fetcher.positions.items():
            try:
                end = self._log.latest(topic, position.topic_id, partition)
            except (CoordinatorError, OSError):  # the fetcher says what is wrong with it
                continue
            lags.append(max(0, end - position.offset))
        return lags


def lag_readers(
    source: Log, fetcher: Fetcher, runtime: Runtime
) -> tuple[Callable[[], float], Callable[[], float], Callable[[], float]]:
    """What `Meter.reads_log` takes: the lag, the largest one, and the partitions that cannot be fetched."""
    lag = Lag(source, fetcher, runtime)
    return lambda: lag.total, lambda: lag.most, lambda: len(fetcher.complaints)

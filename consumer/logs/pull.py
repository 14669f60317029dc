"""A source over a log whose partitions are fetched one by one, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.znodes.partitions import TopicPartition

from ..types import Fetch, Position
from .base import FetchLimits, Log, PullLog, Pushes, Source, UnknownTopic

UNBOUNDED = 1 << 31
NO_LIMITS = FetchLimits()


def source_of(opened: Log, limits: FetchLimits = NO_LIMITS, clock: Callable[[], float] = time.monotonic) -> Source:
    """The source of one reader of a log.

    :param clock: monotonic seconds.
    """
    return opened.source(limits) if isinstance(opened, Pushes) else PullSource(cast(PullLog, opened), limits, clock)


class PullSource(Source):
    """Fetches assigned partitions in the order in which they had records last."""

    def __init__(self, log: PullLog, limits: FetchLimits, clock: Callable[[], float]) -> None:
        self._log = log
        self._limits = limits
        self._clock = clock
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
        until = self._clock() + self._limits.max_s
        before, fetches = dict(self._positions), list[Fetch]()
        unknown: set[tuple[str, str]] = set()  # topics without data: one partition answers for all
        try:
            for partition, position in before.items():
                if max_bytes <= 0 or (fetches and self._clock() >= until):
                    break
                topic = (partition.topic, position.topic_id)
                if topic in unknown or (wanted is not None and partition not in wanted):
                    continue
                fetch = self._fetch(partition, position, min(max_bytes, self._limits.max_partition_bytes))
                if fetch is not None:
                    fetches.append(fetch)
                    max_bytes -= fetch.nbytes
                elif isinstance(self._problems.get(partition), UnknownTopic):
                    unknown.add(topic)
        except BaseException:
            self._positions = before
            raise
        for fetch in fetches:
            self._positions[fetch.partition] = self._positions.pop(fetch.partition)._replace(offset=fetch.next)
        return fetches

    @property
    def is_pending(self) -> bool:
        return False

    @property
    def problems(self) -> Mapping[TopicPartition, CoordinatorError | OSError]:
        return self._problems

    def _fetch(self, partition: TopicPartition, position: Position, max_bytes: int) -> Fetch | None:
        place = (partition.topic, position.topic_id, partition.partition, position.offset)
        try:
            batches, following = self._log.fetch(*place, max_bytes, UNBOUNDED)
        except (CoordinatorError, OSError) as error:
            self._problems[partition] = error
            return None
        self._problems.pop(partition, None)
        if following == position.offset:
            return None
        return Fetch(partition, position.topic_id, position.offset, following, batches)

"""Fairness between Kafka's partitions: who holds more than its share yields to those that starve.

librdkafka has one queue for all partitions. When it was full, its next request begins with the same partitions again,
and a response holds `fetch.max.bytes`: with more partitions than fit into one, the last ones starve while the reader is
slower than the brokers. So does every partition while the reader's buffer is full of others' records.
"""

from __future__ import annotations

from collections.abc import Collection

from ..base import LogError
from .partition import Partition
from .requests import LATEST, Pending, Requests

STARVED_S = 1.0
"""Minimum length of a round, interval of requests for end offsets, and time without records that ends a yielding."""


class FairShare:
    """Counts what each partition has got in a round, and finds those that starve.

    :param round_bytes: bytes of a round at least: those of a response.
    """

    def __init__(self, round_bytes: int, now: float) -> None:
        self._round_bytes = round_bytes
        self._got: dict[Partition, int] = {}
        self._total = 0
        self._began = now
        self._not_before = float("-inf")
        self._asked: tuple[Pending[tuple[str, int], int | LogError], list[Partition]] | None = None

    def is_round(self, now: float) -> bool:
        """Whether each partition should have got some: a fast reader has had several responses by then."""
        return self._total >= self._round_bytes and now - self._began >= STARVED_S

    def count(self, partition: Partition, size: int) -> None:
        """Count received records."""
        self._got[partition] = self._got.get(partition, 0) + size
        self._total += size

    def hungry(self, assigned: Collection[Partition]) -> list[Partition]:
        """Those that have got nothing in this round."""
        return [partition for partition in assigned if partition not in self._got]

    def above_share(self, assigned: Collection[Partition]) -> list[Partition]:
        """Those that have got more than an equal share."""
        return [partition for partition in assigned if self._got.get(partition, 0) * len(assigned) > self._total]

    def start_round(self, now: float) -> None:
        """Count from zero."""
        self._got, self._total, self._began = {}, 0, now

    def starved(self, client: Requests, hungry: list[Partition], now: float) -> list[Partition] | None:
        """Those of `hungry` with records in the log; None until the brokers have answered."""
        if self._asked is None:
            if hungry and now >= self._not_before:
                self._not_before = now + STARVED_S
                self._asked = (client.offsets({(part.topic, part.number): LATEST for part in hungry}), hungry)
            return None if hungry else []
        pending, asked = self._asked
        if not pending.is_done:
            return None
        self._asked = None
        ends = pending.results()
        return [part for part in asked if _is_behind(part, ends[part.topic, part.number])]


def _is_behind(partition: Partition, end: int | LogError) -> bool:
    return isinstance(end, int) and end > partition.tail and partition.is_assigned

"""Kafka's default partitioner.

With a key its hash decides, the same as in Kafka's Java client, so that both choose the same partition. Without one,
records stick to one partition until its batch is written, then move to the next.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data` (`org.apache.kafka.common.utils.Utils.murmur2`), a signed 32-bit number."""
    aligned = len(data) & ~3
    h = _SEED ^ len(data)
    for k in struct.unpack_from(f"<{aligned >> 2}I", data):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if len(data) > aligned:
        h = ((h ^ int.from_bytes(data[aligned:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_of(key: bytes, partitions: Sequence[int]) -> int:
    """The partition of all records with `key`."""
    return partitions[(murmur2(key) & 0x7FFFFFFF) % len(partitions)]


class Sticky:
    """The partition of records without a key: one until `move_on`, beginning at random."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._partitions = partitions
        self._index = random.randrange(len(partitions))

    @property
    def partition(self) -> int:
        """The current partition."""
        return self._partitions[self._index]

    def move_on(self) -> None:
        """Move to the next partition: the batch of this one was written."""
        self._index = (self._index + 1) % len(self._partitions)

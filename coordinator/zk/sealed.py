"""What stands in the znodes between fetchers and Spark: sealed segments, how far each query has come, and pools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from . import ranges
from .fields import MAX_NUMBER, Fields, compact
from .names import is_name

SEAL_INTERVAL_MS = 200
"""Milliseconds between a fetcher's seals, where it says nothing else."""

BACKLOG_IS_FULL = "the backlog is full"
"""How the coordinator's own reason for a pause begins: no other pause is lifted by it."""


class SealedRange(NamedTuple):
    """Offsets `first` up to, not including, `next` of one partition of the topic with that id."""

    topic: str
    topic_id: str
    partition: int
    first: int
    next: int


class Missing(NamedTuple):
    """Offsets of a sealed range that have no record: in Kafka markers of transactions, aborted and compacted ones."""

    topic: str
    partition: int
    offsets: int


@dataclass(frozen=True, slots=True)
class Segment:
    """`segments/segment-[seq]`: one sealed file.

    :ivar file: its path below the segments folder.
    :ivar rows: records in it.
    :ivar size: its bytes.
    :ivar missing: of those ranges in which not every offset has a record.
    """

    file: str
    segments_dir: str
    rows: int
    size: int
    ranges: tuple[SealedRange, ...]
    consumer: str
    incarnation: str
    generation: int
    missing: tuple[Missing, ...] = ()

    @classmethod
    def parse(cls, where: str, data: bytes) -> Segment:
        fields = Fields.parse(where, data)
        file = fields.text("file", most=1024)
        if file.startswith("/") or not all(is_name(part) for part in file.split("/")):
            raise fields.bad("file", "a path below the segments folder")
        return cls(
            file=file,
            segments_dir=fields.text("segments_dir"),
            rows=fields.number("rows"),
            size=fields.number("bytes"),
            ranges=tuple(_sealed_ranges(fields)),
            consumer=fields.text("consumer", most=250),
            incarnation=fields.text("incarnation", most=64),
            generation=fields.number("generation"),
            missing=tuple(_missing(fields)),
        )

    def to_bytes(self) -> bytes:
        found: dict[str, dict[str, list[int]]] = {}
        for item in self.ranges:
            found.setdefault(item.topic, {})[str(item.partition)] = [item.first, item.next]
        return compact(
            {
                "file": self.file,
                "segments_dir": self.segments_dir,
                "rows": self.rows,
                "bytes": self.size,
                "ranges": found,
                "topics": {item.topic: item.topic_id for item in self.ranges},
                "consumer": self.consumer,
                "incarnation": self.incarnation,
                "generation": self.generation,
                **({"missing": self._missing_by_topic()} if self.missing else {}),
            }
        )

    def _missing_by_topic(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for topic, partition, count in self.missing:
            found.setdefault(topic, {})[str(partition)] = count
        return found


def _missing(fields: Fields) -> Iterable[Missing]:
    for topic, counts in fields.mapping("missing").items():
        if not isinstance(counts, dict):
            raise fields.bad("missing", "an object topic -> partition -> number of offsets")
        for key, count in counts.items():
            if not ranges.is_partition(key) or type(count) is not int or not 0 < count <= MAX_NUMBER:
                raise fields.bad("missing", "an object topic -> partition -> number of offsets")
            yield Missing(topic, int(key), count)


def _sealed_ranges(fields: Fields) -> Iterable[SealedRange]:
    ids = fields.texts("topics")
    for topic, partitions in fields.mapping("ranges").items():
        if topic not in ids or not isinstance(partitions, dict):
            raise fields.bad("ranges", "an object topic -> partition -> [first, next]")
        for key, pair in partitions.items():
            if not _is_range(pair) or not ranges.is_partition(key):
                raise fields.bad("ranges", "an object topic -> partition -> [first, next]")
            yield SealedRange(topic, ids[topic], int(key), pair[0], pair[1])


def _is_range(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
        return False
    return bool(0 <= pair[0] <= pair[1] <= MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class SegmentsRecord:
    """The data of `segments`: what the coordinator tells the fetchers and queries of a group.

    :ivar collected: the czxid up to which segments have been collected.
    :ivar paused: why fetchers shall neither fetch nor seal for now, None when they may.
    :ivar seal_interval_ms: no fetcher of the group seals more often, None when each may as it likes.
    """

    collected: int = 0
    paused: str | None = None
    seal_interval_ms: int | None = None

    @classmethod
    def parse(cls, where: str, data: bytes) -> SegmentsRecord:
        if not data:
            return cls()
        fields = Fields.parse(where, data)
        interval = fields.number("seal_interval_ms", least=1) if fields.has("seal_interval_ms") else None
        return cls(fields.number("collected", 0), fields.optional_text("paused") or None, interval)

    def to_bytes(self) -> bytes:
        return compact({"collected": self.collected, "paused": self.paused, "seal_interval_ms": self.seal_interval_ms})


@dataclass(frozen=True, slots=True)
class Query:
    """`queries/[query]`: how far a Spark query has come.

    :ivar run: one life of the query; a newer one fences an older.
    :ivar finished: the czxid of the last segment that it will not read again; 0 for none.
    :ivar seen_ms: the driver's wall clock at its last sign of life, for people.
    :ivar expired_ms: when the coordinator found it silent for too long; 0 while it counts.
    """

    run: str
    finished: int
    seen_ms: int
    expired_ms: int = 0

    @classmethod
    def parse(cls, where: str, data: bytes) -> Query:
        fields = Fields.parse(where, data)
        return cls(
            fields.text("run", most=64),
            fields.number("finished", 0),
            fields.number("seen_ms", 0),
            fields.number("expired_ms", 0),
        )

    def to_bytes(self) -> bytes:
        return compact(
            {
                "run": self.run,
                "finished": self.finished,
                "seen_ms": self.seen_ms,
                **({"expired_ms": self.expired_ms} if self.expired_ms else {}),
            }
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """`pools/[pool]`, an ephemeral of the Spark driver's session: which of a pool's slots shall run.

    :ivar slots: slots with a smaller number run; 0 tells all of them to leave.
    :ivar run: one life of the pool; a newer one under the same name ends an older.
    """

    slots: int
    run: str

    @classmethod
    def parse(cls, where: str, data: bytes) -> Pool:
        fields = Fields.parse(where, data)
        return cls(fields.number("slots", most=10_000), fields.text("run", most=64))

    def to_bytes(self) -> bytes:
        return compact({"slots": self.slots, "run": self.run})

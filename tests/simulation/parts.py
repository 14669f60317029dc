"""What is outside of ZooKeeper: a log, and a disk for segments. Both can be slow and can fail."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from tests.simulation.scheduler import STARTED_MS, Scheduler
from zk_group.consumer.logs.base import (
    LOG_SCHEMA,
    Fetched,
    LogError,
    OffsetAndTimestamp,
    OffsetOutOfRange,
    PullLog,
    UnknownTopic,
)
from zk_group.consumer.logs.checked_file import CheckedFile
from zk_group.consumer.sealing.segment_files import FoundFile, SegmentFolder

PIECE = 1024
MOST_AT_ONCE = 200
TAKES_TIME = 0.3
"""Reads of the log that wait for something; the others find it in memory."""

SEGMENTS_DIR = "/segments"


@lru_cache(maxsize=4096)
def _piece(topic: str, topic_id: str, partition: int, number: int) -> pa.RecordBatch:
    """Records `number * PIECE` and on of a partition. The key is the topic's id, which no other column tells."""
    rows = range(number * PIECE, (number + 1) * PIECE)
    columns = {
        "key": pa.array([topic_id.encode()] * PIECE, pa.binary()),
        "value": pa.array([b"%d" % row for row in rows], pa.binary()),
        "topic": pa.array([topic] * PIECE, pa.string()),
        "partition": pa.array([partition] * PIECE, pa.int32()),
        "offset": pa.array(rows, pa.int64()),
        "timestamp": pa.array(rows, LOG_SCHEMA.field("timestamp").type),
        "timestampType": pa.array([0] * PIECE, pa.int32()),
        "headers": pa.nulls(PIECE, LOG_SCHEMA.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LOG_SCHEMA.names], schema=LOG_SCHEMA)


@dataclass(slots=True)
class Production:
    """What is written to one topic: so many records a second to each partition, some at a time.

    :ivar phase: when the first come, in shares of `every_s`.  :ivar every_s: seconds between two writes.
    :ivar lacking: what an older copy of the log, which was restored, does not have.
    """

    began: float
    rate: float
    phase: float
    every_s: float = 4.5
    lacking: int = 0

    def latest(self, now: float) -> int:
        """The offset after the last record, of each partition."""
        return int(self.rate * self.every_s * int((now - self.began) / self.every_s + self.phase)) - self.lacking


class SimLog(PullLog):
    """The log that every fetcher reads: its ends rise with the clock.

    :ivar broken_until: reads fail until then.  :ivar slow_until: each read takes `slow_s` until then.
    :ivar hanging: process -> until when its next read takes.
    :ivar starts: partition -> its first offset, where that is not 0.
    :ivar cut: topics and ids of which the log has lost records: it says there when an offset is out of range.
    """

    def __init__(self, scheduler: Scheduler, on_fault: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._on_fault = on_fault
        self.topics: dict[tuple[str, str], Production] = {}
        self.broken_until = 0.0
        self.slow_until = 0.0
        self.slow_s = 1.0
        self.hanging: dict[str, float] = {}
        self.starts: dict[tuple[str, str, int], int] = {}
        self.cut: set[tuple[str, str]] = set()

    def begin_at(self, topic: str, topic_id: str, partition: int, offset: int) -> None:
        """The records before `offset` are gone."""
        self.starts[topic, topic_id, partition] = offset
        self.cut.add((topic, topic_id))

    def restore(self, topic: str, topic_id: str, end: int) -> None:
        """An older copy of a topic, with records before `end` only, takes the place of all its records."""
        production = self.topics[topic, topic_id]
        production.lacking += production.latest(self._scheduler.now) - end
        self.cut.add((topic, topic_id))

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        latest = self.latest(topic, topic_id, partition)
        return min(latest, self.starts.get((topic, topic_id, partition), 0))

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        production = self._look(topic, topic_id)
        return production.latest(self._scheduler.now)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return 0

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return None

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        took = 0.1 * self._scheduler.random.random() if self._scheduler.random.random() < TAKES_TIME else 0.0
        if self._scheduler.now < self.slow_until:
            self._on_fault("slow-log")
            took = self.slow_s
        until = self.hanging.pop(self._scheduler.current.process.life, 0.0) if self.hanging else 0.0
        hangs_s = max(0.0, until - self._scheduler.now)
        if hangs_s:
            self._on_fault("hanging-fetcher")
        self._scheduler.seam()
        if took or hangs_s:
            self._scheduler.park("the log", max(took, hangs_s))
        first, end = self.earliest(topic, topic_id, partition), self.latest(topic, topic_id, partition)
        if (topic, topic_id) in self.cut and not first <= offset <= end:
            raise OffsetOutOfRange(f"{topic}-{partition} has offsets {first} to {end}, and not {offset}")
        last = min(end, offset + MOST_AT_ONCE)
        if last <= offset:
            return Fetched([], offset)
        return Fetched(list(_records(topic, topic_id, partition, offset, last)), last)

    def close(self) -> None:
        pass

    def _look(self, topic: str, topic_id: str) -> Production:
        if self._scheduler.now < self.broken_until:
            self._on_fault("failing-log")
            raise LogError(f"the log of {topic} cannot be read just now")
        if (topic, topic_id) not in self.topics:
            raise UnknownTopic(f"no topic {topic} with the id {topic_id}")
        return self.topics[topic, topic_id]


def _records(topic: str, topic_id: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
    while first < last:
        number, start = divmod(first, PIECE)
        length = min(last - first, PIECE - start)
        yield _piece(topic, topic_id, partition, number).slice(start, length)
        first += length


@dataclass(slots=True)
class _File:
    batches: list[pa.RecordBatch]
    size: int
    written_at: float


class Contents(CheckedFile):
    """An open file, of batches in memory."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = [batch.num_rows for batch in batches]

    def read(self, index: int) -> pa.RecordBatch:
        """See `CheckedFile.read`."""
        return self._batches[index]


@dataclass
class SharedDisk(SegmentFolder):
    """The folder that all share. What is written is durable at once, and whole or not there.

    :ivar full_until: writes fail until then.  :ivar removed: files that somebody has removed.
    """

    scheduler: Scheduler
    on_fault: Callable[[str], None]
    url: str = SEGMENTS_DIR
    full_until: float = 0.0
    removed: list[str] = field(default_factory=list)
    _files: dict[str, _File] = field(default_factory=dict)
    _states: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    _markers: dict[str, bytes] = field(default_factory=dict)

    def _take_time(self, is_write: bool = False) -> None:
        self.scheduler.seam()
        self.scheduler.park("the disk", 0.001 + 0.01 * self.scheduler.random.random())
        if is_write and self.scheduler.now < self.full_until:
            self.on_fault("full-disk")
            raise OSError(errno.ENOSPC, "No space left on device")

    def marker(self, folder: str, most: int) -> bytes | None:
        self.scheduler.seam()
        return self._markers.get(folder)

    def mark(self, folder: str, data: bytes) -> None:
        self.scheduler.seam()
        self._markers.setdefault(folder, data)

    def write(self, file: str, batches: Iterable[pa.RecordBatch]) -> int:
        some = list(batches)
        self._take_time(is_write=True)
        size: int = 300 + 50 * sum(batch.num_rows for batch in some)
        self._files[file] = _File(some, size, self.scheduler.now)
        return size

    def write_bytes(self, file: str, data: bytes) -> int:
        self._take_time(is_write=True)
        self._states[file] = (self.scheduler.now, data)
        return len(data)

    def folders(self, parent: str) -> list[str]:
        self.scheduler.seam()
        return sorted({file.split("/")[1] for file in self._states if file.startswith(f"{parent}/")})

    def remove_folder(self, folder: str, before_s: float) -> bool:
        self.scheduler.seam()
        found = [file for file in self._states if file.startswith(f"{folder}/")]
        if any(STARTED_MS / 1000 + self._states[file][0] >= before_s for file in found):
            return False
        for file in found:
            del self._states[file]
        return True

    def read_bytes(self, file: str, size: int) -> bytes:
        self._take_time()
        if file not in self._states:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", file)
        return self._states[file][1]

    def remove(self, file: str) -> None:
        self.scheduler.seam()
        if self._files.pop(file, None) is not None:
            self.removed.append(file)

    def unlink(self, path: Path) -> None:
        self.remove(str(path).removeprefix(f"{self.url}/"))

    def path(self, file: str) -> str:
        return f"{self.url}/{file}"

    def sizes(self, files: Sequence[str]) -> list[int | None]:
        self.scheduler.seam()
        return [self._files[file].size if file in self._files else None for file in files]

    def list(self, group: str) -> list[FoundFile]:
        return [
            FoundFile(file, STARTED_MS / 1000 + found.written_at)
            for file, found in self._files.items()
            if file.startswith(f"{group}/")
        ]

    def contents(self, file: str, size: int, rows: int) -> Contents:
        with self._named(file):
            self._take_time()
            if file not in self._files:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", file)
            contents = Contents(self._files[file].batches)
            if (self._files[file].size, sum(contents.rows)) != (size, rows):
                raise ValueError(f"it has {sum(contents.rows)} records and should have {rows}")
            return contents

    def replace(self, file: str, partitions: int, offsets: int) -> bool:
        """Another file takes the place of one: as many records, of a partition so many numbers higher, and from offsets
        so many rows higher on."""
        found = self._files.get(file)
        first = next((batch for batch in found.batches if batch.num_rows), None) if found is not None else None
        if found is None or first is None:
            return False
        topic, partition, key, offset = (first.column(name)[0].as_py() for name in ("topic", "partition", *_PLACE))
        rows = sum(batch.num_rows for batch in found.batches)
        begin = offset + offsets * rows
        found.batches = list(_records(topic, key.decode(), partition + partitions, begin, begin + rows))
        return True


def ranges_in(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """The records of a DataFrame as ranges of consecutive offsets, in the order in which they come."""
    found: list[dict[str, object]] = []
    for batch in batches:
        for piece in _consecutive(batch):
            first, rows = piece.column("offset")[0].as_py(), piece.num_rows
            item = {
                "topic": piece.column("topic")[0].as_py(),
                "topic_id": piece.column("key")[0].as_py().decode(),
                "partition": piece.column("partition")[0].as_py(),
                "first": first,
            }
            before = found[-1] if found else None
            if before is not None and before["next"] == first and all(before[name] == item[name] for name in SAME):
                before["next"] = first + rows
            else:
                found.append(item | {"next": first + rows})
    return found


SAME = ("topic", "topic_id", "partition")
_PLACE = ("key", "offset")


def _consecutive(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` cut where its offsets do not follow each other; a piece of the log never needs it."""
    if not batch.num_rows:
        return
    if batch.column("offset")[-1].as_py() - batch.column("offset")[0].as_py() == batch.num_rows - 1:
        yield batch
        return
    for row in range(batch.num_rows):
        yield batch.slice(row, 1)

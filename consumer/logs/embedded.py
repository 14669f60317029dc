"""The embedded log: topics are folders of immutable Arrow IPC files. Needs nothing but a file system that all share.

`files.py` has one file, `chain.py` a partition's files, `append.py` how producers add to them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from .base import TIMESTAMP, Fetched, Log, OffsetAndTimestamp
from .chain import Chain
from .errors import LogError
from .files import LogFile
from .layout import topic_folder

_FILES_A_FETCH = 64
"""A fetch opens so many files at most, so that it returns at once from a log of very small ones too."""

_OPEN_FILES = 16
"""Files that stay mapped for the next fetch of their partitions. To map one again takes under a millisecond; a thousand
partitions' would fill the memory that the process is seen to use."""


class _Partition:
    """A partition's chain with the lock that lets one thread at a time use it."""

    def __init__(self, folder: Path, topic: str, partition: int) -> None:
        self.chain = Chain(folder, topic, partition)
        self.lock = threading.Lock()


class EmbeddedLog(Log):
    """Reads the embedded log under `log_dir`. Any number of producers may add to it meanwhile."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._partitions: dict[tuple[str, str, int], _Partition] = {}
        self._open: deque[_Partition] = deque()

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        with self._chain(topic, topic_id, partition) as chain:
            return chain.earliest()

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        with self._chain(topic, topic_id, partition) as chain:
            return chain.end()

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        end = self.latest(topic, topic_id, partition)  # before: what is written meanwhile is not passed over
        found = self.record_of_time(topic, topic_id, partition, timestamp_ms)
        return end if found is None else found.offset

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """As `Log` says. Timestamps need not rise, so this looks at each file's latest one until it has found it."""
        with self._chain(topic, topic_id, partition) as chain:
            offset, end = chain.earliest(), chain.end()
            while offset < end:
                file = chain.file_at(offset)
                if file.newest_us >= timestamp_ms * 1000:
                    return _first_at(file, timestamp_ms * 1000)
                offset = file.end
            return None

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        with self._chain(topic, topic_id, partition) as chain:
            end = chain.end()
            if offset == end:
                return Fetched([], offset)
            chain.check(offset)
            return _taken(_batches(chain, offset, end), offset, max_bytes, max_records)

    def close(self) -> None:
        self._partitions.clear()
        self._open.clear()

    @contextmanager
    def _chain(self, topic: str, topic_id: str, partition: int) -> Iterator[Chain]:
        """The partition's chain, for this thread alone."""
        place = self._place(topic, topic_id, partition)
        with place.lock:
            was_open = place.chain.open_file is not None
            try:
                yield place.chain
            finally:
                if place.chain.open_file is not None and not was_open:
                    self._open.append(place)
        self._free_some()

    def _free_some(self) -> None:
        """Let go of what has been open for longest, where too much is; what another thread uses now stays."""
        while len(self._open) > _OPEN_FILES:
            oldest = self._open.popleft()
            if not oldest.lock.acquire(blocking=False):
                self._open.append(oldest)
                return
            oldest.chain.open_file = None
            oldest.lock.release()

    def _place(self, topic: str, topic_id: str, partition: int) -> _Partition:
        key = (topic, topic_id, partition)
        place = self._partitions.get(key)
        if place is None:
            folder = topic_folder(self._log_dir, topic, topic_id) / str(int(partition))
            place = self._partitions.setdefault(key, _Partition(folder, topic, partition))
        return place


def _first_at(file: LogFile, timestamp_us: int) -> OffsetAndTimestamp:
    """The first record in `file` of this time or later, which is known to be there."""
    wanted = pa.scalar(timestamp_us, pa.int64()).cast(TIMESTAMP)
    for batch in file.batches(file.first):
        index = pc.index(pc.greater_equal(batch.column("timestamp"), wanted), True).as_py()
        if index >= 0:
            at_us: int = batch.column("timestamp")[index].value
            return OffsetAndTimestamp(batch.column("offset")[index].as_py(), at_us // 1000)
    raise LogError(f"the file with offsets {file.first} to {file.end - 1} has no record as new as it says")


def _batches(chain: Chain, offset: int, end: int) -> Iterator[pa.RecordBatch]:
    """The batches from `offset` on, the first one cut to begin there."""
    for _ in range(_FILES_A_FETCH):
        if offset >= end:
            return
        for batch in chain.file_at(offset).batches(offset):
            yield batch
            offset += batch.num_rows


def _taken(batches: Iterator[pa.RecordBatch], offset: int, max_bytes: int, max_records: int) -> Fetched:
    """As much of `batches` as the limits allow, but one record at least."""
    taken: list[pa.RecordBatch] = []
    try:
        for batch in batches:
            rows = fitting_rows(batch, max_bytes, max_records)
            part = batch.slice(0, rows if taken else max(rows, 1))
            if part.num_rows:
                taken.append(part)
                offset, max_bytes, max_records = offset + part.num_rows, max_bytes - part.nbytes, max_records - rows
            if part.num_rows < batch.num_rows:
                break
    except LogError:
        if not taken:
            raise  # what stands before the damage is good: it is handed out, and the next fetch meets the damage
    return Fetched(taken, offset)


def fitting_rows(batch: pa.RecordBatch, max_bytes: int, max_records: int) -> int:
    """How many rows of `batch`, from its first, have at most `max_bytes` together, and are at most `max_records`."""
    most: int = max(0, min(batch.num_rows, max_records))
    if batch.slice(0, most).nbytes <= max_bytes:
        return most
    fitting: int = bisect_right(range(1, most + 1), max_bytes, key=lambda rows: batch.slice(0, rows).nbytes)
    return fitting

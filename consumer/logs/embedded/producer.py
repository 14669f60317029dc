"""The producer of the embedded log, a library: partitions are chosen as in Kafka, and records written in batches.

A batch is written to a temporary file, synced, and then linked to the name of the log's end offset. Linking never
overwrites: of two producers with the same offset one succeeds, and the other takes the next offset. Readers see a
complete batch or none, also when a producer fails.
"""

from __future__ import annotations

import errno
import os
import random
import struct
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from zk_group.coordinator.zk import below
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.values import whole
from zk_group.coordinator.zk.znodes.paths import Brokers, checked_name, shown
from zk_group.coordinator.zk.znodes.ranges import MAX_PARTITION
from zk_group.coordinator.zk.znodes.records import Topic

from ...errors import refuse_inherited
from ..base import HEADERS, MAX_TIMESTAMP_MS, TIMESTAMP, LogError, UnknownTopic, no_headers
from .log import STORED_SCHEMA, Chain, file_name, topic_folder, write_file

ABANDONED_AFTER_S = 3600.0
"""Age after which an unmodified temporary file belongs to a dead producer."""

CLOSED = "Cannot perform operation after producer has been closed"
"""As Kafka's producer."""

BATCH_BYTES = 1 << 20
"""Target Arrow memory of a batch: Spark works best with batches of 1 to 2 MB."""

MAX_RECORD_BYTES = 64 << 20
_TIME = "timestamp in milliseconds since 1970"

Headers = Sequence[tuple[str, bytes | None]]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


class TopicsInStore(dict[str, Topic]):
    """Topics from ZooKeeper, read on first use. `clear` drops the cache."""

    def __init__(self, store: Store, brokers: Brokers) -> None:
        super().__init__()
        self._store = store
        self._brokers = brokers

    def __missing__(self, name: str) -> Topic:
        path = self._brokers.topic(checked_name("topic", name))
        node = self._store.get(path)
        if node is None:
            raise UsageError(f"there is no topic {name} at {path}")
        self[name] = topic = Topic.parse(path, name, node.data, node.stat.czxid)
        return topic


class Appender:
    """Appends batches to one partition. Not for several threads at once.

    :ivar records: pending ones of a `Producer`.
    :raises LogError: when the partition's folder cannot be created.
    """

    def __init__(self, log_dir: Path, topic: str, topic_id: str, partition: int) -> None:
        self._topic = topic
        self._folder = topic_folder(log_dir, topic, topic_id) / str(partition)
        self._chain = Chain(self._folder, topic, partition)
        self.records = PendingRecords()
        try:
            with below.opened_folder(log_dir, self._folder.parts[-3:], makes=True) as folder:
                sweep(folder)
        except OSError as error:
            raise LogError(f"cannot write to {self._folder}: {error.strerror}") from error

    def append(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Append `batches` (of `STORED_SCHEMA`, not all empty) as one; they are synced to disk on return.

        :returns: the offset of the first record.
        :raises UnknownTopic: when the topic's data was removed meanwhile.
        :raises LogError: when they could not be written, or the end of the log is damaged.
        """
        temporary = f"{below.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            with below.opened_folder(self._folder.parents[2], self._folder.parts[-3:]) as folder:
                try:
                    write_file(temporary, folder, batches)
                    first = self._publish(temporary, folder)
                    os.fsync(folder)
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=folder)
        except FileNotFoundError as error:
            raise UnknownTopic(f"the data of topic {self._topic} was removed: {self._folder} is gone") from error
        except OSError as error:
            no_links = error.errno in (errno.EPERM, errno.EOPNOTSUPP)
            hint = " (the embedded log needs a file system with hard links)" if no_links else ""
            raise LogError(f"cannot append to {self._folder}: {error.strerror}{hint}") from error
        return first

    def _publish(self, temporary: str, folder: int) -> int:
        """Link the file to the name of the log's end offset, past concurrent appends; returns that offset."""
        lost = -1
        while True:
            first = self._chain.end()
            target = file_name(first)
            if first == lost:
                raise LogError(f"{self._folder / target} is in the way and cannot be read")
            try:
                os.link(temporary, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                return first
            except FileExistsError:
                with suppress(OSError):  # NFS: the link was made, its answer lost, and the request repeated
                    found = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (temporary, target)]
                    if os.path.samestat(*found):
                        return first
                lost = first


def sweep(folder: int) -> None:
    """Remove the files of dead producers from a partition's open folder."""
    for name in os.listdir(folder):
        if not name.startswith(below.TEMPORARY_PREFIX):
            continue
        with suppress(FileNotFoundError):  # another producer swept it, or finished
            if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > ABANDONED_AFTER_S:
                os.unlink(name, dir_fd=folder)


class Producer:
    """Writes records into the embedded log under `log_dir`. Not for several threads at once.

    A partition's pending records are written together, all or none, at `batch_bytes` or by `flush`. As a context
    manager it flushes at the end, unless the block failed: then pending records are dropped.

    :param topics: name -> topic.
    :ivar written: number of records written to the log.
    """

    def __init__(self, log_dir: Path | str, topics: Mapping[str, Topic], batch_bytes: int = BATCH_BYTES) -> None:
        self._log_dir = Path(log_dir)
        self._topics = topics
        self._batch_bytes = whole("batch_bytes", batch_bytes)
        self.written = 0
        self._open: dict[tuple[str, int], Appender] = {}
        self._sticky: dict[str, deque[int]] = {}  # records without a key are sent to the first one
        self._is_closed = False
        self._made_in = os.getpid()

    @classmethod
    def for_store(cls, store: Store, log_dir: Path | str, brokers: Brokers, batch_bytes: int = BATCH_BYTES) -> Producer:
        """A producer that reads topics from ZooKeeper, each when its first record is sent."""
        return cls(log_dir, TopicsInStore(store, brokers), batch_bytes)

    def topic(self, name: str) -> Topic:
        """A topic in this producer's cache.

        :raises UsageError: when it does not exist, or has no partitions.
        """
        try:
            topic = self._topics[name]
        except KeyError:
            raise UsageError(f"there is no topic {shown(name)}") from None
        if not topic.partitions:
            raise UsageError(f"topic {name} has no partitions")
        return topic

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Buffer one record, and write its partition's batch when that is full.

        :param partition: the partition; None chooses it by the key, or without a key by the producer.
        :param timestamp_ms: milliseconds since the epoch; None is now.
        :raises UsageError: when there is no such topic or partition, or the record is too large; it is not buffered.
        :raises LogError: when the batch could not be written; it stays pending, and `flush` tries again.
        """
        self._check_open()
        if partition is None:
            partition = self._choose(topic, key)
        place = self._open.get((topic, partition)) or self._opened(topic, partition)
        place.records.add(value, key, timestamp_ms, headers)
        if place.records.bytes >= self._batch_bytes:
            self._write(topic, partition, place)

    def send_batch(
        self,
        topic: str,
        partition: int,
        values: pa.Array | pa.ChunkedArray | Sequence[bytes | None],
        keys: pa.Array | pa.ChunkedArray | Sequence[bytes | None] | None = None,
        timestamps_ms: pa.Array | pa.ChunkedArray | int | None = None,
        headers: pa.Array | pa.ChunkedArray | None = None,
    ) -> int | None:
        """Write whole columns as one batch, at once, after the partition's pending records.

        :param values: binary or string, as for `keys`.
        :param timestamps_ms: of each record or of all, in milliseconds since the epoch, or Arrow timestamps.
        :returns: the offset of the first record; None when there are no records.
        :raises UsageError: when there is no such topic or partition, or the columns do not fit each other.
        :raises LogError: when it could not be written.
        """
        self._check_open()
        place = self._open.get((topic, partition)) or self._opened(topic, partition)
        batches = stored_batches(values, keys, timestamps_ms, headers)
        self._write(topic, partition, place)
        if not len(values):
            return None
        first = place.append(batches)
        self.written += len(values)
        return first

    def flush(self) -> None:
        """Write all pending records, partition by partition.

        :raises LogError: when a partition's batch could not be written; it and the following ones stay pending.
        """
        self._check_open()
        for (topic, partition), place in self._open.items():
            self._write(topic, partition, place)

    def close(self) -> None:
        """Flush; a second `close` does nothing.

        :raises LogError: as `flush`: then the producer stays open, and another `close` tries again.
        """
        if not self._is_closed:
            self.flush()
            self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        self._is_closed = True

    def _check_open(self) -> None:
        """
        :raises UsageError: when the producer is closed.
        :raises Inherited: in a process that was forked since: pending records are the other's.
        """
        refuse_inherited("producer", self._made_in)
        if self._is_closed:
            raise UsageError(CLOSED)

    def _choose(self, topic: str, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, self.topic(topic).partitions)
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = deque(self.topic(topic).partitions)
            sticky.rotate(random.randrange(len(sticky)))
        return sticky[0]

    def _opened(self, name: str, partition: int) -> Appender:
        topic = self.topic(name)
        partition = whole("partition", partition, MAX_PARTITION)
        if partition not in topic.partitions:
            raise UsageError(f"topic {name} has no partition {partition}: it has {len(topic.partitions)}, from 0 on")
        self._open[name, partition] = place = Appender(self._log_dir, topic.name, topic.id, partition)
        return place

    def _write(self, topic: str, partition: int, place: Appender) -> None:
        if not len(place.records):
            return
        place.append(place.records.batches())
        self.written += len(place.records)
        place.records = PendingRecords()
        sticky = self._sticky.get(topic)
        if sticky is not None and sticky[0] == partition:
            sticky.rotate(-1)


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
    """The partition of all records with `key`, the same as of Kafka's Java client."""
    return partitions[(murmur2(key) & 0x7FFFFFFF) % len(partitions)]


class PendingRecords:
    """Records of one partition, collected until they are written."""

    def __init__(self) -> None:
        self.bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: dict[int, Headers] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers) -> None:
        """Add one record, unless it is refused.

        :raises UsageError: when it is too large, its time is out of range, or a header's name is not text.
        :raises TypeError: when value or key is neither bytes nor None.
        """
        size = _size(value) + _size(key) + 16
        if headers:
            size += sum(_size(_encoded(name)) + _size(data) for name, data in headers)
        if size > MAX_RECORD_BYTES:
            raise UsageError(f"a record of {size} bytes is too large; the limit is {MAX_RECORD_BYTES}")
        timestamp_ms = _time_ms(timestamp_ms)
        if headers:
            self._headers[len(self._values)] = headers
        self._keys.append(key)
        self._values.append(value)
        self._timestamps.append(timestamp_ms)
        self.bytes += size

    def batches(self) -> list[pa.RecordBatch]:
        """The pending records, as batches of `STORED_SCHEMA`."""
        headers = None
        if self._headers:
            found = [self._headers.get(index) for index in range(len(self))]
            rows = [None if row is None else [{"key": name, "value": data} for name, data in row] for row in found]
            headers = pa.array(rows, HEADERS)
        keys = pa.array(self._keys, pa.binary())
        return stored_batches(pa.array(self._values, pa.binary()), keys, pa.array(self._timestamps), headers)


def _time_ms(timestamp_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if timestamp_ms is None else whole(_TIME, timestamp_ms, MAX_TIMESTAMP_MS)


def _size(data: bytes | None) -> int:
    if data is None:
        return 0
    if not isinstance(data, bytes):
        raise TypeError(f"a record consists of bytes, not of {type(data).__name__}")
    return len(data)


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise UsageError(f"a header's name is no text: {name!a}") from error


def stored_batches(
    values: pa.Array | pa.ChunkedArray | Sequence[bytes | None],
    keys: pa.Array | pa.ChunkedArray | Sequence[bytes | None] | None = None,
    timestamps_ms: pa.Array | pa.ChunkedArray | int | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
) -> list[pa.RecordBatch]:
    """Whole columns as batches of `STORED_SCHEMA` of about `BATCH_BYTES` each.

    :param values: binary or string; copied only when they are not binary yet.
    :param timestamps_ms: of each record or of all, in milliseconds since the epoch, or Arrow timestamps; None is now.
    :raises UsageError: when the columns do not fit each other or `STORED_SCHEMA`.
    """
    rows = len(values)
    try:
        if not isinstance(timestamps_ms, pa.Array | pa.ChunkedArray):
            timestamps_ms = pa.repeat(pa.scalar(_time_ms(timestamps_ms), pa.int64()), rows)
        columns = [
            pa.nulls(rows, pa.binary()) if keys is None else _column(keys, pa.binary()),
            _column(values, pa.binary()),
            _timestamps(timestamps_ms),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
            no_headers(rows) if headers is None else _column(headers, HEADERS),
        ]
        table = pa.Table.from_arrays(columns, schema=STORED_SCHEMA)
    except (pa.ArrowException, TypeError, ValueError, UsageError) as error:
        raise UsageError(f"these columns are no records: {error}") from error
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(1, rows * BATCH_BYTES // max(1, table.nbytes)))
    return batches


def _column(values: pa.Array | pa.ChunkedArray | Sequence[bytes | None], kind: pa.DataType) -> pa.ChunkedArray:
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, kind)
    chunked = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    return chunked if chunked.type == kind else chunked.cast(kind)


def _timestamps(timestamps_ms: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if timestamps_ms.null_count:
        raise ValueError("a timestamp is missing")
    is_number = pa.types.is_integer(timestamps_ms.type)
    times = (timestamps_ms.cast(pa.timestamp("ms", tz="UTC")) if is_number else timestamps_ms).cast(TIMESTAMP)
    for bound_us in pc.min_max(times.cast(pa.int64())).values() if len(times) else ():
        whole(_TIME, bound_us.as_py() // 1000, MAX_TIMESTAMP_MS)
    return times

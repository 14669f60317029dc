"""Records of Kafka through confluent-kafka (librdkafka), whose `Message` objects become columns, and Arrow batches.

Partitions are assigned one by one, no group is joined, and nothing is committed to Kafka. Batches are of `LOG_SCHEMA`:
whole columns, then cut where the partition changes. From buffers: `pa.array` imports pandas where it is installed,
which takes 0.4 s and 40 MB of each process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..base import HEADERS, LOG_SCHEMA, MAX_TIMESTAMP_MS, POOL, TIMESTAMP, no_headers
from .options import DEFAULTS
from .requests import UNKNOWN_TOPIC, DescribesTopics, Requests

log = logging.getLogger(__name__)

_E = ck.KafkaError
END, OUT_OF_RANGE, UNKNOWN, DENIED, CORRUPT, OTHER = "end", "out of range", "unknown", "denied", "corrupt", "other"

_KINDS = {
    _E._PARTITION_EOF: END,
    **dict.fromkeys((_E._AUTO_OFFSET_RESET, _E.OFFSET_OUT_OF_RANGE), OUT_OF_RANGE),
    **dict.fromkeys(UNKNOWN_TOPIC, UNKNOWN),
    **dict.fromkeys((_E.TOPIC_AUTHORIZATION_FAILED, _E.CLUSTER_AUTHORIZATION_FAILED), DENIED),
    **dict.fromkeys((_E._BAD_MSG, _E._BAD_COMPRESSION, _E.INVALID_MSG, _E._NOT_IMPLEMENTED), CORRUPT),
}

MAX_COLUMN_BYTES = (1 << 31) - 1

SILENT_S = 5.0
"""Seconds without any answer to a pending request, besides `fetch.wait.max.ms`: then a broker is down."""

_BROKERS = '"brokers":'

Headers = list[tuple[str, bytes | None]]
Place = tuple[str, int]
"""A topic and a partition's number."""


class Signal(NamedTuple):
    """An event of a partition between its records."""

    kind: str
    topic: str
    partition: int
    offset: int
    text: str


class BrokerStats(NamedTuple):
    """A broker in one event of librdkafka's statistics.

    One that hangs stays `UP` there: it is silent when a request waits and nothing was received for long. One that
    metadata does not have any more is not in it at all.

    :ivar silent_s: seconds for which a request has waited longer than it should.
    :ivar leads: the partitions that librdkafka requests from it.
    :ivar is_unused: whether there is no connection because none was needed.
    """

    address: str
    is_connected: bool
    silent_s: float
    leads: frozenset[Place]
    is_unused: bool = False

    @property
    def is_up(self) -> bool:
        return self.is_connected and self.silent_s < SILENT_S


def parsed_stats(text: str, fetch_wait_s: float) -> list[BrokerStats]:
    """The brokers in librdkafka's statistics. The partitions' part, which may be megabytes, is not parsed."""
    brokers, _ = json.JSONDecoder().raw_decode(text, text.index(_BROKERS) + len(_BROKERS))
    return [_broker(each, fetch_wait_s) for each in brokers.values() if each["source"] in ("learned", "configured")]


def _broker(stats: Mapping[str, Any], fetch_wait_s: float) -> BrokerStats:
    idle_s = min(stats["txidle"], stats["rxidle"]) / 1e6  # it may have been idle before the request
    silent_s = idle_s - fetch_wait_s if stats["waitresp_cnt"] else 0.0
    leads = frozenset((each["topic"], each["partition"]) for each in stats["toppars"].values())
    is_unused = stats["source"] == "learned" and stats["state"] == "INIT" and not leads
    return BrokerStats(stats["nodename"], stats["state"] == "UP", max(0.0, silent_s), leads, is_unused)


class KafkaClient(Requests):
    """On demand a connection to a cluster for records besides the one for requests. Records are one thread's.

    :ivar response_bytes: bytes of the largest response of a broker.
    :ivar brokers: the brokers in the newest statistics, None before the first.
    """

    def __init__(self, servers: str, options: Mapping[str, str], registry: DescribesTopics | None = None) -> None:
        super().__init__(servers, options, registry)
        self.brokers: list[BrokerStats] | None = None
        given = {**DEFAULTS, **options}  # which librdkafka has accepted by now
        self.response_bytes = int(given["fetch.max.bytes"])
        self._fetch_wait_s = float(given["fetch.wait.max.ms"]) / 1000
        self._consumer: Any = None

    @property
    def is_reading(self) -> bool:
        """Whether there is a connection for records."""
        return self._consumer is not None

    def assign(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Begin fetching partitions at these offsets."""
        self._reading().incremental_assign([ck.TopicPartition(*place, offset) for place, offset in starts.items()])

    def unassign(self, places: Iterable[tuple[str, int]]) -> None:
        """Stop fetching partitions; their prefetched records are dropped (librdkafka versions the assignment)."""
        self._reading().incremental_unassign([ck.TopicPartition(*place) for place in places])

    def consume(self, most: int) -> list[Columns | Signal]:
        """Poll: buffered records, up to `most`, and signals, in order; does not block.

        librdkafka's binding makes a `Message` of each record, with a bytes object for key and value each: 0.5 us of CPU
        for 1 KB. The six values below are read by C functions over the whole list, without Python code per record: 0.15
        us. Their columns in Arrow take 0.3 us. Polls of 1,000 records take a little less than of 500, of 4,000 more:
        they exceed the cache.
        """
        messages = self._reading().consume(most, 0)
        if not messages:
            return []
        if not any(map(ck.Message.error, messages)):
            return [_columns(messages)]
        return list(_pieces(messages, list(map(ck.Message.error, messages))))

    def close(self) -> None:
        """Close both connections."""
        super().close()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _reading(self) -> Any:
        if self._consumer is None:
            callbacks = {"error_cb": self._on_error, "stats_cb": self._on_stats}
            self._consumer = self._made(ck.Consumer, {**self._options, **callbacks})
        return self._consumer

    def _on_stats(self, text: str) -> None:
        self.brokers = parsed_stats(text, self._fetch_wait_s)


def _headers(messages: Sequence[Any]) -> list[Any]:
    """Headers, None for none. A header name with invalid UTF-8 makes the binding raise, and a second call returns
    invalid memory: such a record is returned without its headers, and logged."""
    found: list[Any] = []
    left = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(ck.Message.headers, left))  # items before an error stay in it
        except (SystemError, UnicodeError):
            bad = messages[len(found)]
            topic, partition, offset = bad.topic(), bad.partition(), bad.offset()
            log.error("ignoring unreadable headers: topic=%s partition=%d offset=%d", topic, partition, offset)
            found.append(None)
    return found


def _columns(messages: Sequence[Any]) -> Columns:
    message: Any = ck.Message
    rows = len(messages)
    times = np.fromiter(chain.from_iterable(map(message.timestamp, messages)), np.int64, 2 * rows)
    partitions = np.fromiter(map(message.partition, messages), np.int32, rows)
    offsets = np.fromiter(map(message.offset, messages), np.int64, rows)
    topics, keys, values = (list(map(field, messages)) for field in (message.topic, message.key, message.value))
    return Columns(topics, partitions, offsets, keys, values, times.reshape(rows, 2), _headers(messages))


def _pieces(messages: Sequence[Any], errors: Sequence[Any]) -> Iterable[Columns | Signal]:
    """Records and signals in order: records after a damaged one are separate from those before it."""
    begun = 0
    for index in (*(index for index, error in enumerate(errors) if error is not None), len(messages)):
        if index > begun:
            yield _columns(messages[begun:index])
        if index < len(messages):
            message, error = messages[index], errors[index]
            kind = _KINDS.get(error.code(), OTHER)
            yield Signal(kind, message.topic() or "", message.partition(), message.offset(), error.str())
        begun = index + 1


class Columns(NamedTuple):
    """Records of several partitions, column by column.

    :ivar partitions: int32.  :ivar offsets: int64.
    :ivar timestamps: int64, (rows, 2): librdkafka's type, and milliseconds since the epoch.
    """

    topics: list[str]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: NDArray[np.int64]
    headers: list[Headers | None]


class RecordRun(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    first: int
    next: int
    batch: pa.RecordBatch


def runs(columns: Columns) -> Iterator[RecordRun]:
    """The same records, cut into runs of one partition; their memory is one batch's."""
    batch, begin = _batch(columns), 0
    topics, partitions, offsets = columns.topics, columns.partitions, columns.offsets
    changes = partitions[1:] != partitions[:-1]
    if topics.count(topics[0]) < len(topics):
        names = np.array(topics)
        changes = changes | (names[1:] != names[:-1])
    for end in [*(np.flatnonzero(changes) + 1).tolist(), len(topics)]:
        part = batch if (begin, end) == (0, len(offsets)) else batch.slice(begin, end - begin)
        place = topics[begin], int(partitions[begin])
        yield RecordRun(*place, int(offsets[begin]), int(offsets[end - 1]) + 1, part)
        begin = end


def _batch(columns: Columns) -> pa.RecordBatch:
    times = columns.timestamps[:, 1]
    is_time = (times >= 0) & (times <= MAX_TIMESTAMP_MS)  # producers may write any number: else null
    arrays = [
        _data(pa.binary(), columns.keys),
        _data(pa.binary(), columns.values),
        _names(columns.topics),
        _fixed(pa.int32(), columns.partitions),
        _fixed(pa.int64(), columns.offsets),
        _fixed(TIMESTAMP, times * is_time * 1000, _valid(is_time)),
        _fixed(pa.int32(), (columns.timestamps[:, 0] - 1).astype(np.int32)),  # Kafka's: 0 for CreateTime, -1 for none
        _header_lists(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)


def _fixed(kind: pa.DataType, values: NDArray[Any], valid: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def _valid(is_valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _begins(lengths: NDArray[np.int64]) -> pa.Buffer:
    """Arrow's offsets of items of these lengths.

    :raises pa.ArrowCapacityError: when the items exceed an array.
    """
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    if begins[-1] > MAX_COLUMN_BYTES:
        raise pa.ArrowCapacityError(f"{begins[-1]} bytes exceed an Arrow array")
    return pa.py_buffer(begins.astype(np.int32))


def _data(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """A column of bytes: for values of 1 kB two thirds of the time of `pa.array`, which grows its buffer."""
    rows, valid, items = len(values), None, values
    if None in values:
        if values.count(None) == rows:
            return _nothing(kind, _more(rows)).slice(0, rows)
        valid = _valid(np.fromiter((value is not None for value in values), np.bool_, rows))
        items = [value or b"" for value in values]
    begins = _begins(np.fromiter(map(len, items), np.int64, rows))  # type: ignore[arg-type]
    joined = b"".join(items)  # type: ignore[arg-type]
    data = pa.allocate_buffer(len(joined), memory_pool=POOL)
    memoryview(data).cast("B")[:] = joined
    return pa.Array.from_buffers(kind, rows, [valid, begins, data])


@lru_cache(maxsize=16)
def _nothing(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


@lru_cache(maxsize=128)
def _repeated(name: str, rows: int) -> pa.Array:
    """`name` in `rows` rows, to be sliced."""
    return _data(pa.string(), [name.encode()] * rows)


def _more(rows: int) -> int:
    """Length of a cached array for slices of `rows`: one of a few lengths."""
    return 1 << (rows - 1).bit_length()


def _names(names: Sequence[str]) -> pa.Array:
    rows = len(names)
    if names.count(names[0]) == rows:
        return _repeated(names[0], _more(rows)).slice(0, rows)
    return _data(pa.string(), [name.encode() for name in names])


def _header_lists(headers: Sequence[Headers | None]) -> pa.Array:
    rows = len(headers)
    if headers[0] is None and headers.count(None) == rows:
        return no_headers(rows)
    found = [row or [] for row in headers]
    flat = list(chain.from_iterable(found))
    names, data = [name.encode() for name, _ in flat], [data for _, data in flat]
    begins = _begins(np.fromiter(map(len, found), np.int64, rows))
    valid = _valid(np.fromiter(map(bool, found), np.bool_, rows))
    columns = [_data(pa.string(), names), _data(pa.binary(), data)]
    items = pa.Array.from_buffers(HEADERS.value_type, len(flat), [None], children=columns)
    return pa.Array.from_buffers(HEADERS, rows, [valid, begins], children=[items])

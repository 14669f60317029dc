"""Kafka through confluent-kafka (librdkafka): all code that depends on that library.

`KafkaClient` sends requests and returns results; `log.py` decides what to do with them. Partitions are assigned
one by one, no group is joined, and nothing is committed to Kafka.
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from coordinator.zk.errors import MissingProgram, UsageError

from ..base import OffsetAndTimestamp
from ..errors import LogError
from .arrow_batches import Columns
from .options import without_secrets

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ck_admin
except ImportError as error:
    raise MissingProgram(
        "confluent-kafka, which reads Kafka, is not installed: pip install 'confluent-kafka>=2.6'"
    ) from error

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

END, OUT_OF_RANGE, UNKNOWN, DENIED, CORRUPT, OTHER = "end", "out of range", "unknown", "denied", "corrupt", "other"
AWAY, CREDENTIALS = "away", "credentials"
EARLIEST, LATEST = -2, -1
"""Kafka's own numbers for special offsets."""

REQUEST_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 0.1

_E = ck.KafkaError
_KINDS = {
    _E._PARTITION_EOF: END,
    _E._AUTO_OFFSET_RESET: OUT_OF_RANGE,
    _E.OFFSET_OUT_OF_RANGE: OUT_OF_RANGE,
    _E.UNKNOWN_TOPIC_OR_PART: UNKNOWN,
    _E.UNKNOWN_TOPIC_ID: UNKNOWN,
    _E._UNKNOWN_TOPIC: UNKNOWN,
    _E._UNKNOWN_PARTITION: UNKNOWN,
    _E.TOPIC_AUTHORIZATION_FAILED: DENIED,
    _E.CLUSTER_AUTHORIZATION_FAILED: DENIED,
    _E._BAD_MSG: CORRUPT,
    _E._BAD_COMPRESSION: CORRUPT,
    _E.INVALID_MSG: CORRUPT,
    _E._NOT_IMPLEMENTED: CORRUPT,
    _E._AUTHENTICATION: CREDENTIALS,
    _E.SASL_AUTHENTICATION_FAILED: CREDENTIALS,
    _E._ALL_BROKERS_DOWN: AWAY,
}

NOT_TRUSTED = "certificate verify failed"
"""librdkafka's error for an untrusted certificate: as with a wrong password, a retry cannot help. Other errors of a TLS
handshake may be those of a starting or stopping broker."""

REASON_S = 10.0
"""Seconds for which a connection error explains a missing answer."""

MOST_FAILURES = 100
"""Failed connections that are kept between two polls: each broker may have ten a second."""

_UNANSWERED = (_E._TIMED_OUT, _E._TIMED_OUT_QUEUE, _E._TRANSPORT)


class Signal(NamedTuple):
    """An event of a partition between its records; with an empty topic, of librdkafka itself."""

    kind: str
    topic: str
    partition: int
    offset: int
    text: str


def unreadable(signal: Signal) -> LogError:
    """The error of a partition with signal `CORRUPT`, `DENIED` or `OTHER`."""
    if signal.kind == DENIED:
        return LogError(f"Kafka does not let this user read topic {signal.topic}: {signal.text}")
    if signal.kind != CORRUPT:
        return LogError(f"{signal.topic}-{signal.partition} cannot be read, tried again: {signal.text}")
    what = f"the records of {signal.topic}-{signal.partition} from offset {signal.offset} on are damaged"
    return LogError(f"{what}, asked for again: {signal.text}")


def refused(servers: str, text: str) -> LogError:
    """The error of signal `CREDENTIALS`, with the remedy."""
    what = "has a certificate that is not trusted" if NOT_TRUSTED in text else "refuses the credentials"
    return LogError(
        f"Kafka at {servers} {what}: {text}; set security.protocol, sasl.mechanism, "
        "sasl.username and sasl.password, or ssl.*, of the options for Kafka as the brokers want them"
    )


class Described(NamedTuple):
    """A topic in the brokers' metadata.

    :ivar id: empty from brokers without topic ids.  :ivar error: why it is missing; else empty.
    """

    id: str
    partitions: frozenset[int]
    error: str = ""


class Pending(Generic[K, T]):
    """Pending results. An error is a value: one partition's does not hide the others'."""

    def __init__(self, futures: Mapping[K, Future[Any]], read: Callable[[Future[Any]], T]) -> None:
        self._futures = futures
        self._read = read

    @property
    def is_done(self) -> bool:
        return all(future.done() for future in self._futures.values())

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds; returns whether all results have arrived."""
        return not wait(self._futures.values(), timeout_s).not_done

    def results(self) -> dict[K, T]:
        return {key: self._read(future) for key, future in self._futures.items()}


class KafkaClient:
    """One connection to a cluster for records, and on demand one for requests.

    :param options: librdkafka's; see `kafka_options`.
    :raises UsageError: when librdkafka refuses them; the message has no secret.
    """

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        self.servers = servers
        self._options = {**options, "bootstrap.servers": servers}
        self._events: deque[Signal] = deque()
        self._reason = (float("-inf"), "")
        self._consumer = self._made(ck.Consumer, {**self._options, "error_cb": self._on_error})
        self._admin: Any = None
        self._making = threading.Lock()

    # ---- records

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Begin fetching a partition at `offset`."""
        self._consumer.incremental_assign([ck.TopicPartition(topic, partition, offset)])

    def unassign(self, topic: str, partition: int) -> None:
        """Stop fetching a partition; its prefetched records are dropped (librdkafka versions the assignment)."""
        self._consumer.incremental_unassign([ck.TopicPartition(topic, partition)])

    def consume(self, most: int) -> list[Columns | Signal]:
        """Poll: buffered records, up to `most`, and signals, in order; does not block.

        librdkafka's binding makes a `Message` of each record, with a bytes object for key and value each: 0.5 us of CPU
        for 1 KB. The six values below are read by C functions over the whole list, without Python code per record: 0.15
        us. Their copies in Arrow take 0.6 us. Polls of 1,000 records take a little less than of 500, and of 4,000 more:
        they exceed the cache.
        """
        messages = self._consumer.consume(most, 0)
        if not messages:
            return []
        if not any(map(ck.Message.error, messages)):
            return [_columns(messages)]
        return list(_pieces(messages, list(map(ck.Message.error, messages))))

    def events(self) -> list[Signal]:
        """librdkafka's own events since the last call."""
        if self._admin is not None:
            self._admin.poll(0)
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    # ---- requests

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        """Metadata of topics, in one request."""
        collection = ck.TopicCollection(sorted(topics))
        return Pending(self._asking().describe_topics(collection, request_timeout=REQUEST_TIMEOUT_S), self._described)

    def look_for_controller(self) -> None:
        """Ask any broker for metadata, for requests that wait for the controller. Blocks for `LOOK_TIMEOUT_S`.

        A broker that has just started names none, not even itself; librdkafka asks it again after ten seconds."""
        with suppress(ck.KafkaException):
            self._asking().list_topics(timeout=LOOK_TIMEOUT_S)

    def offsets(self, requested: Mapping[tuple[str, int], int]) -> Pending[tuple[str, int], int | LogError]:
        """Offsets of partitions, in one request per leader.

        :param requested: (topic, partition) -> `EARLIEST`, `LATEST`, or a time in milliseconds since the epoch. Without
            a record of that time or later, the result is -1.
        """
        return self._listed(requested, lambda found: int(found.offset))

    def records_of_times(
        self, requested: Mapping[tuple[str, int], int]
    ) -> Pending[tuple[str, int], OffsetAndTimestamp | LogError | None]:
        """The first records of these times or later: (topic, partition) -> milliseconds since the epoch."""
        return self._listed(
            requested, lambda found: OffsetAndTimestamp(found.offset, found.timestamp) if found.offset >= 0 else None
        )

    def _listed(
        self, requested: Mapping[tuple[str, int], int], read: Callable[[Any], T]
    ) -> Pending[tuple[str, int], T | LogError]:
        asked = {ck.TopicPartition(*place): _spec(what) for place, what in requested.items()}
        level = ck.IsolationLevel
        is_committed = self._options.get("isolation.level") != "read_uncommitted"
        futures = self._asking().list_offsets(
            asked,
            isolation_level=level.READ_COMMITTED if is_committed else level.READ_UNCOMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )

        def answer(future: Future[Any]) -> T | LogError:
            try:
                return read(future.result())
            except ck.KafkaException as error:
                return self._problem(error)

        return Pending({(part.topic, part.partition): future for part, future in futures.items()}, answer)

    def cluster(self, timeout_s: float = REQUEST_TIMEOUT_S) -> tuple[str, list[str]]:
        """The cluster's id, and every visible topic, without Kafka's internal ones.

        :raises LogError: when no broker answers.
        """
        try:
            found = self._asking().list_topics(timeout=timeout_s)
        except ck.KafkaException as error:
            raise self._problem(error) from error
        own = ("__consumer_offsets", "__transaction_state", "__share_group_state")
        return str(found.cluster_id), sorted(name for name in found.topics if name not in own)

    def group(self, group: str) -> tuple[str, int]:
        """The state of one of Kafka's own groups, as `EMPTY` or `STABLE`, and its number of members.

        :raises LogError: when no broker answers.
        """
        future = self._asking().describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group]
        try:
            found = future.result(REQUEST_TIMEOUT_S + 1)
        except ck.KafkaException as error:
            if error.args[0].code() == _E.GROUP_ID_NOT_FOUND:
                return "DEAD", 0
            raise self._problem(error) from error
        return found.state.name, len(found.members)

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], str]:
        """Set the offsets of one of Kafka's own groups, which must have no members.

        :returns: refused offsets, with the reason.
        :raises LogError: when all were refused.
        """
        parts = [ck.TopicPartition(*place, offset) for place, offset in sorted(offsets.items())]
        asked = self._asking().alter_consumer_group_offsets(
            [ck.ConsumerGroupTopicPartitions(group, parts)], request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            done = asked[group].result(REQUEST_TIMEOUT_S + 1)
        except ck.KafkaException as error:
            raise self._problem(error) from error
        return {(p.topic, p.partition): p.error.str() for p in done.topic_partitions if p.error is not None}

    def close(self) -> None:
        """Close both connections."""
        self._consumer.close()
        self._admin = None

    # ---- internals

    def _asking(self) -> Any:
        consumers_own = ("enable.", "fetch.", "queued.", "auto.offset", "max.partition", "isolation.", "check.crcs")
        with self._making:  # for several threads; a dropped client drops its pending requests
            if self._admin is None:
                options = {k: v for k, v in self._options.items() if not k.startswith(consumers_own)}
                # Requests wait for a controller, and a broker that has just started knows none: refresh metadata soon.
                options |= {"topic.metadata.refresh.interval.ms": "1000"}
                self._admin = self._made(ck_admin.AdminClient, {**options, "error_cb": self._on_admins_error})
            return self._admin

    def _made(self, kind: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
        try:
            return kind(options)
        except (ck.KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"librdkafka refuses the options for Kafka: {self._text(error)}") from error

    def _on_error(self, error: Any) -> None:
        kind, text = self._heard(error)
        reason = self._why() if kind == AWAY else ""
        if kind != OTHER or len(self._events) < MOST_FAILURES:
            self._events.append(Signal(kind, "", -1, -1, f"{text}{reason}"))

    def _on_admins_error(self, error: Any) -> None:
        if self._heard(error)[0] == CREDENTIALS:  # its connection alone is no outage
            self._on_error(error)

    def _heard(self, error: Any) -> tuple[str, str]:
        """The kind and text of an error. The text is kept: it precedes the signal that all brokers are down."""
        kind, text = _KINDS.get(error.code(), OTHER), self._clean(error.str())
        if error.code() == _E._SSL and NOT_TRUSTED in text:
            kind = CREDENTIALS
        elif kind == OTHER:
            self._reason = (time.monotonic(), text)
        return kind, text

    def _why(self) -> str:
        """A recent connection error, as a suffix of another message; else empty."""
        at, text = self._reason
        return f": {text}" if time.monotonic() - at < REASON_S else ""

    def _described(self, future: Future[Any]) -> Described | LogError:
        try:
            found = future.result()
        except ck.KafkaException as error:
            if _kind(error) == UNKNOWN:
                return Described("", frozenset(), "Kafka has no such topic")
            return self._problem(error)
        numbers = frozenset(part.id for part in found.partitions)
        return Described(topic_id_text(found.topic_id), numbers)

    def _problem(self, error: Exception) -> LogError:
        inner = error.args[0] if error.args else None
        is_unanswered = isinstance(inner, _E) and inner.code() in _UNANSWERED
        return LogError(f"Kafka at {self.servers}: {self._text(error)}{self._why() if is_unanswered else ''}")

    def _text(self, error: Exception) -> str:
        inner = error.args[0] if error.args else error
        return self._clean(inner.str() if isinstance(inner, _E) else str(error))

    def _clean(self, text: str) -> str:
        return " ".join(without_secrets(text, self._options).split())


def topic_id_text(found: Any) -> str:
    """A topic's id in Kafka's and ZooKeeper's form; empty for none.

    librdkafka's own text has `+` and `/` where Kafka's has `-` and `_`.
    """
    if found is None:
        return ""
    halves = (found.get_most_significant_bits() or 0, found.get_least_significant_bits() or 0)
    data = b"".join((half % 2**64).to_bytes(8, "big") for half in halves)
    return urlsafe_b64encode(data).rstrip(b"=").decode() if any(data) else ""


def _kind(error: Any) -> str:
    return _KINDS.get(error.args[0].code(), OTHER)


def _spec(what: int) -> Any:
    spec: Any = vars(ck_admin)["OffsetSpec"]  # missing in its stubs
    if what in (EARLIEST, LATEST):
        return spec.earliest() if what == EARLIEST else spec.latest()
    return spec.for_timestamp(what)


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
            log.error(
                "ignoring unreadable headers: topic=%s partition=%d offset=%d",
                bad.topic(),
                bad.partition(),
                bad.offset(),
            )
            found.append(None)
    return found


def _columns(messages: Sequence[Any]) -> Columns:
    message: Any = ck.Message
    return Columns(
        topics=list(map(message.topic, messages)),
        partitions=list(map(message.partition, messages)),
        offsets=list(map(message.offset, messages)),
        keys=list(map(message.key, messages)),
        values=list(map(message.value, messages)),
        timestamps=list(map(message.timestamp, messages)),
        headers=_headers(messages),
    )


def _pieces(messages: Sequence[Any], errors: Sequence[Any]) -> Iterable[Columns | Signal]:
    """Records and signals in order: records after a damaged one are separate from those before it."""
    begun = 0
    for index, error in enumerate(errors):
        if error is None:
            continue
        if index > begun:
            yield _columns(messages[begun:index])
        begun = index + 1
        message = messages[index]
        kind = _KINDS.get(error.code(), OTHER)
        yield Signal(kind, message.topic() or "", message.partition(), message.offset(), error.str())
    if begun < len(messages):
        yield _columns(messages[begun:])

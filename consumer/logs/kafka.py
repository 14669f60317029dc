"""Kafka through confluent-kafka (librdkafka): everything that knows that library.

`KafkaClient` asks and answers; what is done with the answers is decided in `kafka_log.py`. Partitions are assigned one
by one, no group is ever joined, and nothing is committed to Kafka.
"""

from __future__ import annotations

import logging
import threading
import time
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Generic, NamedTuple, TypeVar

from coordinator.zk.errors import MissingProgram, UsageError

from .base import OffsetAndTimestamp
from .errors import LogError
from .kafka_batches import Columns
from .kafka_options import without_secrets

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ck_admin
except ImportError as error:
    raise MissingProgram(
        "confluent-kafka, which reads Kafka, is not installed: pip install 'zk-group-coordinator[kafka]'"
    ) from error

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

END, OUT_OF_RANGE, UNKNOWN, DENIED, CORRUPT, OTHER = "end", "out of range", "unknown", "denied", "corrupt", "other"
AWAY, CREDENTIALS = "away", "credentials"
EARLIEST, LATEST = -2, -1
"""As an offset that is asked for: Kafka's own numbers."""

REQUEST_TIMEOUT_S = 5.0

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
"""What librdkafka says of a broker whose certificate it cannot verify: trying again helps as little as with a password.
Whatever else breaks a TLS handshake may be a broker that is just starting or ending."""

REASON_S = 10.0
"""What was wrong with a connection may be why nobody answers for so long."""

MOST_FAILURES = 100
"""So many failed connections are kept between two looks: each broker may have ten a second."""

_UNANSWERED = (_E._TIMED_OUT, _E._TIMED_OUT_QUEUE, _E._TRANSPORT)


class Signal(NamedTuple):
    """What librdkafka says of a partition between its records; with an empty topic, of itself."""

    kind: str
    topic: str
    partition: int
    offset: int
    text: str


def unreadable(signal: Signal) -> LogError:
    """Why nothing comes of a partition of which `CORRUPT`, `DENIED` or `OTHER` was said."""
    if signal.kind == DENIED:
        return LogError(f"Kafka does not let this user read topic {signal.topic}: {signal.text}")
    if signal.kind != CORRUPT:
        return LogError(f"{signal.topic}-{signal.partition} cannot be read, tried again: {signal.text}")
    what = f"the records of {signal.topic}-{signal.partition} from offset {signal.offset} on are damaged"
    return LogError(f"{what}, asked for again: {signal.text}")


def refused(servers: str, text: str) -> LogError:
    """What `CREDENTIALS` says, and what to do."""
    what = "has a certificate that is not trusted" if NOT_TRUSTED in text else "refuses the credentials"
    return LogError(
        f"Kafka at {servers} {what}: {text}; set security.protocol, sasl.mechanism, "
        "sasl.username and sasl.password, or ssl.*, of the options for Kafka as the brokers want them"
    )


class Described(NamedTuple):
    """A topic as the brokers know it.

    :ivar id: empty when they are too old to know one.  :ivar error: that it is not there; else empty.
    """

    id: str
    partitions: frozenset[int]
    error: str = ""


class Pending(Generic[K, T]):
    """Answers that are on their way. An error is a value: one partition's does not hide the others'."""

    def __init__(self, futures: Mapping[K, Future[Any]], read: Callable[[Future[Any]], T]) -> None:
        self._futures = futures
        self._read = read

    @property
    def is_done(self) -> bool:
        return all(future.done() for future in self._futures.values())

    def wait(self, timeout_s: float) -> bool:
        """Whether all have come, `timeout_s` seconds from now at the latest."""
        return not wait(self._futures.values(), timeout_s).not_done

    def results(self) -> dict[K, T]:
        return {key: self._read(future) for key, future in self._futures.items()}


class KafkaClient:
    """One connection to a cluster, for records, and when it is asked for something else, one for that.

    :param options: librdkafka's; see `kafka_options`.
    :raises UsageError: when librdkafka does not take them; no secret is repeated.
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
        """Let librdkafka fetch a partition, from `offset` on."""
        self._consumer.incremental_assign([ck.TopicPartition(topic, partition, offset)])

    def unassign(self, topic: str, partition: int) -> None:
        """Fetch it no more; what was fetched of it will not come (librdkafka drops it by the assignment's version)."""
        self._consumer.incremental_unassign([ck.TopicPartition(topic, partition)])

    def consume(self, most: int) -> list[Columns | Signal]:
        """What has come, up to `most` records, in order; nothing is waited for.

        librdkafka's binding makes a `Message` of each record, with a bytes object for key and value each: 0.5 us of CPU
        a record of 1 KB. The six values below are read by C functions over the whole list, without a line of Python a
        record: 0.15 us. Their copies in Arrow take 0.6 us. Looks at 1,000 records take a little less than at 500, and
        at 4,000 more: they leave the cache.
        """
        messages = self._consumer.consume(most, 0)
        if not messages:
            return []
        if not any(map(ck.Message.error, messages)):
            return [_columns(messages)]
        return list(_pieces(messages, list(map(ck.Message.error, messages))))

    def events(self) -> list[Signal]:
        """What librdkafka has said of itself since the last call."""
        if self._admin is not None:
            self._admin.poll(0)
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    # ---- questions

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        """What the brokers know of topics now, all in one request."""
        wanted = ck.TopicCollection(sorted(topics))
        return Pending(self._asking().describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S), self._described)

    def offsets(self, wanted: Mapping[tuple[str, int], int]) -> Pending[tuple[str, int], int | LogError]:
        """Offsets of partitions, in one request for each broker that leads some.

        :param wanted: (topic, partition) -> `EARLIEST`, `LATEST`, or a time in milliseconds since the epoch. Where no
            record is of that time or later, the answer is -1.
        """
        return self._listed(wanted, lambda found: int(found.offset))

    def records_of_times(
        self, wanted: Mapping[tuple[str, int], int]
    ) -> Pending[tuple[str, int], OffsetAndTimestamp | LogError | None]:
        """The first records of these times or later: (topic, partition) -> milliseconds since the epoch."""
        return self._listed(
            wanted, lambda found: OffsetAndTimestamp(found.offset, found.timestamp) if found.offset >= 0 else None
        )

    def _listed(
        self, wanted: Mapping[tuple[str, int], int], read: Callable[[Any], T]
    ) -> Pending[tuple[str, int], T | LogError]:
        asked = {ck.TopicPartition(*place): _spec(what) for place, what in wanted.items()}
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
        """The cluster's id, and every topic that may be seen, but for those of Kafka's own.

        :raises LogError: when no broker answers.
        """
        try:
            found = self._asking().list_topics(timeout=timeout_s)
        except ck.KafkaException as error:
            raise self._problem(error) from error
        own = ("__consumer_offsets", "__transaction_state", "__share_group_state")
        return str(found.cluster_id), sorted(name for name in found.topics if name not in own)

    def group(self, group: str) -> tuple[str, int]:
        """The state of one of Kafka's own groups, as `EMPTY` or `STABLE`, and how many members it has.

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

        :returns: what was refused, with the reason.
        :raises LogError: when all of it was.
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
        """End both connections."""
        self._consumer.close()
        self._admin = None

    # ---- how

    def _asking(self) -> Any:
        consumers_own = ("enable.", "fetch.", "queued.", "auto.offset", "max.partition", "isolation.", "check.crcs")
        with self._making:  # several threads ask, and one that is dropped drops what it was asked
            if self._admin is None:
                options = {k: v for k, v in self._options.items() if not k.startswith(consumers_own)}
                # Questions wait for a controller, and a broker that has just started knows none: look again soon.
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
        if self._heard(error)[0] == CREDENTIALS:  # that it is not connected just now is no outage
            self._on_error(error)

    def _heard(self, error: Any) -> tuple[str, str]:
        """The kind of an error, and its words, which are kept: they come before all brokers are away."""
        kind, text = _KINDS.get(error.code(), OTHER), self._clean(error.str())
        if error.code() == _E._SSL and NOT_TRUSTED in text:
            kind = CREDENTIALS
        elif kind == OTHER:
            self._reason = (time.monotonic(), text)
        return kind, text

    def _why(self) -> str:
        """What was wrong with a connection just now, to be said after something else; empty for nothing."""
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
    """A topic's id as Kafka and ZooKeeper write it; empty for none.

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
    spec: Any = vars(ck_admin)["OffsetSpec"]  # which its stubs leave out
    if what in (EARLIEST, LATEST):
        return spec.earliest() if what == EARLIEST else spec.latest()
    return spec.for_timestamp(what)


def _headers(messages: Sequence[Any]) -> list[Any]:
    """Headers, None for none. A name that is no UTF-8 makes the binding raise, and asked a second time it answers with
    what must not be touched: such a record goes out without its headers, and that is said."""
    found: list[Any] = []
    left = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(ck.Message.headers, left))  # what came before an error stays in it
        except (SystemError, UnicodeError):
            bad = messages[len(found)]
            log.error("headers set aside: topic=%s partition=%d offset=%d", bad.topic(), bad.partition(), bad.offset())
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
    """Records between signals, and those in their places: what comes after a damage is not what came before it."""
    begun = 0
    for index, error in enumerate(errors):
        if error is None:
            continue
        if index > begun:
            yield _columns(messages[begun:index])
        begun = index + 1
        said = messages[index]
        kind = _KINDS.get(error.code(), OTHER)
        yield Signal(kind, said.topic() or "", said.partition(), said.offset(), error.str())
    if begun < len(messages):
        yield _columns(messages[begun:])

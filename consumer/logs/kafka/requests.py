"""Requests to Kafka's brokers through confluent-kafka (librdkafka): metadata, offsets, and Kafka's own groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from zk_group.coordinator.zk.errors import MissingProgram, UsageError

from ..base import LogError, OffsetAndTimestamp
from .options import with_sources, without_secrets

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ck_admin
except ImportError as error:
    raise MissingProgram(
        "confluent-kafka, which reads Kafka, is not installed: pip install 'confluent-kafka>=2.6'"
    ) from error

K = TypeVar("K")
T = TypeVar("T")

EARLIEST, LATEST = -2, -1
"""Kafka's own numbers for special offsets."""

REQUEST_TIMEOUT_S = 5.0
LOOKUP_TIMEOUT_S = 3.5
"""Of topics and offsets: other partitions wait for a leader that hangs. librdkafka asks again for leaders after three
seconds, when a request for them was lost."""
ANSWER_TIMEOUT_S = 2 * LOOKUP_TIMEOUT_S + 2
"""Seconds until a request has failed for certain: librdkafka waits for leaders, then for their answers. Before that the
answers of leaders that are well come, with the failures of others."""

LOOK_TIMEOUT_S = 0.1

REASON_S = 60.0
"""Seconds for which a connection error counts: librdkafka repeats one every 30 s."""

MOST_ERRORS = 100
"""Brokers whose last connection error is kept."""

NOT_TRUSTED = "certificate verify failed"
"""librdkafka's error for an untrusted certificate: as with a wrong password, a retry cannot help. Other errors of a TLS
handshake may be those of a starting or stopping broker."""

_E = ck.KafkaError
_REFUSALS = (_E._AUTHENTICATION, _E.SASL_AUTHENTICATION_FAILED)
UNKNOWN_TOPIC = (_E.UNKNOWN_TOPIC_OR_PART, _E.UNKNOWN_TOPIC_ID, _E._UNKNOWN_TOPIC, _E._UNKNOWN_PARTITION)
"""Brokers do not know a topic or a partition."""
_UNANSWERED = (_E._TIMED_OUT, _E._TIMED_OUT_QUEUE, _E._TRANSPORT)


class BrokerError(NamedTuple):
    """The last connection error of a broker; `is_refusal` when it has refused the credentials."""

    at: float
    text: str
    is_refusal: bool


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
    :ivar leaders: partition -> the address of its leader, where it has one. Of a broker that has just died metadata may
        have no address any more.
    """

    id: str
    partitions: frozenset[int]
    error: str = ""
    leaders: Mapping[int, str] = {}


NO_TOPIC = Described("", frozenset(), "Kafka has no such topic")


class Unanswered(LogError):
    """No broker has answered a request, or none that accepts the credentials."""


class Pending(Generic[K, T]):
    """Pending results. An error is a value: one partition's does not hide the others'.

    :param results: reads them; refers to the client that was asked, whose futures never end once it is deleted.
    """

    def __init__(self, futures: Collection[Future[Any]], results: Callable[[], dict[K, T]]) -> None:
        self._futures = futures
        self.results = results

    @property
    def is_done(self) -> bool:
        return all(future.done() for future in self._futures)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds; returns whether all results have arrived."""
        return not wait(self._futures, timeout_s).not_done


DescribesTopics = Callable[[Iterable[str]], Pending[str, Described | LogError]]
"""Another place that knows topics' ids, as `TopicRegistry.describe`."""


class Requests:
    """On demand a connection to a cluster for requests. For several threads.

    :param options: librdkafka's; see `kafka_options`.
    :param registry: describes topics while the controller does not answer.
    :ivar has_registry: whether there is one.
    :raises UsageError: when librdkafka refuses them; the message has no secret.
    :ivar errors: the last connection error of each broker, by its address.
    :ivar is_accepted: whether a broker has answered a request, and so accepted the credentials.
    :ivar failed: number of lookups that failed although no broker has accepted the credentials.
    :ivar is_mute: whether the controller has not answered the last request for topics.
    """

    def __init__(self, servers: str, options: Mapping[str, str], registry: DescribesTopics | None = None) -> None:
        self.servers = servers
        self._registry, self.has_registry = registry, registry is not None
        self.is_accepted = self.is_mute = False
        self.failed = 0
        self._probe: Pending[str, Described | LogError] | None = None
        self.errors: dict[str, BrokerError] = {}
        self._options = {**options, "bootstrap.servers": servers}
        self._admin: Any = None
        self._is_closed = False
        self._making, self._probing = threading.Lock(), threading.Lock()
        self._made(ck.Consumer, self._options).close()  # checks the options

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        """Metadata of topics, in one request to the controller, or from the registry while that does not answer."""
        names = sorted(topics)
        with self._probing:
            if self.is_mute and self._registry is not None:
                if self._probe is None:
                    self._probe = self._asked_controller(names)
                elif self._probe.is_done:
                    self._probe.results()  # notes whether it has answered
                    self._probe = None
                if self.is_mute:
                    return self._registry(names)
        return self._asked_controller(names)

    def _asked_controller(self, names: list[str]) -> Pending[str, Described | LogError]:
        asked = self._asking()
        futures = asked.describe_topics(ck.TopicCollection(names), request_timeout=LOOKUP_TIMEOUT_S)
        return Pending(futures.values(), lambda: {name: self._described(each, asked) for name, each in futures.items()})

    def look_for_controller(self) -> None:
        """Ask any broker for metadata, for requests that wait for the controller. Blocks for `LOOK_TIMEOUT_S`.

        A broker that has just started names none, not even itself; librdkafka asks it again after ten seconds."""
        with suppress(ck.KafkaException):
            self._asking().list_topics(timeout=LOOK_TIMEOUT_S)

    def offsets(
        self, requested: Mapping[tuple[str, int], int]
    ) -> Pending[tuple[str, int], OffsetAndTimestamp | LogError]:
        """Offsets of partitions, in one request per leader. Blocks while a new client has no connection.

        :param requested: (topic, partition) -> `EARLIEST`, `LATEST`, or a time in milliseconds since the epoch. Without
            a record of that time or later, the offset is -1; only a record that was found by its time has one.
        """
        asked, specs = self._asking(), {ck.TopicPartition(*place): _spec(what) for place, what in requested.items()}
        if self.is_mute:  # the client may be new: its time for the leaders begins once it is connected
            with suppress(ck.KafkaException):
                asked.list_topics(next(iter(requested))[0], timeout=LOOKUP_TIMEOUT_S)
                self.is_accepted = True
        is_committed = self._options.get("isolation.level") != "read_uncommitted"
        level = ck.IsolationLevel.READ_COMMITTED if is_committed else ck.IsolationLevel.READ_UNCOMMITTED
        futures = asked.list_offsets(specs, isolation_level=level, request_timeout=LOOKUP_TIMEOUT_S)

        def answer(future: Future[Any]) -> OffsetAndTimestamp | LogError:
            try:
                found = future.result()
            except ck.KafkaException as error:
                # A client that was connected has asked a broker that hangs for the leaders.
                return self._problem(error, asked if self.is_accepted else None)
            if found.offset < -1:  # librdkafka's own numbers: its leader has not answered
                return self._unanswered("no answer")
            self.is_accepted = True
            return OffsetAndTimestamp(found.offset, found.timestamp)

        return Pending(futures.values(), lambda: {(p.topic, p.partition): answer(each) for p, each in futures.items()})

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
            found = future.result(ANSWER_TIMEOUT_S)
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
        groups = [ck.ConsumerGroupTopicPartitions(group, parts)]
        asked = self._asking().alter_consumer_group_offsets(groups, request_timeout=REQUEST_TIMEOUT_S)
        try:
            done = asked[group].result(ANSWER_TIMEOUT_S)
        except ck.KafkaException as error:
            raise self._problem(error) from error
        return {(p.topic, p.partition): p.error.str() for p in done.topic_partitions if p.error is not None}

    # ---- connection errors

    @property
    def reasons(self) -> dict[str, str]:
        """The last connection error of each broker, by its address."""
        return {address: error.text for address, error in list(self.errors.items())}

    @property
    def refusal(self) -> str:
        """A broker's refusal of the credentials; empty without one lately."""
        if (admin := self._admin) is not None:  # whose length is that of its queue
            admin.poll(0)  # errors of requests
        now = time.monotonic()
        lately = [each for each in list(self.errors.values()) if now - each.at < REASON_S]
        return next((each.text for each in lately if each.is_refusal), "")

    def unavailable(self, address: str) -> LogError:
        """The error of a partition whose leader is unavailable; `address` is empty without a leader."""
        error = self.errors.get(address)
        if error and error.is_refusal:
            return refused(address, error.text)
        reason = f": {error.text}" if error else ""
        what = f"Kafka broker {address}, its leader, is unavailable{reason}"
        return LogError(what if address else "it has no leader")

    def close(self) -> None:
        """Close the connection."""
        with self._making:
            self._is_closed, self._admin = True, None
        with self._probing:
            self._probe = None

    def _asking(self) -> Any:
        with self._making:
            if self._is_closed:
                raise Unanswered(f"the connection to Kafka at {self.servers} was closed")
            if self._admin is None:
                self._admin = self._connected()
            return self._admin

    def _connected(self) -> Any:
        consumers_own = ("enable.", "fetch.", "queued.", "auto.offset", "max.partition", "isolation.", "check.", "stat")
        options = {k: v for k, v in self._options.items() if not k.startswith(consumers_own)}
        # Requests wait for a controller, and a broker that has just started knows none: refresh metadata soon.
        options |= {"topic.metadata.refresh.interval.ms": "1000"}
        return self._made(ck_admin.AdminClient, {**options, "error_cb": self._on_error})

    def _made(self, kind: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
        try:
            return kind(options)
        except (ck.KafkaException, ValueError, TypeError) as error:
            raise UsageError(with_sources(f"librdkafka refuses the options for Kafka: {self._text(error)}")) from error

    def _on_error(self, error: Any) -> None:
        text = self._clean(error.str())
        address = text.partition(": ")[0].rpartition("/")[0].rpartition("/")[2]  # of PROTOCOL://ADDRESS/NODE: error
        is_refusal = error.code() in _REFUSALS or (error.code() == _E._SSL and NOT_TRUSTED in text)
        if error.code() != _E._ALL_BROKERS_DOWN and (address in self.errors or len(self.errors) < MOST_ERRORS):
            self.errors[address] = BrokerError(time.monotonic(), text, is_refusal)

    def _described(self, future: Future[Any], asked: Any) -> Described | LogError:
        try:
            found = future.result()
        except ck.KafkaException as error:
            if error.args[0].code() > 0:  # the controller's own; librdkafka's are negative
                self.is_accepted, self.is_mute = True, False
            if error.args[0].code() in UNKNOWN_TOPIC:
                return NO_TOPIC
            return self._problem(error, asked)
        self.is_accepted, self.is_mute = True, False
        numbers = frozenset(part.id for part in found.partitions)
        named = {part.id: part.leader for part in found.partitions if part.leader and part.leader.host}
        leaders = {number: f"{leader.host}:{leader.port}" for number, leader in named.items()}
        return Described(topic_id_text(found.topic_id), numbers, leaders=leaders)

    def _problem(self, error: Exception, asked: Any = None) -> LogError:
        """The error, with the reason that the client `asked` knows, which is replaced when it was not answered."""
        inner = error.args[0] if error.args else None
        if isinstance(inner, _E) and inner.code() in _UNANSWERED:
            problem = self._unanswered(self._text(error))
            with self._making:  # librdkafka stays with a controller that hangs, also when there is another one by now
                if asked is not None and asked is self._admin:
                    self.is_mute, self._admin = True, self._connected()
            return problem
        return LogError(f"Kafka at {self.servers}: {self._text(error)}")

    def _unanswered(self, text: str) -> Unanswered:
        """The error of a request without an answer, with the likely reason."""
        if self.refusal:
            return Unanswered(str(refused(self.servers, self.refusal)))
        last = max(list(self.errors.values()), default=None)
        reason = f": {last.text}" if last is not None and time.monotonic() - last.at < REASON_S else ""
        return Unanswered(f"Kafka at {self.servers}: {text}{reason}")

    def _text(self, error: Exception) -> str:
        inner = error.args[0] if error.args else error
        return self._clean(inner.str() if isinstance(inner, _E) else str(error))

    def _clean(self, text: str) -> str:
        return " ".join(without_secrets(text, self._options).split())


def topic_id_text(found: Any) -> str:
    """A topic's id in Kafka's and ZooKeeper's form; empty for none.

    librdkafka's own text has `+` and `/` where Kafka's has `-` and `_`, and is all `A` for none.
    """
    text = "" if found is None else str(found).replace("+", "-").replace("/", "_")
    return text if text.strip("A") else ""


def _spec(what: int) -> Any:
    spec: Any = vars(ck_admin)["OffsetSpec"]  # missing in its stubs
    if what in (EARLIEST, LATEST):
        return spec.earliest() if what == EARLIEST else spec.latest()
    return spec.for_timestamp(what)

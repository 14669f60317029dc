"""The connection to Kafka that a log's lookups and its source share: the brokers' addresses, and the current client.

What ZooKeeper knows of Kafka is looked up in threads: its brokers, and its topics while no controller answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait

from coordinator.zk.errors import BadData, CoordinatorError
from coordinator.zk.store import Store
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

from ..base import LogError
from .client import KafkaClient
from .health import Health
from .requests import NO_TOPIC, Described, Pending, Unanswered, refused

FIND_AGAIN_S = 10.0

LOOKUP_S = 0.1
"""Seconds to wait for an answer: usual on a near network, and immediate where the servers are given."""

CREDENTIALS_RETRY_S = 30.0
"""Kafka throttles and counts failed authentications: frequent retries are of no use."""

ABSENT_S = 2.0
"""Seconds until brokers are looked for again where none was registered: those without ZooKeeper never are."""


class BrokerLookup:
    """Looks the servers up beside fetching: ZooKeeper may take seconds to answer, or fail. Not for several threads.

    :param find: returns the servers, or raises; may be slow.
    :ivar not_before: the time of the next lookup.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._lookup: Future[str] | None = None
        self.not_before = float("-inf")

    def found(self, now: float, wait_s: float | None = LOOKUP_S) -> str | None:
        """The result of a lookup, which is started when one is due; None without a new result.

        :param wait_s: seconds to wait for a started lookup; None waits until it ends.
        :raises CoordinatorError: the lookup's.
        """
        if self._lookup is None:
            if now < self.not_before:
                return None
            self.not_before = now + FIND_AGAIN_S
            lookup: Future[str] = Future()
            threading.Thread(target=self._look, args=(lookup,), name="kafka-lookup", daemon=True).start()
            self._lookup = lookup
            wait([lookup], wait_s)
        if not self._lookup.done():
            return None
        ended, self._lookup = self._lookup, None
        return ended.result()

    def _look(self, lookup: Future[str]) -> None:
        try:
            lookup.set_result(self._find())
        except BaseException as error:  # noqa: BLE001  re-raised by `found`
            lookup.set_exception(error)


class TopicRegistry:
    """Topics as brokers in ZooKeeper mode have registered them: their ids are known there while no controller answers.

    Reads the topics' znodes, each time in a thread of its own: ZooKeeper may take seconds to answer, or fail.

    :param open_store: opens a session in the ensemble of the topics' znodes.
    """

    def __init__(self, open_store: Callable[[], Store], brokers: Brokers) -> None:
        self._open_store = open_store
        self._brokers = brokers
        self._lock = threading.Lock()
        self._is_closed = False
        self._store: Store | None = None
        self._not_before = float("-inf")

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        """The topics as registered by now."""
        found: dict[str, Future[Described | LogError]] = {name: Future() for name in topics}
        threading.Thread(target=self._fill, args=(found,), name="kafka-registry", daemon=True).start()
        return Pending(found, lambda future: future.result(), self)

    def close(self) -> None:
        """End the session, or leave that to the thread that uses it."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._end_session()
            finally:
                self._lock.release()

    def _end_session(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _fill(self, wanted: dict[str, Future[Described | LogError]]) -> None:
        found: dict[str, Described | LogError]
        with self._lock:
            try:
                found = self._read(list(wanted))
            except Exception as error:  # noqa: BLE001  without an answer records stay unconfirmed
                self._end_session()
                found = dict.fromkeys(wanted, Unanswered(str(error)))
        if self._is_closed:
            self.close()
        for name, answer in found.items():
            wanted[name].set_result(answer)

    def _read(self, names: list[str]) -> dict[str, Described | LogError]:
        absent = Unanswered(f"no broker of Kafka is registered in {self._brokers.ids}")
        if self._is_closed or time.monotonic() < self._not_before:
            return dict.fromkeys(names, absent)
        if self._store is not None and self._store.lost:
            self._end_session()
        store = self._store = self._store or self._open_store()
        store.sync()
        listing = store.children(self._brokers.ids)
        if not listing or not listing.names:  # others than Kafka's brokers may have written these znodes
            self._not_before = time.monotonic() + ABSENT_S
            return dict.fromkeys(names, absent)
        nodes = store.get_many([self._brokers.topic(name) for name in names])
        found: dict[str, Described | LogError] = {}
        for name, node in zip(names, nodes, strict=True):
            found[name] = NO_TOPIC
            try:
                if node is not None:
                    topic = Topic.parse(self._brokers.topic(name), name, node.data, node.stat.czxid)
                    found[name] = Described(topic.id, frozenset(topic.partitions))
            except BadData as error:
                found[name] = LogError(str(error))
        return found


class Connection:
    """The current client. Whoever uses it holds `lock`, except for requests, which any thread may send.

    :param find: returns the bootstrap servers, `host:port,host:port`; called again while none of them answers.
    :param options: librdkafka's; see `kafka_options`.
    :ivar current: the current client, if there is one.
    :ivar closed: set when the log was closed.
    :raises UsageError: when librdkafka refuses them.
    """

    def __init__(
        self, find: Callable[[], str], options: Mapping[str, str], registry: TopicRegistry | None = None
    ) -> None:
        self._registry = registry
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self.health = Health()
        self._lookup = BrokerLookup(find)
        self._options = options
        self.current: KafkaClient | None = None
        self._refused: tuple[float, LogError] | None = None
        self._open(time.monotonic(), None)

    def client(self, now: float, is_away: bool = False) -> KafkaClient | None:
        """The current client, another one than before when the brokers have moved; None while no broker is known.

        :param is_away: whether brokers do not answer: their addresses are looked up again.
        :raises LogError: when the brokers have refused the credentials, or the log is closed.
        """
        with self.lock:
            if self.closed.is_set():
                raise LogError("this log was closed")
            if self._refused is not None:
                if now < self._refused[0]:
                    raise self._refused[1].with_traceback(None)
                self._refused = None
            if self.current is None or self.health.since is not None or is_away:
                self._open(now)
            return self.current

    def requests(self, has_failed: bool = False) -> KafkaClient:
        """The client, for requests.

        :param has_failed: whether the last one has failed: not all brokers may refuse the credentials.
        :raises LogError: as `client`, and when no broker is known.
        """
        with self.lock:
            client = self.client(time.monotonic())
            if client is None:
                raise LogError("no broker of Kafka is known yet")
            if has_failed and client.refusal and not (client.is_reading or client.is_accepted):
                client.failed += 1
                if client.failed > (self._registry is not None):  # whose topics are tried at other brokers first
                    raise self.refuse(client, time.monotonic())
            return client

    def refuse(self, client: KafkaClient, now: float) -> LogError:
        """Close a client whose credentials all brokers refuse, which ends its retries; the error for all partitions."""
        problem = refused(client.servers, client.refusal)
        self._refused = (now + CREDENTIALS_RETRY_S, problem)
        self.discard()
        return problem

    def discard(self) -> None:
        """Close the client, with all records that it has prefetched; the next call of `client` opens another one."""
        with self.lock:
            client, self.current = self.current, None
            self._lookup.not_before = float("-inf")
            if client is not None:
                client.close()

    def close(self) -> None:
        """Close the connection."""
        self.closed.set()
        self.discard()
        if self._registry is not None:
            self._registry.close()

    def _open(self, now: float, wait_s: float | None = LOOKUP_S) -> None:
        try:
            servers = self._lookup.found(now, wait_s)
        except CoordinatorError as error:
            if self.current is None:
                self.health.all_down("", str(error), now)
            return
        if servers is not None and (self.current is None or servers != self.current.servers):
            self.discard()
            registry = None if self._registry is None else self._registry.describe
            self.current = KafkaClient(servers, self._options, registry)

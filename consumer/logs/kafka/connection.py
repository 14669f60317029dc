"""The connection to Kafka that a log's lookups and its source share: the brokers' addresses, and the current client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from coordinator.zk.errors import CoordinatorError

from ..base import LogError
from .client import KafkaClient
from .health import Health
from .registry import TopicRegistry
from .requests import refused

FIND_AGAIN_S = 10.0

LOOKUP_S = 0.1
"""Seconds to wait for an answer: usual on a near network, and immediate where the servers are given."""

CREDENTIALS_RETRY_S = 30.0
"""Kafka throttles and counts failed authentications: frequent retries are of no use."""


class BrokerLookup:
    """Looks the servers up beside fetching: ZooKeeper may take seconds to answer, or fail. Not for several threads.

    :param find: returns the servers, or raises; may be slow.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._lookup: Future[str] | None = None
        self._not_before = float("-inf")

    def at_once(self) -> None:
        """Allow the next lookup at once."""
        self._not_before = float("-inf")

    def found(self, now: float, wait_s: float | None = LOOKUP_S) -> str | None:
        """The result of a lookup, which is started when one is due; None without a new result.

        :param wait_s: seconds to wait for a started lookup; None waits until it ends.
        :raises CoordinatorError: the lookup's.
        """
        if self._lookup is None:
            if now < self._not_before:
                return None
            self._not_before = now + FIND_AGAIN_S
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
                self._lookup.at_once()
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
            self._lookup.at_once()
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
        if servers is None or (self.current is not None and servers == self.current.servers):
            return
        self.discard()
        self.current = KafkaClient(servers, self._options, self._registry)

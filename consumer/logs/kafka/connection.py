"""The connection to Kafka that a log's lookups and its source share: the current client, and the brokers' health.

What ZooKeeper knows of Kafka is looked up in threads: its brokers, and its topics while no controller answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from zk_group.coordinator.zk.errors import BadData, CoordinatorError
from zk_group.coordinator.zk.store import Sessions, StoreFactory
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.records import Topic

from ..base import LogError
from .client import SILENT_S, BrokerStats, KafkaClient, Place
from .requests import NO_TOPIC, Described, Pending, Unanswered, refused

log = logging.getLogger(__name__)

T = TypeVar("T")

FIND_AGAIN_S = 10.0

LOOKUP_S = 0.1
"""Seconds to wait for an answer: usual on a near network, and immediate where the servers are given."""

CREDENTIALS_RETRY_S = 30.0
"""Kafka throttles and counts failed authentications: frequent retries are of no use."""

ABSENT_S = 2.0
"""Seconds until brokers are looked for again where none was registered: those without ZooKeeper never are."""

UNAVAILABLE_S = 5.0
"""Seconds after which the leader of a partition is reported: a restart, or the end of a connection, may be shorter."""


def in_thread(name: str, find: Callable[[], T]) -> Future[T]:
    """Call `find` in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(find())
        except BaseException as error:  # noqa: BLE001  re-raised by `result`
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class TopicRegistry:
    """Topics as brokers in ZooKeeper mode have registered them: their ids are known there while no controller answers.

    Reads the topics' znodes, each time in a thread of its own: ZooKeeper may take seconds to answer, or fail.

    :param open_store: opens a session in the ensemble of the topics' znodes.
    """

    def __init__(self, open_store: StoreFactory, brokers: Brokers) -> None:
        self._sessions = Sessions(open_store)
        self._brokers = brokers
        self._lock = threading.Lock()
        self._is_closed = False
        self._not_before = float("-inf")

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        """The topics as registered by now."""
        names = list(topics)
        future = in_thread("kafka-registry", lambda: self._found(names))
        return Pending([future], future.result)

    def close(self) -> None:
        """End the session, or leave that to the thread that uses it."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._sessions.close()
            finally:
                self._lock.release()

    def _found(self, names: list[str]) -> dict[str, Described | LogError]:
        found: dict[str, Described | LogError]
        with self._lock:
            try:
                found = self._read(names)
            except Exception as error:  # noqa: BLE001  without an answer records stay unconfirmed
                self._sessions.close()
                found = dict.fromkeys(names, Unanswered(str(error)))
        if self._is_closed:
            self.close()
        return found

    def _read(self, names: list[str]) -> dict[str, Described | LogError]:
        absent = Unanswered(f"no broker of Kafka is registered in {self._brokers.ids}")
        if self._is_closed or time.monotonic() < self._not_before:
            return dict.fromkeys(names, absent)
        store = self._sessions.store()
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


class Health:
    """Outages of all brokers, and of leaders of partitions, from librdkafka's statistics: each is logged once, and its
    end once. Times are those of one monotonic clock, in seconds.

    :ivar outages: number of outages of all brokers.
    :ivar since: begin of the current one; None without one.
    :ivar unavailable: assigned partitions whose leader is unavailable while others are up -> its address; "" for none.
    :ivar leaders: the address of each partition's leader, also as metadata names it; "" for none.
    """

    def __init__(self) -> None:
        self.outages = 0
        self.since: float | None = None
        self.unavailable: Mapping[Place, str] = {}
        self.leaders: dict[Place, str] = {}
        self._waiting: dict[Place, float] = {}

    def all_down(self, servers: str, why: str, now: float) -> None:
        """No broker is up, or none is known."""
        self.restart()
        if self.since is None:
            self.since = now
            self.outages += 1
            log.warning("all Kafka brokers down, retrying: servers=%s outages=%d reason=%s", servers, self.outages, why)

    def end_outage(self, servers: str, now: float) -> None:
        """A broker is up."""
        if self.since is not None:
            log.info("Kafka brokers available: servers=%s away_s=%.1f", servers, now - self.since)
            self.since = None

    def restart(self) -> None:
        """Another client has no connections yet."""
        self.unavailable, self._waiting = {}, {}

    def update(
        self,
        servers: str,
        brokers: Sequence[BrokerStats],
        assigned: Collection[Place],
        reasons: Mapping[str, str],
        now: float,
    ) -> None:
        """Apply one event.

        :param assigned: the partitions that are fetched.
        :param reasons: the last error of each address.
        """
        silent = {each.address: each.silent_s for each in brokers if each.silent_s >= SILENT_S}
        reasons = {**reasons, **{address: f"no answer for {silent_s:.0f} s" for address, silent_s in silent.items()}}
        up = [broker for broker in brokers if broker.is_up]
        if not up and assigned and not any(broker.is_unused for broker in brokers):
            return self.all_down(servers, next(iter(reasons.values()), "not connected"), now)
        if up:
            self.end_outage(servers, now)
        named = {place: broker.address for broker in brokers for place in broker.leads}
        led = {place for broker in up for place in broker.leads}
        self.leaders = {place: named.get(place) or self.leaders.get(place, "") for place in assigned}
        new = [place for place in assigned if place not in led]
        self._waiting = {place: self._waiting.get(place, now - silent.get(self.leaders[place], 0.0)) for place in new}
        before = set(self.unavailable.values())
        late = (place for place, since in self._waiting.items() if now - since >= UNAVAILABLE_S)
        self.unavailable = {place: self.leaders[place] for place in late}
        after = set(self.unavailable.values())
        for address in sorted(after - before):
            reason = reasons.get(address, "not connected") if address else "the partition has no leader"
            log.warning("Kafka broker unavailable, retrying: broker=%s reason=%s", address or "none", reason)
        for address in sorted(before - after):
            if any(broker.address == address for broker in up):
                log.info("Kafka broker available: broker=%s", address)
            else:
                log.info("Kafka broker replaced by other leaders: broker=%s", address or "none")


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
        self._find = find
        self._lookup: Future[str] | None = None
        self._lookup_after = float("-inf")
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
            self._lookup_after = float("-inf")
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
            servers = self._found(now, wait_s)
        except CoordinatorError as error:
            if self.current is None:
                self.health.all_down("", str(error), now)
            return
        if servers is not None and (self.current is None or servers != self.current.servers):
            self.discard()
            registry = None if self._registry is None else self._registry.describe
            self.current = KafkaClient(servers, self._options, registry)

    def _found(self, now: float, wait_s: float | None) -> str | None:
        """The servers that a lookup has found, which is started when one is due; None without a new result.

        It runs beside fetching: ZooKeeper may take seconds to answer, or fail.

        :param wait_s: seconds to wait for a started lookup; None waits until it ends.
        :raises CoordinatorError: the lookup's.
        """
        if self._lookup is None:
            if now < self._lookup_after:
                return None
            self._lookup_after = now + FIND_AGAIN_S
            self._lookup = in_thread("kafka-lookup", self._find)
            wait([self._lookup], wait_s)
        if not self._lookup.done():
            return None
        ended, self._lookup = self._lookup, None
        return ended.result()

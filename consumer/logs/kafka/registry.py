"""Topics as brokers in ZooKeeper mode have registered them: their ids are known there while no controller answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from coordinator.zk.errors import BadData
from coordinator.zk.store import Store
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

from ..base import LogError
from .requests import NO_TOPIC, Described, Pending, Unanswered

ABSENT_S = 2.0
"""Seconds until brokers are looked for again where none was registered: those without ZooKeeper never are."""


class TopicRegistry:
    """Reads the topics' znodes, each time in a thread of its own: ZooKeeper may take seconds to answer, or fail.

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
            if node is None:
                found[name] = NO_TOPIC
                continue
            try:
                topic = Topic.parse(self._brokers.topic(name), name, node.data, node.stat.czxid)
            except BadData as error:
                found[name] = LogError(str(error))
                continue
            found[name] = Described(topic.id, frozenset(topic.partitions))
        return found

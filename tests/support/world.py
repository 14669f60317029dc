"""Coordinators and consumers in threads of the test, on a real ZooKeeper: real parts, quick to start."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from coordinator.config import CoordinatorConfig
from coordinator.service import CoordinatorService
from coordinator.topics import create_topic
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.kazoo_store import kazoo_factory, open_kazoo
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import Brokers, GroupPaths
from coordinator.zk.records import Channel, Topic, parsed_channel
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.state import GroupState
from coordinator.zk.store import Store
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually

SESSION_MS = 2000


class PollingConsumer(Callbacks):
    """A consumer whose thread polls and commits until it is closed; it remembers what happened."""

    def __init__(
        self,
        zk: str,
        group: str,
        name: str,
        topics: dict[str, int],
        pattern: str = "static",
        log: MemoryLog | None = None,
        opener: Any = None,
        **options: Any,
    ) -> None:
        options.setdefault("session_timeout_ms", SESSION_MS)
        config = ConsumerConfig(zk=zk, group=group, consumer=name, **options)
        self.name = name
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.records: list[tuple[TopicPartition, int]] = []
        self.error: BaseException | None = None
        self.is_stuck = threading.Event()
        self.consumer = Consumer(config, Subscription(topics, pattern), self, log or MemoryLog(), opener)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"poll-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.is_stuck.is_set():
                    self._stop.wait(0.01)
                    continue
                found = self.consumer.poll(50)
                if found:
                    with suppress(CoordinatorError):
                        self.consumer.commit()
                        self.records += [(p, record.offset) for p, records in found.items() for record in records]
        except BaseException as error:  # noqa: BLE001  a test looks at it
            self.error = error

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", partitions))

    @property
    def held(self) -> frozenset[TopicPartition]:
        return self.consumer.assignment()

    def close(self) -> None:
        self._stop.set()
        self.thread.join(10)
        self.consumer.close()

    def vanish(self) -> None:
        """End without a word to the group: the session is closed, nothing else is written."""
        self._stop.set()
        self.thread.join(10)
        store = self.consumer.member.store
        if store is not None:
            store.close()


class World:
    """A ZooKeeper chroot with everything that a test starts in it."""

    def __init__(self, zk: str) -> None:
        self.zk = zk
        self.brokers = Brokers()
        self.store: Store = open_kazoo(zk, 10_000)
        self._services: list[tuple[CoordinatorService, threading.Thread]] = []
        self._consumers: list[PollingConsumer] = []

    # ---- starting things

    def coordinator(self, node: str = "", zk: str | None = None, **options: Any) -> CoordinatorService:
        options.setdefault("session_timeout_ms", SESSION_MS)
        options.setdefault("sweep_interval_ms", 60_000)
        config = CoordinatorConfig(zk=zk or self.zk, node=node or f"node-{secrets.token_hex(3)}", **options)
        factory = kazoo_factory(config.zk, config.session_timeout_ms)
        service = CoordinatorService(config, factory, ThreadRuntime())
        thread = threading.Thread(target=service.run, name=config.node, daemon=True)
        thread.start()
        self._services.append((service, thread))
        return service

    def stop_coordinator(self, service: CoordinatorService) -> None:
        service.stop()
        next(thread for other, thread in self._services if other is service).join(10)

    def topic(self, name: str, partitions: int) -> Topic:
        return create_topic(self.store, self.brokers, name, partitions)

    def consumer(self, group: str, name: str, topics: dict[str, int], **options: Any) -> PollingConsumer:
        made = PollingConsumer(options.pop("zk", self.zk), group, name, topics, **options)
        self._consumers.append(made)
        return made

    # ---- looking

    def state(self, group: str) -> GroupState:
        node = self.store.get(GroupPaths(group).state)
        return GroupState.parse("state", node.data) if node else GroupState()

    def channel(self, group: str, consumer: str) -> Channel:
        node = self.store.get(GroupPaths(group).channel(consumer))
        return parsed_channel("channel", node.data if node else b"")

    def stable(self, group: str, members: int, timeout_s: float = 15.0, above: int = 0) -> GroupState:
        """The group's state, once it is Stable with so many members, in a generation above `above`."""

        def look() -> GroupState:
            state = self.state(group)
            assert (state.state, len(state.target)) == ("Stable", members), state
            assert state.generation > above, state
            return state

        return eventually(look, timeout_s, f"{group} is Stable with {members} members")

    def owners(self, group: str) -> dict[TopicPartition, str]:
        paths = GroupPaths(group)
        found: dict[TopicPartition, str] = {}
        topics = self.store.children(paths.owners)
        for topic in topics.names if topics else []:
            listing = self.store.children(paths.owners_of(topic))
            for number in listing.names if listing else []:
                node = self.store.get(paths.owner(topic, int(number)))
                if node is not None:
                    found[TopicPartition(topic, int(number))] = node.data.decode()
        return found

    def close(self) -> None:
        for consumer in self._consumers:
            with suppress(Exception):
                consumer.close()
        for service, thread in self._services:
            service.stop()
            thread.join(10)
        self.store.close()


@contextmanager
def a_world(zk: str) -> Iterator[World]:
    """A world that is taken down whatever happens."""
    world = World(zk)
    try:
        yield world
    finally:
        world.close()

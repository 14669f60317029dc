"""Topics as brokers have registered them: what a consumer confirms topics with while no controller answers."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from consumer.logs.base import LogError
from consumer.logs.kafka.connection import ABSENT_S, TopicRegistry
from consumer.logs.kafka.requests import NO_TOPIC, Described, Unanswered
from coordinator.admin.topics import create_topic
from coordinator.zk.errors import StoreError
from coordinator.zk.store import Create, Store
from coordinator.zk.znodes.paths import Brokers
from tests.property.tree import MemoryTree
from tests.support.wait import eventually

BROKERS = Brokers()


class Ensemble:
    """A tree, and how often a session was opened in it."""

    def __init__(self, *, has_brokers: bool = True) -> None:
        self.tree = MemoryTree()
        self.opened = 0
        store = self.tree.open()
        self.id = create_topic(store, BROKERS, "flights", 2).id
        if has_brokers:
            self.register(store)

    def register(self, store: Store) -> None:
        for path in (BROKERS.ids, BROKERS.id("0")):
            store.commit([Create(path, b"{}")])

    def open(self) -> Store:
        self.opened += 1
        return self.tree.open()


def described(registry: TopicRegistry, *topics: str) -> dict[str, Described | LogError]:
    pending = registry.describe(topics)
    assert pending.wait(10)
    return pending.results()


def test_topics_are_described_as_they_are_registered_in_one_session() -> None:
    ensemble = Ensemble()
    registry = TopicRegistry(ensemble.open, BROKERS)

    for _ in range(2):
        found = described(registry, "flights", "no-such")
        assert found == {"flights": Described(ensemble.id, frozenset({0, 1})), "no-such": NO_TOPIC}
    assert ensemble.opened == 1


def test_topics_without_registered_brokers_are_not_described_and_rarely_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were written by others, for example by a sync from Kafka without ZooKeeper."""
    now = 1000.0
    monkeypatch.setattr("consumer.logs.kafka.connection.time", SimpleNamespace(monotonic=lambda: now))
    ensemble = Ensemble(has_brokers=False)
    registry = TopicRegistry(ensemble.open, BROKERS)

    for _ in range(5):
        assert "no broker of Kafka is registered" in str(described(registry, "flights")["flights"])
    assert ensemble.opened == 1

    ensemble.register(ensemble.tree.open())
    now += ABSENT_S
    assert described(registry, "flights") == {"flights": Described(ensemble.id, frozenset({0, 1}))}


def test_session_that_does_not_answer_is_replaced_by_another() -> None:
    ensemble = Ensemble()

    def opened() -> Store:
        store = ensemble.open()
        if ensemble.opened == 1:
            raise StoreError("no answer")
        return store

    registry = TopicRegistry(opened, BROKERS)

    assert isinstance(described(registry, "flights")["flights"], LogError)
    assert isinstance(described(registry, "flights")["flights"], Described)


def test_unreadable_topic_is_not_described_and_others_are_in_the_same_session() -> None:
    ensemble = Ensemble()
    ensemble.tree.put(BROKERS.topic("bad"), b"nonsense")
    registry = TopicRegistry(ensemble.open, BROKERS)

    for _ in range(2):
        found = described(registry, "flights", "bad")
        assert isinstance(found["flights"], Described)
        assert BROKERS.topic("bad") in str(found["bad"])
    assert ensemble.opened == 1


def test_closed_registry_opens_no_session_and_ends_the_one_that_is_in_use() -> None:
    ensemble, stores = Ensemble(), list[Store]()

    def opened() -> Store:
        stores.append(ensemble.open())
        registry.close()
        return stores[-1]

    registry = TopicRegistry(opened, BROKERS)

    described(registry, "flights")
    assert isinstance(described(registry, "flights")["flights"], LogError)
    eventually(lambda: stores[0].lost, 10, "its session has ended")
    assert len(stores) == 1


def test_lost_session_is_ended_before_another_is_opened() -> None:
    ensemble, stores = Ensemble(), list[Mock]()

    def opened() -> Store:
        stores.append(Mock(wraps=ensemble.open(), lost=False))
        return stores[-1]

    registry = TopicRegistry(opened, BROKERS)
    described(registry, "flights")
    stores[0].lost = True
    described(registry, "flights")

    assert [store.close.called for store in stores] == [True, False]


def test_failure_of_any_kind_is_an_answer() -> None:
    def opened() -> Store:
        raise RuntimeError("can't start new thread")

    found = described(TopicRegistry(opened, BROKERS), "flights")["flights"]
    assert isinstance(found, Unanswered), "lookups of other topics wait for nothing"
    assert "can't start new thread" in str(found)

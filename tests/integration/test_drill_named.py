"""A drill on a group in the operator's own path: what it leaves alone there, and where it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.drills.evidence import znodes
from coordinator.drills.named import Named
from coordinator.zk.kazoo_store import open_kazoo
from coordinator.zk.paths import COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.store import Store

ORDERS = GroupPaths("orders")


@pytest.fixture
def ground(zk: str) -> Named:
    return Named(zk, 2000, "orders")


@pytest.fixture
def store(zk: str) -> Iterator[Store]:
    store = open_kazoo(zk, 10_000)
    yield store
    store.close()


def make(zk: str, *paths: str) -> None:
    for path in paths:
        open_kazoo(f"{zk}{path}", 10_000).close()


def test_the_evidence_has_nothing_of_the_neighbours(ground: Named, zk: str, store: Store) -> None:
    make(zk, "/neighbour/secret", ORDERS.state, COORDINATOR_EPOCH, GroupPaths("orders2").state)

    assert list(znodes(store, ground.shown)) == [COORDINATOR_EPOCH, ORDERS.root, ORDERS.state]

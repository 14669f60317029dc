"""A drill on a group in the operator's own path: what it leaves alone there, and where it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.drills.evidence import znodes
from coordinator.drills.named import Named
from coordinator.zk.errors import UsageError
from coordinator.zk.kazoo_store import open_kazoo
from coordinator.zk.paths import COORDINATOR_EPOCH, Brokers, GroupPaths
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


@pytest.mark.parametrize(
    "stands",
    [
        ORDERS.root, ORDERS.state, ORDERS.rebalance(1), ORDERS.channel("c1"), ORDERS.offsets, ORDERS.id("c1"),
        ORDERS.query("q"), ORDERS.segments, ORDERS.pool("p"),
    ],
)  # fmt: skip
def test_a_group_of_which_anything_stands_is_refused_and_nothing_of_it_is_lost(
    ground: Named, zk: str, store: Store, stands: str
) -> None:
    make(zk, stands)

    with pytest.raises(UsageError, match="group orders exists: name one that does not"), ground.cleared("", False):
        pytest.fail("it has begun")

    assert store.get(stands) is not None


def test_a_path_where_a_kafka_is_registered_is_refused_before_anything_is_written(ground: Named, zk: str) -> None:
    make(zk, f"{Brokers().brokers_path}/ids/0")

    with ground.opened() as store, pytest.raises(UsageError, match="Kafka"):
        ground.require_nobody(store)


def test_the_whole_group_goes_in_the_end_and_the_epoch_stays(ground: Named, zk: str, store: Store) -> None:
    make(zk, COORDINATOR_EPOCH)

    with ground.cleared("", False):
        make(zk, ORDERS.id("c1"), ORDERS.rebalance(3))

    assert store.get(ORDERS.root) is None
    assert store.get(COORDINATOR_EPOCH) is not None

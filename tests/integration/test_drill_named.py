"""A drill on a group in the operator's own path: what it leaves alone there, and where it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Store
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, DRILL, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord
from zk_group.drills.base.processes import NotReached
from zk_group.drills.environments.external import NamedGroup
from zk_group.drills.evidence.files import znodes
from zk_group.drills.scenarios.ensembles import delete_coordinator
from zk_group.drills.testbed.testbed import Stage

pytestmark = pytest.mark.real_zookeeper("a drill opens sessions by itself")

ORDERS = GroupPaths("orders")


@pytest.fixture
def environment(zk: str) -> NamedGroup:
    return NamedGroup(zk, 2000, "orders")


def make(zk: str, *paths: str) -> None:
    for path in paths:
        open_kazoo(f"{zk}{path}", 10_000).close()


def test_the_evidence_has_nothing_of_the_neighbours(environment: NamedGroup, zk: str, store: Store) -> None:
    make(zk, "/neighbour/secret", ORDERS.state, COORDINATOR_EPOCH, GroupPaths("orders2").state)

    assert list(znodes(store, environment.shown)) == [COORDINATOR_EPOCH, ORDERS.root, ORDERS.state]


@pytest.mark.parametrize(
    "stands",
    [
        ORDERS.root, ORDERS.state, ORDERS.rebalance(1), ORDERS.channel("c1"), ORDERS.offsets, ORDERS.id("c1"),
        ORDERS.query("q"), ORDERS.segments, ORDERS.pool("p"),
    ],
)  # fmt: skip
def test_group_with_znodes_is_refused(environment: NamedGroup, zk: str, store: Store, stands: str) -> None:
    make(zk, stands)

    with pytest.raises(UsageError, match="group orders exists: give another name"), environment.cleared("", False):
        pytest.fail("it has begun")

    assert store.get(stands) is not None


def test_path_where_a_kafka_is_registered_is_refused_before_any_write(environment: NamedGroup, zk: str) -> None:
    make(zk, f"{Brokers().root}/ids/0")

    with environment.opened() as store, pytest.raises(UsageError, match="Kafka"):
        environment.require_no_members(store)


def test_group_is_deleted_after_the_drill_and_the_epoch_stays(environment: NamedGroup, zk: str, store: Store) -> None:
    make(zk, COORDINATOR_EPOCH)

    with environment.cleared("", False):
        make(zk, ORDERS.id("c1"), ORDERS.rebalance(3))

    assert store.get(ORDERS.root) is None
    assert store.get(COORDINATOR_EPOCH) is not None


@pytest.mark.parametrize("group", ["orders", "others"])
def test_second_drill_at_once_is_refused(environment: NamedGroup, zk: str, store: Store, group: str) -> None:
    second = NamedGroup(zk, 2000, group)

    with environment.cleared("", False):
        with pytest.raises(UsageError, match="another drill runs"), second.cleared("", False):
            pytest.fail("it has begun")
        make(zk, ORDERS.state)
        with second.opened() as root, pytest.raises(UsageError, match="another drill runs"):
            second.require_no_members(root)
        assert store.get(ORDERS.state) is not None

    with second.cleared("", False):
        assert store.get(DRILL) is not None
    assert store.get(DRILL) is None


@pytest.mark.parametrize("is_ours", [True, False])
def test_only_the_drills_own_coordinator_is_deleted(zk: str, store: Store, tmp_path: Path, is_ours: bool) -> None:
    make(zk, CONSUMERS)
    store.commit([Create(COORDINATOR, CoordinatorRecord("node-1", "h", 1).to_bytes(), ephemeral=True)])
    session = store.session_id if is_ours else store.session_id + 1
    event = {"at": 1.0, "who": "node-1#7", "event": "elected", "session": session, "epoch": 1}
    (tmp_path / "node-1#7.jsonl").write_text(json.dumps(event) + "\n")
    ours = SimpleNamespace(store=store, histories=tmp_path, fault=lambda kind, **hit: 0.0)

    if is_ours:
        delete_coordinator(cast("Stage", ours), "node-1")
    else:
        with pytest.raises(NotReached, match="the znode is not deleted"):
            delete_coordinator(cast("Stage", ours), "node-1")

    assert (store.get(COORDINATOR) is None) is is_ours

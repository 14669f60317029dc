"""Fixtures of most of these tests, and the choice of virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from _pytest.runner import runtestprotocol

from tests.support.client_side import HandStage
from tests.support.clients import fresh_chroot
from tests.support.event_group import EventGroup
from tests.support.hand import ManualStage, a_stage
from tests.support.hand_polled import HandPolled, Polling
from tests.support.proxy import Proxy
from tests.support.queries import QueryBench
from tests.support.region import Counting, CountingRegion, Operating, OperatingRegion, RegionBench
from tests.support.virtual_time import HOSTS, VirtualTime
from tests.support.world import World, a_world
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store

REAL = {"zookeeper", "ensemble3", "kafka", "sasl_server"}
"""Fixtures that are real servers."""

VIRTUAL = pytest.StashKey[VirtualTime]()
MODELLED = "modelled"


def is_virtual(item: pytest.Item) -> bool:
    """Whether a test runs in virtual time: each does that needs a ZooKeeper, and nothing that is not modelled."""
    kinds = getattr(item, "callspec", None)
    if kinds is not None and "zk" in kinds.params:
        return bool(kinds.params["zk"] == MODELLED)
    names = set(getattr(item, "fixturenames", ()))
    return "zk" in names and not names & REAL and item.get_closest_marker("real_zookeeper") is None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The contract of the two ZooKeepers: these tests pass on both."""
    if metafunc.definition.get_closest_marker("both_zookeepers") is not None:
        metafunc.parametrize("zk", [MODELLED, "real"], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_virtual(item):
        item.add_marker(pytest.mark.virtual_time)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Fixtures and test are one thread of virtual time. Its seed is drawn from the test's name."""
    if not is_virtual(item):
        return None
    item.stash[VIRTUAL] = VirtualTime(crc32(item.nodeid.encode()) + item.config.getoption("seed"))
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    item.stash[VIRTUAL].run(lambda: runtestprotocol(item, nextitem=nextitem))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    del item.stash[VIRTUAL]
    return True


@pytest.fixture
def zk(request: pytest.FixtureRequest) -> Iterator[str]:
    """A connect string whose chroot exists, is empty, and is this test's alone."""
    virtual = request.node.stash.get(VIRTUAL, None)
    if virtual is None:
        yield fresh_chroot(request.getfixturevalue("zookeeper").hosts)
    else:
        yield HOSTS
        assert virtual.crashed == []


@pytest.fixture
def world(zk: str) -> Iterator[World]:
    """Coordinators and consumers in threads."""
    with a_world(zk) as world:
        yield world


@pytest.fixture
def served(world: World) -> World:
    """With a coordinator, and topic `t` of four partitions."""
    world.coordinator()
    world.topic("t", 4)
    return world


@pytest.fixture
def polled(world: World) -> Iterator[Polling]:
    """Makes consumers that the test polls; they end with it."""
    with ExitStack() as closing:

        def make(name: str = "c1", *given: Any, **options: Any) -> HandPolled:
            made = HandPolled(world, name, *given, **options)
            closing.callback(made.close)
            return made

        yield make


@pytest.fixture
def store(zk: str) -> Iterator[Store]:
    """A session of its own, of 10 s."""
    store = open_kazoo(zk, 10_000)
    yield store
    store.close()


@pytest.fixture
def r(world: World) -> Iterator[CountingRegion]:
    """Region `r` of members that poll; they end with the test."""
    with closing(RegionBench(world, Counting)) as bench:
        yield bench


@pytest.fixture
def o(world: World) -> Iterator[OperatingRegion]:
    """The same of operators, with two threads each."""
    with closing(RegionBench(world, Operating)) as bench:
        yield bench


@pytest.fixture
def bench(zk: str, tmp_path: Path) -> Iterator[QueryBench]:
    """A group with segments that are made by hand, and runs of its queries."""
    with closing(QueryBench(zk, tmp_path)) as bench:
        yield bench


@pytest.fixture
def stage(world: World) -> Iterator[ManualStage]:
    """Coordinators and consumers whose every move the test makes, in the same chroot as `world`."""
    with a_stage(world.zk) as stage:
        yield stage


@pytest.fixture
def like() -> str:
    """The client-side strategy of a test that is about none."""
    return "range"


@pytest.fixture
def hands(world: World, stage: ManualStage, like: str) -> Iterator[HandStage]:
    """Topic `t` of six partitions; members with client-side assignment and coordinators that the test drives."""
    with closing(HandStage(world, stage, like)) as hands:
        hands.topic("t", 6)
        yield hands


@pytest.fixture
def joined(hands: HandStage) -> HandStage:
    """A group of c1, which leads, and c2; c3 has joined since the last turn."""
    hands.begins()
    hands.member("c3")
    return hands


@pytest.fixture
def zookeeper_proxy(zookeeper: Ensemble) -> Iterator[Proxy]:
    """A proxy in front of the server that `world` uses; held traffic is released before `world` closes."""
    with Proxy(zookeeper.hosts) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A server whose transaction log is a module's alone."""
    with Ensemble(tmp_path_factory.mktemp("logged"), EnsembleConfig(servers=1, tick_ms=200, durable=False)) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def large_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A server of a module's own with a larger heap."""
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False, heap_mb=768)
    with Ensemble(tmp_path_factory.mktemp("zookeeper-large"), config) as ensemble:
        yield ensemble


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """The contexts entered here are closed after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def group(zookeeper: Ensemble, world: World, tmp_path: Path) -> Iterator[EventGroup]:
    """A topic that is written to, and no process yet. All started processes are ended after the test, together."""
    with ExitStack() as processes:
        group = EventGroup(world, tmp_path, processes)
        yield group
        group.terminate()

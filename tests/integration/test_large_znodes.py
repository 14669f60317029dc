"""Znodes as large as ZooKeeper takes them: read in bounded requests and set aside; on a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clients import connected, fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.admin.health import read_status
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.session.kazoo_store import KazooStore
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.wire import MOST_PATHS, MOST_UNANSWERED, MultiRead
from zk_group.coordinator.zk.znodes.paths import GroupPaths

pytestmark = [
    pytest.mark.full("groups of the largest size"),
    pytest.mark.real_zookeeper("a server with a heap that one answer of 210 MB exceeds"),
]
PATHS = GroupPaths("g")
LARGE = b"x" * 1_000_000
COUNT = 210


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The data is in the heap already, and the last 500 transactions once more."""
    config = EnsembleConfig(servers=1, tick_ms=1000, durable=False, heap_mb=1000)
    with Ensemble(tmp_path_factory.mktemp("zookeeper-small"), config) as ensemble:
        yield ensemble


@pytest.fixture
def zk(small_server: Ensemble) -> str:
    """See `tests/conftest.py`."""
    return fresh_chroot(small_server.hosts)


def test_group_with_210_mb_of_stray_channels_goes_on_and_its_server_too(world: World) -> None:
    service = world.coordinator(sweep_interval_ms=3_000)
    world.topic("t", 4)
    log = MemoryLog(10)
    good = world.consumer("g", "good", {"t": 1}, log=log)
    world.stable("g", 1)
    assert service.term is not None
    epoch = service.term.epoch

    with connected(world.zk, session_timeout_s=20.0) as mallory:
        for number in range(COUNT):
            mallory.create(PATHS.channel(f"stray-{number:03}"), LARGE)

    late = world.consumer("g", "late", {"t": 1}, log=log)
    eventually(lambda: set(world.stable("g", 2).target) == {"good", "late"}, 60, "a turn has read all of them")
    eventually(lambda: len(service.problems.current()) == COUNT, 60, "they are reported")
    assert set(service.problems.current()) == {PATHS.channel(f"stray-{number:03}") for number in range(COUNT)}
    assert len(read_status(world.store, world.brokers).problems) == COUNT
    log.end += 50
    for consumer in (good, late):
        eventually(lambda c=consumer: any(offset == log.end - 1 for _, offset in c.records), 20, "it reads on")
    assert service.term is not None and service.term.epoch == epoch


def test_reads_are_never_of_more_znodes_than_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.store
    assert isinstance(store, KazooStore)
    paths = [f"/many/{number}" for number in range(5 * MOST_PATHS + 3)]
    store.commit([Create("/many"), *(Create(path, path.encode()) for path in paths)])
    asked, unanswered, most, ahead = list[int](), set[int](), 0, 0
    ask, get, children = store._ask, store._client.get_async, store._client.get_children_async

    def counted(send: Any) -> Any:
        def sent(path: str, **options: Any) -> Any:
            nonlocal most
            answer = send(path, **options)
            unanswered.add(id(answer))
            most = max(most, len(unanswered))
            kept.append(answer)
            return answer

        return sent

    def noted(request: MultiRead) -> Any:
        nonlocal ahead
        asked.append(len(request.paths))
        ahead = max(ahead, len(asked) - len(read))
        return ask(request)

    def waited(answer: Any) -> Any:
        read.append(answer)
        unanswered.discard(id(answer))
        return wait(answer)

    kept, read, wait = list[Any](), list[Any](), store._wait
    monkeypatch.setattr(store, "_ask", noted)
    monkeypatch.setattr(store, "_wait", waited)
    monkeypatch.setattr(store._client, "get_async", counted(get))
    monkeypatch.setattr(store._client, "get_children_async", counted(children))

    assert [node.data.decode() for node in store.get_many(paths) if node] == paths
    assert asked == [MOST_PATHS] * 5 + [3]
    assert ahead * MOST_PATHS == MOST_UNANSWERED
    assert [node.data.decode() for node in store.get_many(paths, watch=lambda path: None) if node] == paths
    assert [listing.names for listing in store.children_many(paths) if listing] == [[]] * len(paths)
    assert most == MOST_UNANSWERED
    answers = [store.send_get(path) for path in paths]
    assert sum(not answer.ready() for answer in kept) <= MOST_UNANSWERED
    assert [node.data.decode() for answer in answers if (node := answer())] == paths

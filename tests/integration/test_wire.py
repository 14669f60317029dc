"""`multi` and `multiRead` as this project writes them, on a real ZooKeeper, where kazoo would have helped."""

from __future__ import annotations

import pytest

from coordinator.zk.errors import Refused
from coordinator.zk.session import kazoo_store
from coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from coordinator.zk.store import Create, SetData
from coordinator.zk.wire import Failure
from tests.support.clients import connected, fresh_chroot
from tests.support.wait import eventually

pytestmark = pytest.mark.real_zookeeper("it is about the protocol")


@pytest.mark.parametrize("chroot", ["{}", "{}/", "//{}//a//", "{}/\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_chroot_may_be_written_in_any_way(zk: str, chroot: str) -> None:
    hosts, name = fresh_chroot(zk.split("/")[0]).split("/")
    store = open_kazoo(f"{hosts}/{chroot.format(name)}", 10_000)
    try:
        assert store.commit([Create("/a"), Create("/a/b-", b"1", sequential=True)]) == ["/a", "/a/b-0000000000"]
        found = store.get_many(["/a", "/a/b-0000000000", "/no"])
        assert [node.data if node else None for node in found] == [b"", b"1", None]
    finally:
        store.close()


def test_slashes_alone_are_no_chroot(zk: str) -> None:
    hosts, name = fresh_chroot(zk.split("/")[0]).split("/")
    store = open_kazoo(f"{hosts}//", 10_000)
    try:
        assert store.commit([Create(f"/{name}/a")]) == [f"/{name}/a"]
        assert None not in store.get_many([f"/{name}", f"/{name}/a"])
    finally:
        store.close()


def test_an_error_that_only_a_newer_server_knows_is_a_refusal_like_any_other() -> None:
    with pytest.raises(Refused, match="operation 1 on /b was refused: error -999"):
        kazoo_store._results([Create("/a"), Create("/b")], [Failure(0), Failure(-999)])


def test_missing_znodes_are_watched_without_a_wait_each_and_found_once_created(
    zk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand groups without a request took a second of every sweep."""
    store = open_kazoo(zk, 10_000)
    assert isinstance(store, KazooStore)
    asks, waits, happened, called = store._client.exists_async, store._wait, list[str](), list[str]()

    def exists_async(path: str, watch: object = None) -> object:
        if "asked" not in happened:
            with connected(zk) as other:
                other.create("/b", b"2")
        happened.append("asked")
        return asks(path, watch=watch)

    def wait(answer: object) -> object:
        happened.append("waited")
        return waits(answer)

    monkeypatch.setattr(store._client, "exists_async", exists_async)
    monkeypatch.setattr(store, "_wait", wait)
    try:
        found = store.get_many(["/a", "/b", "/c"], watch=called.append)
        assert [node.data if node else None for node in found] == [None, b"2", None]
        assert happened[3:9] == ["asked"] * 3 + ["waited"] * 3

        store.commit([Create("/a"), Create("/c"), SetData("/b", b"3")])
        eventually(lambda: sorted(called) == ["/a", "/b", "/c"], 5, "every watch is called, once")
    finally:
        store.close()

"""`multi` and `multiRead` as this project writes them, on a real ZooKeeper, where kazoo would have helped."""

from __future__ import annotations

import pytest

from coordinator.zk import kazoo_store
from coordinator.zk.errors import Refused
from coordinator.zk.kazoo_store import open_kazoo
from coordinator.zk.multi import Failure
from coordinator.zk.store import Create
from tests.support.clients import fresh_chroot


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

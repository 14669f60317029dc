"""The real store's additions to kazoo, on a real ZooKeeper, and outages in the logs.

`multi` and `multiRead` are as this project writes them. An outage is a line when it begins and when it ends, once each,
with its length and its cost.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connected, fresh_chroot
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import World, expire
from zk_group.coordinator.zk.errors import (
    ConnectionLost,
    Refused,
    SessionLost,
    StoreError,
    UsageError,
    ZooKeeperUnreachable,
)
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import TlsFiles, ZooKeeperAccess
from zk_group.coordinator.zk.session import kazoo_store
from zk_group.coordinator.zk.session.kazoo_client import Handler
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, kazoo_factory, open_kazoo
from zk_group.coordinator.zk.store import Check, Create, Delete, SetData, Store
from zk_group.coordinator.zk.wire import MOST_PATHS, Failure

pytestmark = pytest.mark.real_zookeeper("it is about kazoo")


class Interrupted:
    """kazoo's socket to itself; Ctrl-C is pressed during a write to it."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send(self, data: bytes) -> int:
        self._socket.send(data)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def test_a_record_of_writes_that_cannot_be_written_leaves_no_session(zk: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    before = threading.active_count()

    with pytest.raises(UsageError, match=r"^ZK_GROUP_WRITES_DIR: .*/file: "):
        open_kazoo(zk, 1000, writes_dir=str(file))

    eventually(lambda: threading.active_count() <= before, 5, "the session's threads have ended")


def test_an_interrupt_while_a_request_is_handed_over_is_not_lost(store: Store) -> None:
    connection = store._client._connection  # type: ignore[attr-defined]
    socket, connection._write_sock = connection._write_sock, Interrupted(connection._write_sock)

    with pytest.raises(KeyboardInterrupt):
        store.get("/")

    connection._write_sock = socket


def test_many_znodes_are_read_in_the_order_in_which_they_were_asked_for(store: Store) -> None:
    store.commit([Create("/many"), *(Create(f"/many/{n}", b"x" * n) for n in range(MOST_PATHS + 50))])
    paths = [f"/many/{n}" for n in reversed(range(MOST_PATHS + 60))]

    read = store.get_many(paths)

    assert [node.data if node else None for node in read] == [
        b"x" * n if n < MOST_PATHS + 50 else None for n in reversed(range(MOST_PATHS + 60))
    ]
    assert read == [store.get(path) for path in paths]
    assert store.get_many(paths, watch=lambda path: None) == read


def test_session_has_the_zxid_of_its_writes_and_reads(zk: str, store: Store) -> None:
    other = open_kazoo(zk, 4000)
    before = store.last_zxid
    store.commit([Create("/mine")])
    node = store.get("/mine")
    assert node is not None and before < node.stat.czxid <= store.last_zxid

    other.commit([Create("/another's")])
    assert other.last_zxid > store.last_zxid
    assert store.get("/another's") is not None and store.last_zxid >= other.last_zxid
    other.close()


def test_commit_returns_created_paths_and_the_refused_operation(store: Store) -> None:
    created = store.commit(
        [Create("/a"), Create("/a/n-", "é".encode(), sequential=True), SetData("/a", b"1"), Check("/a", 1)]
    )
    assert created == ["/a", "/a/n-0000000000", "", ""]

    for wrong, reason in (
        (Check("/a", 7), "bad-version"),
        (SetData("/b", b""), "no-node"),
        (Create("/a"), "node-exists"),
        (Delete("/a"), "not-empty"),
    ):
        with pytest.raises(Refused) as refused:
            store.commit([SetData("/a", b"2"), wrong, Create("/c")])
        assert (refused.value.index, refused.value.path, refused.value.reason) == (1, wrong.path, reason)

    node = store.get("/a")
    assert node is not None and node.data == b"1"
    assert store.get("/c") is None


class SlowServer:
    """Takes connections, and makes each a session after `takes_s`, as where its disk is slow."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> SlowServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # it ends
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        connection.recv(4096)
        connection.settimeout(self._takes_s)
        try:
            connection.recv(4096)  # nothing comes, or the end, when the client gives it up
        except TimeoutError:
            body = struct.pack("!iiqi16sb", 0, 10_000, 1, 16, bytes(16), 0)
            connection.sendall(struct.pack("!i", len(body)) + body)
            connection.settimeout(None)
            connection.recv(4096)  # whether there is the root
            body = struct.pack("!iqi68s", 1, 1, 0, bytes(68))
            connection.sendall(struct.pack("!i", len(body)) + body)
            connection.recv(4096)  # that the client goes


def test_slow_server_gets_most_of_the_connect_timeout_for_the_first_session() -> None:
    with SlowServer(2.5) as server:
        store = open_kazoo(server.address, 10_000, connect_timeout_s=6.0)

        assert (store.session_id, store.negotiated_timeout_s) == (1, 10.0)
        store.close()


@pytest.mark.parametrize(("requested_ms", "lines"), [(10_000, 0), (120_000, 1)])
def test_cut_session_timeout_is_a_line(requested_ms: int, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    with SlowServer(0.1) as server:
        open_kazoo(server.address, requested_ms).close()

    cut = [text for text in caplog.messages if text.startswith("session timeout cut")]
    assert cut == ["session timeout cut: requested_ms=120000 granted_ms=10000"] * lines


def test_a_session_outlives_a_server_that_takes_a_connection_and_never_answers(zk: str) -> None:
    """A server that is being started does so; and it counts the session's time while it is waited for."""
    server, chroot = zk.split("/")
    with Proxy(server) as proxy:
        store = open_kazoo(f"{proxy.hosts}/{chroot}", 6000)
        session, timeout_s = store.session_id, store.negotiated_timeout_s
        proxy.refuse()
        with socket.create_server(("127.0.0.1", proxy.port)) as mute:
            proxy.cut()
            connection, _ = mute.accept()
        proxy.resume()

        with connection:
            connection.settimeout(timeout_s * 2 / 3)
            while connection.recv(4096):
                pass  # until the client gives it up, while there is time for another; or this raises

        assert eventually(lambda: store.get("/"), 5, "the session continues", ignoring=(ConnectionLost,))
        assert (store.session_id, store.lost) == (session, False)
        store.close()


def test_a_session_follows_a_server_whose_name_has_another_address(zk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, chroot = zk.split("/")
    resolve = socket.getaddrinfo
    with Proxy(server) as before, Proxy(server) as after:
        named = [before]

        def resolved(host: str, port: Any, *rest: Any) -> Any:
            return resolve("127.0.0.1", named[0].port, *rest) if host == "zk.example" else resolve(host, port, *rest)

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        store = open_kazoo(f"zk.example:2181/{chroot}", 6000)
        session = store.session_id

        named[0] = after
        before.refuse()
        before.cut()

        assert eventually(lambda: store.get("/"), 5, "the session continues", ignoring=(ConnectionLost,))
        assert (store.session_id, store.lost, after.connections) == (session, False, 1)
        store.close()


def test_a_session_that_has_ended_creates_nothing_in_the_next_one(zk: str) -> None:
    store = open_kazoo(zk, 4000)
    store.commit([Create("/live")])
    expire(store)

    with pytest.raises(StoreError):
        while True:  # the client learns of it later, and never opens another session
            store.commit([Create("/live/late-", b"", ephemeral=True, sequential=True)])

    assert eventually(lambda: store.lost, 5, "it knows")
    with pytest.raises(SessionLost):
        store.commit([Create("/live/one", b"", ephemeral=True)])
    store.close()
    again = open_kazoo(zk, 4000)
    listing = again.children("/live")
    assert listing is not None and not listing.names
    again.close()


def test_unresponsive_host_takes_only_its_share_of_the_session_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as jammed, ExitStack() as held:
        address = jammed.getsockname()[:2]
        with pytest.raises(TimeoutError):
            while True:  # until the kernel drops what asks for a connection
                held.enter_context(socket.create_connection(address, 0.2))
        began = time.monotonic()

        with pytest.raises(TimeoutError):
            Handler(0.5, TlsFiles(ZooKeeperAccess())).create_connection(address, timeout=100.0)

        assert time.monotonic() - began < 50


@pytest.mark.parametrize("chroot", ["{}", "{}/", "//{}//a//", "{}/\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_chroot_may_be_written_in_any_way(zk: str, chroot: str) -> None:
    hosts, name = fresh_chroot(zk.split("/")[0]).split("/")
    with closing(open_kazoo(f"{hosts}/{chroot.format(name)}", 10_000)) as store:
        assert store.commit([Create("/a"), Create("/a/b-", b"1", sequential=True)]) == ["/a", "/a/b-0000000000"]
        found = store.get_many(["/a", "/a/b-0000000000", "/no"])
        assert [node.data if node else None for node in found] == [b"", b"1", None]


def test_slashes_alone_are_no_chroot(zk: str) -> None:
    hosts, name = fresh_chroot(zk.split("/")[0]).split("/")
    with closing(open_kazoo(f"{hosts}//", 10_000)) as store:
        assert store.commit([Create(f"/{name}/a")]) == [f"/{name}/a"]
        assert None not in store.get_many([f"/{name}", f"/{name}/a"])


def test_an_error_that_only_a_newer_server_knows_is_a_refusal_like_any_other() -> None:
    with pytest.raises(Refused, match="operation 1 on /b was refused: error -999"):
        kazoo_store._results([Create("/a"), Create("/b")], [Failure(0), Failure(-999)])


def test_missing_znodes_are_watched_without_a_wait_each(zk: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand groups without a request took a second of every sweep."""
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

    found = store.get_many(["/a", "/b", "/c"], watch=called.append)

    assert [node.data if node else None for node in found] == [None, b"2", None]
    assert happened[3:9] == ["asked"] * 3 + ["waited"] * 3
    store.commit([Create("/a"), Create("/c"), SetData("/b", b"3")])
    eventually(lambda: sorted(called) == ["/a", "/b", "/c"], 5, "every watch is called, once")


# ---- outages in the logs


def outage(proxy: Proxy, seconds: float) -> None:
    """No server answers for so long."""
    proxy.refuse()
    proxy.cut()
    ThreadRuntime().sleep(seconds)
    proxy.resume()


def lines(process: ProjectProcess, event: str) -> list[str]:
    return [line for line in process.said().splitlines() if event in line]


def events(process: ProjectProcess) -> list[str]:
    """What it logs of ZooKeeper and its lease, in order."""
    found = re.findall(r" (ZooKeeper \w+|lease \w+): ", process.said())
    return [str(each) for each in found]


@pytest.mark.parametrize("is_long", [False, True], ids=["session kept", "session lost"])
def test_outage_is_a_line_at_either_end(world: World, zookeeper_proxy: Proxy, tmp_path: Path, is_long: bool) -> None:
    session_ms, away_s = (1000, 4.0) if is_long else (20_000, 2.0)
    through = f"{zookeeper_proxy.hosts}/{world.zk.partition('/')[2]}"
    options = ["--session-timeout-ms", str(session_ms)]
    with (
        node_process(tmp_path, through, "a", session_ms) as node,
        consumer_process(tmp_path, through, "g", "c1", tmp_path / "log", *options) as consumer,
    ):
        world.topic("t", 1)
        world.stable("g", 1, timeout_s=30)

        outage(zookeeper_proxy, away_s)

        for process in (node, consumer):
            eventually(lambda p=process: lines(p, "ZooKeeper available: "), 30, "it is back")
        if is_long:
            eventually(lambda: len(lines(node, "elected: node=a")) == 2, 30, "it is elected again")
            eventually(lambda: lines(consumer, "lease returned: "), 30, "it is a member again")
    for process, client in ((node, "node a"), (consumer, "consumer c1")):
        (begin,), (end,) = lines(process, "ZooKeeper unavailable: "), lines(process, "ZooKeeper available: ")
        assert f'client="{client}"' in begin and f'client="{client}"' in end
        assert "WARNING" in begin and through in begin
        after_s = re.search(r"after_s=([\d.]+)", end)
        assert after_s is not None and float(after_s[1]) >= away_s
        assert ("the session was lost, with its ephemeral znodes" if is_long else "the session was kept") in end
        assert "Connection refused" not in process.said() and "zk.kazoo" not in process.said()
        assert not re.search("retrying|deferred", process.said())
        leases = [event for event in events(process) if event.startswith("lease")]
        assert leases[:1] == (["lease lost"] if is_long else [])
        if is_long:
            assert lines(consumer, "lease returned: ")[0].split("after_s=")[1] > "1"


def test_kazoos_own_lines_are_for_debugging(world: World, zookeeper_proxy: Proxy, tmp_path: Path) -> None:
    through = f"{zookeeper_proxy.hosts}/{world.zk.partition('/')[2]}"
    with node_process(tmp_path, through, "a", 20_000, "--log-level", "debug") as node:
        eventually(lambda: "elected: node=a" in node.said(), 20, "it is elected")
        outage(zookeeper_proxy, 1.0)
        eventually(lambda: lines(node, "ZooKeeper available: "), 30, "it is back")

    assert lines(node, "zk_group.coordinator.zk.kazoo")
    assert {line.split()[1] for line in lines(node, "zk_group.coordinator.zk.kazoo")} == {"DEBUG"}


def test_first_session_that_cannot_be_opened_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ZooKeeperUnreachable):
        kazoo_factory("127.0.0.1:1", 1000, 0.3, "node a")()

    assert caplog.records == []

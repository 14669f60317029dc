"""A drill's proxy in front of a server that has TLS: its client has none."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from coordinator.zk.security.access import ZooKeeperAccess
from drills.faults.proxy import GET_DATA
from tests.support.proxy import Proxy
from tests.support.wait import eventually

LARGE = 1 << 20


class EchoServer:
    """Returns what it gets, under TLS; a paused one accepts connections and does no handshake."""

    def __init__(self, context: ssl.SSLContext, is_paused: bool = False) -> None:
        self._context = context
        self._is_paused = is_paused
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.opened: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.opened.append(connection)
                if not self._is_paused:
                    threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, plain: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.opened:
            connection.close()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def access(ca: trustme.CA, tmp_path: Path) -> ZooKeeperAccess:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    return ZooKeeperAccess(zk_tls=True, zk_tls_ca=str(tmp_path / "ca.pem"))


def server_context(ca: trustme.CA, host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host).configure_cert(context)
    return context


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[EchoServer]:
    server = EchoServer(server_context(ca, "127.0.0.1"))
    yield server
    server.close()


def connection_to(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 10.0)


def packet(number: int, body: bytes = b"") -> bytes:
    """A request: its xid is `number`."""
    return struct.pack(">iii", 8 + len(body), number, GET_DATA) + body


def received(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (part := connection.recv(1 << 16)):
        data += part
    return bytes(data)


def test_packets_pass_unchanged_to_a_server_with_tls(server: EchoServer, access: ZooKeeperAccess) -> None:
    with Proxy(server.address, access=access) as proxy, connection_to(proxy) as client:
        client.sendall(packet(1, b"connect") + packet(2, b"read"))

        assert received(client, 2 * 12 + 11) == packet(1, b"connect") + packet(2, b"read")
        assert proxy.requests[GET_DATA] == 1, "the first packet opens the session"


def test_large_packets_pass_both_ways_at_once_under_tls(server: EchoServer, access: ZooKeeperAccess) -> None:
    sent = b"".join(packet(number, bytes([number]) * LARGE) for number in range(1, 17))
    with Proxy(server.address, access=access) as proxy, connection_to(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        found = received(client, len(sent))
        sender.join()

    assert found == sent


def test_a_reply_under_tls_is_lost_and_its_connection_cut(server: EchoServer, access: ZooKeeperAccess) -> None:
    with Proxy(server.address, access=access) as proxy, connection_to(proxy) as client:
        loss = proxy.drop_reply(GET_DATA)
        client.sendall(packet(1) + packet(2, b"lost"))

        assert received(client, 1000) == packet(1)
        assert loss.wait().endswith(b"lost")


def test_cut_ends_a_connection_under_tls_and_the_next_one_works(server: EchoServer, access: ZooKeeperAccess) -> None:
    with Proxy(server.address, access=access) as proxy:
        with connection_to(proxy) as client:
            client.sendall(packet(1))
            received(client, 12)
            proxy.cut()
            assert client.recv(1) == b""
        with connection_to(proxy) as client:
            client.sendall(packet(1))
            assert received(client, 12) == packet(1)


@pytest.mark.parametrize("lie", ["foreign CA", "another name"])
def test_a_server_whose_certificate_is_refused_gets_no_byte(ca: trustme.CA, access: ZooKeeperAccess, lie: str) -> None:
    issuer, host = (trustme.CA(), "127.0.0.1") if lie == "foreign CA" else (ca, "zk.example.org")
    server = EchoServer(server_context(issuer, host))
    try:
        with Proxy(server.address, access=access) as proxy, connection_to(proxy) as client:
            assert client.recv(1) == b""
    finally:
        server.close()


def test_name_of_a_certificate_does_not_matter_without_its_check(ca: trustme.CA, access: ZooKeeperAccess) -> None:
    unchecked = ZooKeeperAccess(zk_tls=True, zk_tls_ca=access.zk_tls_ca, zk_tls_check_hostname=False)
    server = EchoServer(server_context(ca, "zk.example.org"))
    try:
        with Proxy(server.address, access=unchecked) as proxy, connection_to(proxy) as client:
            client.sendall(packet(1))
            assert received(client, 12) == packet(1)
    finally:
        server.close()


def test_server_that_hangs_in_the_handshake_holds_up_no_other_connection(
    ca: trustme.CA, access: ZooKeeperAccess
) -> None:
    server = EchoServer(server_context(ca, "127.0.0.1"), is_paused=True)
    try:
        with Proxy(server.address, access=access) as proxy:
            with connection_to(proxy) as first, connection_to(proxy):
                eventually(lambda: len(server.opened) == 2, 2, "both connections reach the server")
                proxy.cut()
                assert first.recv(1) == b""
            eventually(lambda: proxy.connections == 0, 2, "their handshakes are given up")
    finally:
        server.close()

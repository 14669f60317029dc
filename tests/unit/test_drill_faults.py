"""Faults of drills: on ZooKeeper's servers, and proxies between a process and its server."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from tests.support import made_packets
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.directory import Ports, choose_ports, is_free
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.drills.environments.containers import EngineError
from zk_group.drills.faults import proxy
from zk_group.drills.faults.proxy import GET_DATA, MULTI
from zk_group.drills.runner import DRILLS
from zk_group.drills.testbed.commands import Proxies
from zk_group.drills.testbed.testbed import Stage

# ---- recorded before the injection, and undone even when incomplete


SESSION_S = 0.2


class Environment:
    """Three servers, of which 0 leads until a fault on it. `refuses` has the faults that fail."""

    addresses = ("one", "two", "three")

    def __init__(self, done: list[str], refuses: dict[str, BaseException]) -> None:
        self._done = done
        self._refuses = refuses

    def act(self, action: str, server: int) -> None:
        self._done.append(f"{action} {server}")
        if action in self._refuses:
            raise self._refuses[action]

    def leader(self) -> int:
        return 1 if self._done else 0

    def has_leader(self) -> bool:
        return True

    def is_healthy(self) -> bool:
        return True


class Recorded:
    """In place of a stage; its faults, in order."""

    bounds = {"session_timeout": SESSION_S}

    def __init__(self, **refuses: BaseException) -> None:
        self.done: list[str] = []
        self.environment = Environment(self.done, refuses)
        self.lasted: list[tuple[float, float]] = []

    def fault(self, kind: str, seconds: float = 0.0, **_: Any) -> float:
        at = time.monotonic()
        self.done.append(kind)
        self.lasted.append((at, seconds))
        return at

    def slots(self) -> set[str]:
        return set()

    def wait_settled(self, _: set[str]) -> None:
        """It is."""


def run(name: str, stage: Recorded) -> None:
    DRILLS[name].run(cast(Stage, stage))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("zookeeper-leader-sigkill", ["stop-server", "kill 0", "start 0", "server-returns"]),
        ("zookeeper-follower-sigkill", ["stop-server", "kill 1", "start 1", "server-returns"]),
        ("zookeeper-leader-pause", ["pause-server", "pause 0", "resume 0", "server-returns"]),
        ("zookeeper-leader-cut-off", ["cut-server", "cut off 0", "join 0", "server-returns"]),
        ("zookeeper-quorum-lost", ["zookeeper-away", *(f"{do} {n}" for do in ("kill", "start") for n in range(3))]),
    ],
)
def test_fault_is_recorded_before_it_is_injected(name: str, done: list[str]) -> None:
    stage = Recorded()

    run(name, stage)

    assert stage.done == done


@pytest.mark.long
def test_zookeeper_is_down_for_at_least_the_recorded_time() -> None:
    stage = Recorded()

    run("zookeeper-quorum-lost", stage)

    ((begun, seconds),) = stage.lasted
    assert seconds == pytest.approx(1.5 * SESSION_S)
    assert time.monotonic() - begun >= seconds


@pytest.mark.parametrize("surprise", [EngineError("the first"), KeyboardInterrupt("the first")])
@pytest.mark.parametrize(
    ("name", "take", "give_back"),
    [("zookeeper-leader-pause", "pause", "resume"), ("zookeeper-leader-cut-off", "cut off", "join")],
)
def test_half_done_fault_of_a_leader_is_undone(name: str, take: str, give_back: str, surprise: BaseException) -> None:
    stage = Recorded(**{take: surprise, give_back: EngineError("it was not done")})

    with pytest.raises(type(surprise), match="the first"):
        run(name, stage)

    assert stage.done[1:] == [f"{take} 0", f"{give_back} 0"]


# ---- packets are parsed from bytes, and malformed bytes are refused


REQUEST = struct.pack(">ii", 7, MULTI) + made_packets.DONE


def test_request_has_its_number_and_its_op_code() -> None:
    assert (proxy.xid(REQUEST), proxy.op_code(REQUEST)) == (7, MULTI)


@pytest.mark.parametrize(
    ("reply", "zxid"),
    [
        (made_packets.reply(7, 0x100000002), 0x100000002),
        (made_packets.reply(-1, -1), 0),
        (made_packets.reply(7, 99)[:11], 0),
    ],
    ids=["of a server", "of an event before 3.9", "cut short"],
)
def test_reply_shows_its_servers_progress_if_it_has_any(reply: bytes, zxid: int) -> None:
    assert proxy.zxid(reply) == zxid


def test_connect_reply_has_a_timeout_unless_the_session_has_ended() -> None:
    assert proxy.opened_ms(made_packets.connected(0x1234, 4000)) == 4000
    assert proxy.opened_ms(made_packets.connected(0, 0)) is None


@pytest.mark.parametrize(
    ("parse", "packet"),
    [(proxy.xid, REQUEST[:4]), (proxy.op_code, REQUEST[:8]), (proxy.opened_ms, made_packets.connected(1, 2)[:16])],
)
def test_a_packet_cut_short_is_refused_wherever_it_is_cut(parse: Callable[[bytes], object], packet: bytes) -> None:
    for length in range(len(packet)):
        with pytest.raises(BadData):
            parse(packet[:length])


# ---- ports of proxies


def test_proxies_of_a_process_never_choose_a_port_that_another_will_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    base = choose_ports(3, None)[0].client

    def first_free(servers: int, base_port: int | None) -> list[Ports]:
        return [next(Ports(port, port, port) for port in range(base, base + 9) if is_free(port))]

    monkeypatch.setattr(proxy, "choose_ports", first_free)
    proxies = Proxies(["127.0.0.1:1"] * 3, "", None)
    try:
        hosts = proxies.hosts("node-1").split(",")
    finally:
        proxies.close()

    assert len(set(hosts)) == 3


# ---- a proxy in front of a server that has TLS: its client has none


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
    with closing(EchoServer(server_context(ca, "127.0.0.1"))) as server:
        yield server


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
    with closing(server), Proxy(server.address, access=access) as proxy, connection_to(proxy) as client:
        assert client.recv(1) == b""


def test_name_of_a_certificate_does_not_matter_without_its_check(ca: trustme.CA, access: ZooKeeperAccess) -> None:
    unchecked = ZooKeeperAccess(zk_tls=True, zk_tls_ca=access.zk_tls_ca, zk_tls_check_hostname=False)
    server = EchoServer(server_context(ca, "zk.example.org"))
    with closing(server), Proxy(server.address, access=unchecked) as proxy, connection_to(proxy) as client:
        client.sendall(packet(1))
        assert received(client, 12) == packet(1)


def test_server_that_hangs_in_the_handshake_holds_up_no_other(ca: trustme.CA, access: ZooKeeperAccess) -> None:
    paused = EchoServer(server_context(ca, "127.0.0.1"), is_paused=True)
    with closing(paused), Proxy(paused.address, access=access) as proxy:
        with connection_to(proxy) as first, connection_to(proxy):
            eventually(lambda: len(paused.opened) == 2, 2, "both connections reach the server")
            proxy.cut()
            assert first.recv(1) == b""
        eventually(lambda: proxy.connections == 0, 2, "their handshakes are given up")

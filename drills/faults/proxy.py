"""A proxy in front of one ZooKeeper server that injects network faults on command.

It parses ZooKeeper's framing: every packet is four bytes of length and a body; the first packet of either side opens
the session; then a request begins with its xid and op code, a reply with the request's xid. So it can lose exactly
one reply: the request is carried out, and its sender gets no reply. TLS is between proxy and server only: the proxy's
clients are on this machine. Packets are untrusted: reading a malformed body raises `BadData`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self, TypeVar

from zk_group.coordinator.zk.embedded.directory import HOST, choose_ports
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.wire import JuteReader

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
SYNC, CHECK, MULTI, CLOSE_SESSION = 9, 13, 14, -11
PING = -2
"""The xid of a ping and of its reply."""


def xid(body: bytes) -> int:
    """The number of a request and of its reply; -1 for a watch event, -2 for a ping."""
    return JuteReader(body).integer()


def op_code(request: bytes) -> int:
    """The op code of a request, such as `MULTI`."""
    return JuteReader(request, 4).integer()


def zxid(reply: bytes) -> int:
    """The zxid of the server's last transaction, or of a watch event's; 0 when it has none."""
    return max(0, JuteReader(reply, 4).long()) if len(reply) >= 12 else 0


def opened_ms(first_reply: bytes) -> int | None:
    """The timeout in ms of the created or resumed session; None when it has expired."""
    reader = JuteReader(first_reply)
    reader.integer()
    timeout_ms, session = reader.integer(), reader.long()
    return timeout_ms if session and timeout_ms > 0 else None


class ZxidClock:
    """Sees each zxid before any process of the drill does. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._zxids: list[int] = []
        self._times: list[float] = []

    def saw(self, zxid: int) -> None:
        """A server has done this transaction, and all before it."""
        with self._lock:
            if zxid > 0 and (not self._zxids or zxid > self._zxids[-1]):
                self._zxids.append(zxid)
                self._times.append(self._clock())

    def at(self, zxid: int) -> float:
        """The latest possible time of a transaction: no process can have been notified of it earlier.

        Now, when no server has shown it yet.
        """
        with self._lock:
            place = bisect_left(self._zxids, zxid)
            return self._times[place] if place < len(self._times) else self._clock()


HANDSHAKE_S = 5.0

T = TypeVar("T")


class TlsEnd:
    """A TLS socket for one reading and one writing thread: OpenSSL allows a connection one call at a time.

    It has the methods of a socket that a link calls.

    :param connection: connected.
    :param hostname: the name in the server's certificate.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, hostname: str) -> None:
        self._lock = threading.Lock()
        self._connection = context.wrap_socket(connection, server_hostname=hostname, do_handshake_on_connect=False)

    def handshake(self) -> None:
        """The handshake, before any other call, in the thread that may wait for it; `shutdown` ends it.

        :raises OSError: when it fails, or takes too long.
        """
        self._connection.settimeout(HANDSHAKE_S)
        self._connection.do_handshake()
        self._connection.setblocking(False)

    def recv(self, size: int) -> bytes:
        return self._once_ready(partial(self._connection.recv, size))

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._once_ready(partial(self._connection.send, left)) :]

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._connection, how)  # after `SSLSocket`'s own, encrypted bytes would be read as plain

    def close(self) -> None:
        self._connection.close()

    def _once_ready(self, step: Callable[[], T]) -> T:
        """The result of `step`, as soon as it need not wait."""
        while True:
            try:
                with self._lock:
                    return step()
            except ssl.SSLWantReadError:
                awaited = select.POLLIN
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            ready = select.poll()
            ready.register(self._connection, awaited)
            ready.poll()


LARGEST = 64 << 20
"""Bytes of a packet; a server takes 1 MiB, and its replies are unbounded."""

Match = Callable[[bytes], bool]
"""A predicate over a request's body: xid (4 bytes), op code (4 bytes), and the request itself."""


class Loss:
    """One packet to lose: armed until a request matches, and `lost` once the packet is dropped.

    It may be armed in several proxies, and is used by one.

    :param then: called at the loss, before the connection is cut.
    :ivar request: the body of the request that matched.  :ivar unused: acquired by the connection that uses it.
    """

    def __init__(self, match: Match, *, is_request: bool, then: Callable[[], None] = lambda: None) -> None:
        self.is_for = match
        self.is_request = is_request
        self.then = then
        self.request = b""
        self.lost = threading.Event()
        self.unused = threading.Semaphore()


class Proxy:
    """Listens on its own port and forwards to one server, until a fault is set.

    :param upstream: `host:port` of the server.
    :param clock: sees the zxid of each packet of the server before a client does.
    :param access: the TLS to the server; None for none. Clients send their own credentials.
    :raises UsageError: when a file of `access` cannot be used.
    """

    def __init__(self, upstream: str, clock: ZxidClock | None = None, access: ZooKeeperAccess | None = None) -> None:
        host, port = upstream.rsplit(":", 1)
        self.port = choose_ports(1, None)[0].client
        self._upstream = (host.strip("[]"), int(port))
        self._tls_context = access.tls_context() if access is not None else None
        self.clock = clock
        self._lock = threading.Lock()
        self._armed: list[Loss] = []
        self._links: set[_Link] = set()
        self._stopping = False
        self.is_mute = False
        self._is_black_hole = False
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    @property
    def hosts(self) -> str:
        """The connect string for clients."""
        return f"{HOST}:{self.port}"

    def start(self) -> Self:
        """Listen."""
        self._listener = listener = socket.create_server((HOST, self.port))
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="proxy-accept", daemon=True)
        self._acceptor.start()
        return self

    def stop(self) -> None:
        """Cut everything and end every thread."""
        self._stopping = True
        self.refuse()
        with self._lock:
            links = list(self._links)
        self.cut()
        for link in links:
            link.upward.join(5.0)

    def cut(self) -> None:
        """Close every connection; new ones are still accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def refuse(self) -> None:
        """Refuse new connections (the port is closed); open ones stay open."""
        listener, acceptor = self._listener, self._acceptor
        self._listener = self._acceptor = None
        if listener is not None and acceptor is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), unlike close()
            acceptor.join()
            listener.close()

    def black_hole(self) -> None:
        """Drop all bytes in both directions; connections stay open and new ones are accepted."""
        self._is_black_hole = True

    def mute(self) -> None:
        """Hold back every reply and watch event, except replies to pings, until `resume`: sessions stay alive.

        Held packets are sent with the next reply after them.
        """
        self.is_mute = True

    def resume(self) -> None:
        """Forward again, after `refuse`, `black_hole` or `mute`.

        Connections that have lost bytes are cut: a TCP stream cannot continue after a gap.
        """
        self.is_mute = self._is_black_hole = False
        with self._lock:
            broken = [link for link in self._links if link.has_gap]
        for link in broken:
            link.cut()
        if self._listener is None and not self._stopping:
            self.start()

    def arm(self, loss: Loss) -> Loss:
        """Arm a loss here, too."""
        with self._lock:
            self._armed.append(loss)
        return loss

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.upward.start()

    def _connect(self) -> socket.socket | TlsEnd:
        """A connection to the server, before its TLS handshake."""
        server = socket.create_connection(self._upstream, 5.0)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small packets wait 40 ms for replies
        return server if self._tls_context is None else TlsEnd(server, self._tls_context, self._upstream[0])

    # Called by the links.

    def swallows(self, link: _Link) -> bool:
        """Whether the bytes of a connection are to be dropped."""
        return self._is_black_hole

    def claim(self, request: bytes) -> Loss | None:
        """The loss matched by a request; it is disarmed."""
        with self._lock:
            for loss in [each for each in self._armed if each.is_for(request)]:
                self._armed.remove(loss)
                if loss.unused.acquire(blocking=False):
                    loss.request = request
                    return loss
        return None

    def report(self, loss: Loss) -> None:
        """Record a lost packet, whose connection is cut."""
        loss.lost.set()

    def forget(self, link: _Link, unused: list[Loss]) -> None:
        """Remove a closed connection; losses without a reply are armed again."""
        with self._lock:
            self._links.discard(link)
            self._armed.extend(unused)
        for loss in unused:
            loss.unused.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class _Link:
    """One client connection and the server connection behind it: a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket | TlsEnd) -> None:
        self.has_gap = False
        self.is_cut = False
        self._proxy = proxy
        self._client = client
        self._server = server
        self._awaited: dict[int, Loss] = {}
        """The requests whose replies are to be dropped, by xid."""
        self.upward = threading.Thread(target=self._run, name="proxy-up", daemon=True)
        self._downward = threading.Thread(target=self._pump_replies, name="proxy-down", daemon=True)

    def cut(self) -> None:
        """Shut both connections down; their threads detect it and close them."""
        self.is_cut = True
        for connection in (self._client, self._server):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _lose(self, loss: Loss) -> None:
        loss.then()
        self.cut()
        self._proxy.report(loss)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            if isinstance(self._server, TlsEnd):
                self._server.handshake()  # here a hung server delays this connection only
            self._downward.start()
            self._pump_requests()
            self._downward.join()
        self._client.close()
        self._server.close()
        self._proxy.forget(self, list(self._awaited.values()))

    def _pump_requests(self) -> None:
        with contextlib.suppress(OSError):
            for number, packet in enumerate(self._packets(self._client)):
                request = packet[4:]
                loss = self._proxy.claim(request) if number > 0 else None
                if loss is not None and loss.is_request:
                    self._lose(loss)
                    break
                if loss is not None:
                    self._awaited[xid(request)] = loss  # before its reply can arrive
                self._server.sendall(packet)
        self.cut()

    def _pump_replies(self) -> None:
        held = b""
        with contextlib.suppress(OSError):
            for number, packet in enumerate(self._packets(self._server)):
                reply = packet[4:]
                if self._proxy.clock is not None and number > 0:
                    self._proxy.clock.saw(zxid(reply))
                awaited = self._awaited.pop(xid(reply), None) if number > 0 else None
                if awaited is not None:
                    self._lose(awaited)
                    break
                if not self._proxy.is_mute:
                    packet, held = held + packet, b""
                elif number > 0 and xid(reply) != PING:
                    held += packet
                    continue
                self._client.sendall(packet)
        self.cut()

    def _packets(self, source: socket.socket | TlsEnd) -> Iterator[bytes]:
        """Complete packets with their length, until the connection is closed or bytes were dropped."""
        received = b""
        while data := source.recv(65536):
            if self._proxy.swallows(self):
                self.has_gap = True
            if self.has_gap:
                continue
            received += data
            while len(received) >= 4:
                (length,) = struct.unpack_from("!i", received)
                if not 8 <= length <= LARGEST:
                    raise OSError(f"packet of {length} bytes: not ZooKeeper's protocol")
                if len(received) < 4 + length:
                    break
                yield received[: 4 + length]
                received = received[4 + length :]

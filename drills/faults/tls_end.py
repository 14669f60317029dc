"""A proxy's connection to a server that has TLS."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

HANDSHAKE_S = 5.0

T = TypeVar("T")


class TlsEnd:
    """One thread reads it while another one writes: OpenSSL allows a connection one call at a time.

    Its methods are those of a socket that a link calls.

    :param connection: connected.
    :param hostname: what the server's certificate is verified for.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, hostname: str) -> None:
        self._lock = threading.Lock()
        self._connection = context.wrap_socket(connection, server_hostname=hostname, do_handshake_on_connect=False)

    def handshake(self) -> None:
        """Before anything else, in the thread that may wait for it; `shutdown` ends it.

        :raises OSError: when it fails, or takes too long.
        """
        self._connection.settimeout(HANDSHAKE_S)
        self._connection.do_handshake()
        self._connection.setblocking(False)

    def recv(self, size: int) -> bytes:
        """See `socket`."""
        return self._once_ready(partial(self._connection.recv, size))

    def sendall(self, data: bytes) -> None:
        """See `socket`."""
        left = memoryview(data)
        while left:
            left = left[self._once_ready(partial(self._connection.send, left)) :]

    def shutdown(self, how: int) -> None:
        """See `socket`. `SSLSocket`'s own would let a reader take what it then gets for plain bytes."""
        socket.socket.shutdown(self._connection, how)

    def close(self) -> None:
        """See `socket`."""
        self._connection.close()

    def _once_ready(self, step: Callable[[], T]) -> T:
        """What `step` returns, as soon as it needs not wait."""
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

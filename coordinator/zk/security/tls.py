"""TLS of the connections to ZooKeeper: the handshake, and why a server and a client do not accept each other."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final

PROBE_S: Final = 1.0
_REPLY: Final = b"ruok is not executed"


def secured(connection: socket.socket, context: ssl.SSLContext, hostname: str, timeout_s: float) -> ssl.SSLSocket:
    """The connection after its TLS handshake.

    :raises OSError: when the handshake fails; the connection is closed.
    """
    connection.settimeout(timeout_s)
    return context.wrap_socket(connection, server_hostname=hostname)


def refusal_of(error: BaseException | None) -> str:
    """Why TLS failed, when a retry fails likewise; empty for any other error."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message.rstrip('.')}): check zk_tls_ca, or renew it"
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return f"it refuses this client's certificate or TLS ({error.reason}): check zk_tls_cert and zk_tls_key"
    return ""


def mismatch(host: str, port: int, has_tls: bool) -> str:
    """Why a server closes the connection of a client that has TLS and it has not, or the reverse; otherwise empty."""
    if has_tls:
        return "it has no TLS on this port: check the port in --zk, or unset zk_tls" if _is_plain(host, port) else ""
    return "it has TLS on this port: set zk_tls and zk_tls_ca" if _has_tls(host, port) else ""


def _is_plain(host: str, port: int) -> bool:
    """Whether a server answers a four letter word without TLS; one that is not on its list is answered, too."""
    with suppress(OSError), socket.create_connection((host, port), PROBE_S) as probe:
        probe.sendall(b"ruok")
        answer = probe.recv(len(_REPLY))
        return answer == b"imok" or answer == _REPLY
    return False


def _has_tls(host: str, port: int) -> bool:
    """Whether a server begins a TLS handshake, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), PROBE_S) as probe, context.wrap_socket(probe):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False

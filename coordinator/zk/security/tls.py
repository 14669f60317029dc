"""TLS of the connections to ZooKeeper: the handshake, and why a server and a client do not accept each other."""

from __future__ import annotations

import logging
import socket
import ssl
from contextlib import suppress
from typing import Final

from ..errors import UsageError
from .access import ZooKeeperAccess

PROBE_S: Final = 1.0
_REPLY: Final = b"ruok is not executed"
_REMEDIES: Final = {
    9: "check the clocks of both",  # X509_V_ERR_CERT_NOT_YET_VALID
    10: "renew it",  # X509_V_ERR_CERT_HAS_EXPIRED
    62: "name the server in --zk as its certificate does",  # X509_V_ERR_HOSTNAME_MISMATCH
    64: "name the server in --zk as its certificate does",  # X509_V_ERR_IP_ADDRESS_MISMATCH
}

log = logging.getLogger(__name__)


class TlsFiles:
    """The TLS of a session's connections, from files that are read for each of them: a renewed certificate is used.

    Files that become unusable do not end the session: the last usable ones serve its reconnects.

    :raises UsageError: when they are unusable at the start.
    """

    def __init__(self, access: ZooKeeperAccess) -> None:
        self._access = access
        self._last = access.tls_context()
        self._problem = ""

    def context(self) -> ssl.SSLContext | None:
        """The TLS of a new connection, None without."""
        try:
            self._last, self._problem = self._access.tls_context(), ""
        except UsageError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("TLS files unusable, using those read before: reason=%s", error)
        return self._last


def secured(connection: socket.socket, context: ssl.SSLContext, hostname: str, timeout_s: float) -> ssl.SSLSocket:
    """The connection after its TLS handshake.

    :raises OSError: when the handshake fails; the connection is closed.
    """
    connection.settimeout(timeout_s)
    try:
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise


def refusal_of(error: BaseException | None) -> str:
    """Why TLS failed, when a retry fails likewise; empty for any other error."""
    seen: list[BaseException] = []  # errors may cause each other
    while error is not None and error not in seen and not isinstance(error, ssl.SSLError):
        seen.append(error)
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "check zk_tls_ca")
        return f"its certificate is refused ({error.verify_message.rstrip('.')}): {remedy}"
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

"""kazoo's client, for one session, with the features that kazoo lacks. And the outages over all sessions."""

from __future__ import annotations

import ipaddress
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import SASL, Auth, Connect
from kazoo.protocol.serialization import Watch as Notification
from kazoo.protocol.states import Callback, KeeperState
from kazoo.retry import ForceRetryError

from ..backoff import Backoff
from ..errors import AuthenticationFailed, NotAuthorized, UsageError, ZooKeeperUnreachable
from ..runtime import Runtime
from ..security.access import Credentials, TlsFiles, mismatch, refusal_of, secured
from ..store import SessionState, Store, TreeEvent, TreeWatch, Watch
from ..wire import TREE_EVENTS, AddTreeWatch

NOTICE_S: Final = 3.0
"""Time without a session before the log has the cause."""
CONNECT_TRIES: Final = 3  # that fit into one session timeout
CREDENTIALS_REFUSED: Final = (
    "ZooKeeper refuses the credentials of this client, or requires some: check zk_auth_file, or ZK_GROUP_ZK_AUTH"
)
_NO_SASL: Final = "this ZooKeeper has no SASL users: use digest in zk_auth_file, or configure SASL at the servers"
_MOST_SASL_TOKENS: Final = 2  # of DIGEST-MD5: the request for a challenge, and the answer to it
# The second answers a wrong password where SASL is required, and the third is of pure-sasl: no retry helps.
AUTHENTICATION: Final = (kz.AuthFailedError, kz.SessionClosedRequireSaslError, kz.SASLException)
_CLOSED = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)

Address = tuple[str, int]

log = logging.getLogger(__name__)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A plain `select` instead of kazoo's new selector per request and answer: a tenth of the cost. And TLS of our own.

    :param patience_s: how long a server may take to accept a connection; kazoo waits a whole session timeout.
    :param tls: the TLS of each new connection.
    """

    def __init__(self, patience_s: float, tls: TlsFiles) -> None:
        super().__init__()
        self.patience_s = patience_s
        self._tls = tls

    def create_connection(self, address: Address, hostname: str = "", timeout: float = 1.0, **options: Any) -> Any:
        """kazoo's own TLS trusts the system's CAs beside the given one, and offers TLS 1.0."""
        timeout = min(timeout, self.patience_s)
        context = self._tls.context()
        connection: socket.socket = super().create_connection(address=address, timeout=timeout)
        return connection if context is None else secured(connection, context, hostname or address[0], timeout)

    def select(self, reads: Any, writes: Any, errors: Any, timeout: float | None = None) -> Any:
        """As `select.select`; the socket does not show data that TLS has decrypted and kazoo has not read yet."""
        pending = [one for one in reads if isinstance(one, ssl.SSLSocket) and one.pending()]
        if pending:
            others = [one for one in reads if one not in pending]
            ready = self._select(others, writes, errors, 0)
            return [*pending, *ready[0]], *ready[1:]
        return self._select(reads, writes, errors, timeout)

    def _select(self, *arguments: Any) -> Any:
        try:
            return select.select(*arguments)
        except ValueError:  # a file descriptor over 1023
            return super().select(*arguments)


class Unprinted:
    """A request with a secret, which kazoo would write into its log."""

    def __init__(self, request: Any) -> None:
        self.type = request.type
        self.serialize = request.serialize

    def __repr__(self) -> str:
        return "credentials"


class OneSession(KazooClient):  # type: ignore[misc]
    """A kazoo client that fails every request after its first session has ended.

    kazoo itself opens another session and sends the queued requests on it. The lock orders `_call` and the session's
    end: a request is either queued before the end, and fails with it, or refused.

    A starting server may accept a connection and not answer while the session timeout runs; kazoo would wait for all of
    it. Here the wait leaves time for two more attempts.

    :param credentials: the credentials of each connection.
    :param has_tls: whether the handler's connections have TLS.
    :ivar refusals: why TLS failed, by server.
    :ivar unresolved: names of servers without an address, by the last reply of the name service, or without a reply.
    :ivar auth_failure: why a server refused the credentials; empty when none did.
    :ivar settled: set once there is an authenticated session, or none is possible: every server is in `refusals`, or
        the credentials are refused.
    """

    def __init__(self, credentials: Credentials, has_tls: bool, **options: Any) -> None:
        self.has_tls = has_tls
        self.over = False
        self.negotiated_ms = 0
        self.refusals: dict[Address, str] = {}
        self._unlogged: list[Address] = []
        self.unresolved: tuple[str, ...] = ()
        self.auth_failure = ""
        self._sasl_tokens = 0
        self.settled = threading.Event()
        self._first_session: int | None = None
        self._gate = threading.RLock()
        user, password = credentials.sasl or ("", "")
        sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
        auth_data = [("digest", digest) for digest in credentials.digests]
        super().__init__(auth_data=auth_data, sasl_options=sasl if credentials.sasl else None, **options)
        self._invoke_of_kazoo = self._replaced("_invoke", self._invoke_and_note)
        self.tree_watches: list[tuple[str, TreeWatch]] = []
        self._event_zxid = 0
        self._read_header_of_kazoo = self._replaced("_read_header", self._read_header_and_note)
        self._read_watch_event_of_kazoo = self._replaced("_read_watch_event", self._read_watch_event)
        self._submit_of_kazoo = self._replaced("_submit", self._submit)
        expand = self._replaced("_expand_client_hosts", lambda: self._expanded(expand()))
        self._connect_loop_of_kazoo = self._replaced("_connect_loop", self._connect_loop_and_note)
        self._connect_of_kazoo = self._replaced("_connect", self._connect_and_note)
        self._authenticate_of_kazoo = self._replaced("_authenticate_with_sasl", self._authenticate)

    def _replaced(self, name: str, method: Callable[..., Any]) -> Any:
        """Replace a method of kazoo's connection by `method`, and return the original."""
        original = getattr(self._connection, name)
        setattr(self._connection, name, method)
        return original

    @property
    def has_session(self) -> bool:
        """Whether a server has opened the session."""
        return self._first_session is not None

    def connect(self, hosts: str, timeout_s: float) -> None:
        """Open the session.

        :param hosts: the servers, for messages.
        :raises AuthenticationFailed: when a server and this client refuse each other.
        :raises ZooKeeperUnreachable: when no server answers within `timeout_s` seconds.
        """
        self.unresolved = tuple(sorted({host for host, _ in self.hosts if not _is_address(host)}))
        # `start` would read "/" and warn when the chroot is missing.
        self.start_async()
        is_settled = self.settled.wait(min(NOTICE_S, timeout_s))
        if not is_settled and timeout_s > NOTICE_S:
            log.warning("ZooKeeper not reached yet: servers=%s reason=%s", hosts, _why_silent(self))
            is_settled = self.settled.wait(timeout_s - NOTICE_S)
        if self.auth_failure:
            raise AuthenticationFailed(self.auth_failure)
        if is_settled and self.has_session:
            return
        refusals = [f"{host}:{port}: {why}" for (host, port), why in sorted(self.refusals.items())]
        if is_settled and refusals:
            raise AuthenticationFailed(f"no session with ZooKeeper at {refusals[0]}")
        raise ZooKeeperUnreachable(
            f"no ZooKeeper server answered at {hosts} within {timeout_s:g} s: {_why_silent(self)}"
            + "".join(f"; {refusal}" for refusal in refusals)
        )

    def _expanded(self, found: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        """kazoo passes over a name that does not resolve."""
        self.unresolved = tuple(sorted({host for host, _ in self.hosts} - {host for host, _, _ in found}))
        return found

    def _submit(self, request: Any, timeout: float, xid: Any = None) -> None:
        if isinstance(request, SASL):
            if self._sasl_tokens == _MOST_SASL_TOKENS:
                # A server without SASL answers each token with nothing, and kazoo would send another one for ever.
                self.auth_failure = _NO_SASL
                raise kz.AuthFailedError(_NO_SASL)
            self._sasl_tokens += 1
        self._submit_of_kazoo(Unprinted(request) if isinstance(request, Auth | SASL) else request, timeout, xid)

    def _connect_loop_and_note(self, retry: Any) -> Any:
        """One attempt with each address of each server."""
        try:
            return self._connect_loop_of_kazoo(retry)
        except ForceRetryError:
            # A name may have several addresses: all of them have been tried here.
            if all((host.strip(), port) in self.refusals for host, port in self.hosts):
                self.settled.set()
            raise

    def _connect_and_note(self, host: str, hostip: str, port: int) -> Any:
        """Report a TLS mismatch of a server and this client to the store: kazoo retries it for ever."""
        try:
            timeouts = self._connect_of_kazoo(host, hostip, port)
        except AUTHENTICATION as error:
            self.auth_failure = self.auth_failure or CREDENTIALS_REFUSED
            raise kz.AuthFailedError(self.auth_failure) from error  # kazoo knows this one only
        except Exception as error:
            refusal = refusal_of(error)
            if not refusal and not self.has_session and isinstance(error, ConnectionDropped):
                refusal = mismatch(hostip, port, self.has_tls)
            if refusal and self.refusals.get((host, port)) != refusal:
                self.refusals[host, port] = refusal
                self._unlogged.append((host, port))
                if self.has_session:
                    self._log_refusals()
            raise
        self._log_refusals()
        self.settled.set()
        return timeouts

    def _log_refusals(self) -> None:
        """Log the failures of a client with a session; without a session they are an error of the caller."""
        for host, port in self._unlogged:
            log.warning("TLS failed: server=%s:%d reason=%s", host, port, self.refusals[host, port])
        self._unlogged.clear()

    def _authenticate(self, host: str, timeout: float) -> None:
        self._sasl_tokens = 0
        try:
            self._authenticate_of_kazoo(host, timeout)
        except kz.AuthFailedError as error:
            # kazoo takes a server that dies meanwhile for one that refuses, which answers with an error since 3.5.
            if isinstance(error.__cause__, ConnectionDropped):
                raise ConnectionDropped("connection lost during SASL") from None
            raise

    def _invoke_and_note(self, timeout: float, request: Any, xid: Any = None) -> Any:
        if not isinstance(request, Connect):
            return self._invoke_of_kazoo(timeout, request, xid)
        patience = 1 if self._first_session is not None else 2  # a retry is no faster on a slow server
        result = self._invoke_of_kazoo(min(timeout, patience * self.handler.patience_s), request, xid)
        self.negotiated_ms = result[0].time_out  # kazoo keeps the negotiated timeout in a local variable
        if self.negotiated_ms > 0:
            self.handler.patience_s = self.negotiated_ms / 1000 / max(CONNECT_TRIES, len(self.hosts))
        return result

    def add_tree_watch(self, path: str, on_event: TreeWatch) -> Any:
        self.tree_watches = [*(other for other in self.tree_watches if other[0] != path), (path, on_event)]
        answer = self.handler.async_result()
        self._call(AddTreeWatch(f"{self.chroot}{path}"), answer)
        return answer

    def _read_header_and_note(self, timeout: float) -> Any:
        header = self._read_header_of_kazoo(timeout)
        self._event_zxid = max(0, header[0].zxid)  # of an event, since ZooKeeper 3.9; kazoo drops it
        return header

    def _read_watch_event(self, buffer: Any, offset: int) -> None:
        """kazoo removes watches as they fire, and finds them by the event's path only."""
        for root, on_event in self.tree_watches:
            notification, _ = Notification.deserialize(buffer, offset)
            kind, path = TREE_EVENTS.get(notification.type), self.unchroot(notification.path)
            if kind is not None and (path == root or path.startswith(f"{root}/")):
                self.handler.dispatch_callback(Callback("watch", on_event, (TreeEvent(kind, path, self._event_zxid),)))
        self._read_watch_event_of_kazoo(buffer, offset)

    def _session_callback(self, state: Any) -> None:
        with self._gate:
            if state in _CLOSED and self._first_session is not None:
                self.over = True
            if state == KeeperState.CONNECTED:
                if self._first_session is None:
                    self._first_session = self._session_id
                elif self._first_session != self._session_id:
                    self.over = True  # some servers replace the session silently
            super()._session_callback(state)
            if state in _CLOSED:
                self.settled.set()

    def _call(self, request: Any, async_object: Any) -> Any:
        """As kazoo's, whose bare `except` mistakes a Ctrl-C at this point for a closed connection."""
        with self._gate:
            if self.over or self._state in _CLOSED:
                async_object.set_exception(kz.SessionExpiredError())
                return False
            self._queue.append((request, async_object))
            wake = self._connection._write_sock
            with suppress(OSError):  # closed meanwhile
                if wake is not None:
                    wake.send(b"\0")
                    return None
            async_object.set_exception(kz.ConnectionClosedError("Connection has been closed"))
            return None


def _why_silent(client: OneSession) -> str:
    names = " and ".join(client.unresolved)
    if len(client.unresolved) == len({host for host, _ in client.hosts}):
        return f"the name service has no address of {names}, check the name"
    also = f"; the name service has no address of {names}" if names else ""
    return f"check the address, and that the ensemble runs and has a quorum{also}"


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """A watch on a path, as kazoo calls it. Compares by value: kazoo keeps a set per path, which must not grow.

    On connection loss kazoo calls every watch without a path; this one keeps its own.
    """

    watch: Watch
    path: str

    def __call__(self, event: Any) -> None:
        self.watch(self.path)


def wrapped(watch: Watch | None, path: str) -> _Wrapped | None:
    return _Wrapped(watch, path) if watch is not None else None


BACKOFF: Final = Backoff(0.2, 5.0)


class OutageLog:
    """The outages of one part of a process: from the loss of its connection to the next connection.

    :param client: their owner, for the log: `node a`, `consumer c1`.
    :param open_store: opens a session.
    """

    def __init__(self, client: str, servers: str, open_store: Callable[[], Store], runtime: Runtime) -> None:
        self._client = client
        self._servers = servers
        self._open_store = open_store
        self._runtime = runtime
        self._lock = runtime.lock()
        self._began: float | None = None
        self._has_expired = False
        self._current: object = None
        self._refusals = 0
        self._not_before = float("-inf")
        self._refusal: NotAuthorized | None = None

    def open(self) -> Store:
        """A new session; its outages are logged. Ends the outage of the last session.

        :raises ZooKeeperUnreachable: when no server answers. After a first session that is an outage.
        :raises NotAuthorized: when the client is refused; likewise. Then no request is sent during a backoff of
            up to `BACKOFF.longest_s`: the refusal is raised at once.
        :raises UsageError: when a file of credentials or certificates is unusable; after a first session a refusal.
        """
        if self._refusal is not None and self._runtime.monotonic() < self._not_before:
            raise self._refusal
        try:
            store = self._open_store()
        except ZooKeeperUnreachable:
            if self._current is not None:
                self._begin("no server answers", has_expired=True)
            raise
        except (NotAuthorized, UsageError) as error:
            if self._current is None:
                raise
            refusal = error if isinstance(error, NotAuthorized) else AuthenticationFailed(str(error))
            self._note(refusal)
            raise refusal from error.__cause__
        self._refusal, self._refusals = None, 0
        token = self._current = object()
        self._end()
        store.add_listener(lambda state: self._on_state(token, state))
        return store

    def _note(self, refusal: NotAuthorized) -> None:
        is_first, self._refusal = self._refusal is None, refusal
        self._refusals += 1
        self._not_before = self._runtime.monotonic() + BACKOFF.after(self._refusals)
        self._begin(str(refusal), has_expired=True, is_news=is_first)

    def _on_state(self, token: object, state: SessionState) -> None:
        if token is not self._current:
            return  # an older session, which is being closed
        if state is SessionState.SUSPENDED:
            self._begin("connection lost", has_expired=False)
        elif state is SessionState.CONNECTED:
            self._end()
        elif self._began is not None:
            self._has_expired = True

    def _begin(self, reason: str, has_expired: bool, is_news: bool = False) -> None:
        """Log the begin of an outage; during an outage, a new reason."""
        with self._lock:
            self._has_expired |= has_expired
            if self._began is not None and not is_news:
                return
            self._began = self._began if self._began is not None else self._runtime.monotonic()
        log.warning("ZooKeeper unavailable: client=%s servers=%s reason=%s", self._client, self._servers, reason)

    def _end(self) -> None:
        with self._lock:
            began, has_expired = self._began, self._has_expired
            self._began, self._has_expired = None, False
        if began is None:
            return
        cost = "the session was lost, with its ephemeral znodes" if has_expired else "the session was kept"
        after_s = self._runtime.monotonic() - began
        log.warning("ZooKeeper available: client=%s after_s=%.1f cost=%s", self._client, after_s, cost)


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log: a line for each attempt to connect is for debugging; an unhandled failure stays an error."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        below = logging.DEBUG if level > logging.DEBUG else logging.NOTSET + 1
        super().log(level if level >= logging.ERROR else below, msg, *args, **options)

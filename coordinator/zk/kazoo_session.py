"""kazoo's client, held to one session: what its own would do at the end of one, and while it looks for a server."""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.serialization import Watch as Notification
from kazoo.protocol.states import Callback, KeeperState

from .multi import TREE_EVENTS, AddTreeWatch
from .store import TreeEvent, TreeWatch

TRIES = 3
"""So many servers, or one so often, may be tried within a session's time though none of them answers."""

CLOSED = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo makes and registers a new selector for every request and answer; the plain call takes a tenth of it.

    :ivar patience_s: how long a server may take to accept a connection; kazoo waits a whole session's time for it.
    """

    patience_s = float("inf")

    def create_connection(self, *arguments: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*arguments, timeout=min(timeout, self.patience_s), **options)

    def select(self, *arguments: Any, **options: Any) -> Any:
        try:
            return select.select(*arguments, **options)
        except ValueError:  # a file descriptor over 1023
            return super().select(*arguments, **options)


class OneSession(KazooClient):  # type: ignore[misc]
    """A kazoo client that answers nothing after its first session has ended.

    kazoo itself opens another session and sends what was queued on it. The lock makes `_call` and the end of the
    session exclude each other: a request is either queued before the end, and fails with it, or refused.

    A server that is being started may take a connection and never answer, while it counts the session's time; kazoo
    would wait for it until that is over. Here there is time for two more tries.

    :param first_patience_s: for the first connection, which has no session to lose yet.
    """

    def __init__(self, first_patience_s: float, **options: Any) -> None:
        self._connector = _Handler()
        self._connector.patience_s = first_patience_s
        self.over = False
        self.negotiated_ms = 0
        self._first_session: int | None = None
        self._gate = threading.RLock()
        super().__init__(handler=self._connector, **options)
        self._invoke_of_kazoo = self._connection._invoke
        self._connection._invoke = self._invoke_and_note
        self.tree_watches: list[tuple[str, TreeWatch]] = []
        self._event_zxid = 0
        self._read_header_of_kazoo = self._connection._read_header
        self._connection._read_header = self._read_header_and_note
        self._read_watch_event_of_kazoo = self._connection._read_watch_event
        self._connection._read_watch_event = self._read_watch_event

    def _invoke_and_note(self, timeout: float, request: Any, xid: Any = None) -> Any:
        if not isinstance(request, Connect):
            return self._invoke_of_kazoo(timeout, request, xid)
        result = self._invoke_of_kazoo(min(timeout, self._connector.patience_s), request, xid)
        self.negotiated_ms = result[0].time_out  # kazoo keeps what the server granted in a local variable
        if self.negotiated_ms > 0:
            self._connector.patience_s = self.negotiated_ms / 1000 / max(TRIES, len(self.hosts))
        return result

    def add_tree_watch(self, path: str, on_event: TreeWatch) -> Any:
        self.tree_watches = [*(other for other in self.tree_watches if other[0] != path), (path, on_event)]
        answer = self.handler.async_result()
        self._call(AddTreeWatch(f"{self.chroot}{path}"), answer)
        return answer

    def _read_header_and_note(self, timeout: float) -> Any:
        found = self._read_header_of_kazoo(timeout)
        self._event_zxid = max(0, found[0].zxid)  # of an event, since ZooKeeper 3.9; kazoo passes only the rest on
        return found

    def _read_watch_event(self, buffer: Any, offset: int) -> None:
        """Kazoo takes watches off as they fire, and knows them by the path of the event only."""
        for root, on_event in self.tree_watches:
            notification, _ = Notification.deserialize(buffer, offset)
            kind, path = TREE_EVENTS.get(notification.type), self.unchroot(notification.path)
            if kind is not None and (path == root or path.startswith(f"{root}/")):
                self.handler.dispatch_callback(Callback("watch", on_event, (TreeEvent(kind, path, self._event_zxid),)))
        self._read_watch_event_of_kazoo(buffer, offset)

    def _session_callback(self, state: Any) -> None:
        with self._gate:
            if state in CLOSED and self._first_session is not None:
                self.over = True
            if state == KeeperState.CONNECTED:
                if self._first_session is None:
                    self._first_session = self._session_id
                elif self._first_session != self._session_id:
                    self.over = True  # some servers swap the session silently
            super()._session_callback(state)

    def _call(self, request: Any, async_object: Any) -> Any:
        """As kazoo's, whose bare `except` takes a Ctrl-C that comes just here for a closed connection."""
        with self._gate:
            if self.over or self._state in CLOSED:
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

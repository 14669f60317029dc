"""kazoo's client, for one session: what the store needs of it and kazoo lacks."""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.serialization import Watch as Notification
from kazoo.protocol.states import Callback, KeeperState

from .store import TreeEvent, TreeWatch
from .wire import TREE_EVENTS, AddTreeWatch

CONNECT_TRIES: Final = 3  # that fit into one session timeout
_CLOSED = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A plain `select` instead of kazoo's new selector per request and answer: a tenth of the cost.

    :param patience_s: how long a server may take to accept a connection; kazoo waits a whole session timeout.
    """

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.patience_s = patience_s

    def create_connection(self, *arguments: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*arguments, timeout=min(timeout, self.patience_s), **options)

    def select(self, *arguments: Any, **options: Any) -> Any:
        try:
            return select.select(*arguments, **options)
        except ValueError:  # a file descriptor over 1023
            return super().select(*arguments, **options)


class OneSession(KazooClient):  # type: ignore[misc]
    """A kazoo client that fails every request after its first session has ended.

    kazoo itself opens another session and sends the queued requests on it. The lock orders `_call` and the session's
    end: a request is either queued before the end, and fails with it, or refused.

    A starting server may accept a connection and not answer while the session timeout runs; kazoo would wait for all of
    it. Here the wait leaves time for two more attempts.
    """

    def __init__(self, **options: Any) -> None:
        self.over = False
        self.negotiated_ms = 0
        self._first_session: int | None = None
        self._gate = threading.RLock()
        super().__init__(**options)
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
        found = self._read_header_of_kazoo(timeout)
        self._event_zxid = max(0, found[0].zxid)  # of an event, since ZooKeeper 3.9; kazoo drops it
        return found

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

"""Outages of ZooKeeper, over all sessions of a process: two lines in its log, and a backoff after refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from .errors import AuthenticationFailed, NotAuthorized, UsageError, ZooKeeperUnreachable
from .runtime import Runtime
from .store import SessionState, Store

log = logging.getLogger(__name__)

FIRST_BACKOFF_S: Final = 0.2
LONGEST_BACKOFF_S: Final = 5.0


class OutageLog:
    """The outages that one part of a process sees: from the loss of its connection to the next one.

    :param client: whose they are, for the log: `node a`, `consumer c1`.
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
        self._backoff_s = FIRST_BACKOFF_S
        self._not_before = float("-inf")
        self._refusal: NotAuthorized | None = None

    def open(self) -> Store:
        """A new session; its outages are logged. Ends the outage in which the last one was lost.

        :raises ZooKeeperUnreachable: when no server answers. After a first session that is an outage.
        :raises NotAuthorized: when the client is refused; likewise. Then no server is asked again before a backoff of
            up to `LONGEST_BACKOFF_S` has passed: the refusal is raised at once.
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
        self._refusal, self._backoff_s = None, FIRST_BACKOFF_S
        token = self._current = object()
        self._end()
        store.add_listener(lambda state: self._on_state(token, state))
        return store

    def _note(self, refusal: NotAuthorized) -> None:
        is_first, self._refusal = self._refusal is None, refusal
        self._not_before = self._runtime.monotonic() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
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
        """Log an outage as it begins; in a running one, a reason that is news."""
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
        log.warning(
            "ZooKeeper available: client=%s after_s=%.1f cost=%s", self._client, self._runtime.monotonic() - began, cost
        )


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log: a line for each attempt to connect is for debugging; what it cannot handle stays an error."""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """See logging."""
        below = logging.DEBUG if level > logging.DEBUG else logging.NOTSET + 1
        super().log(level if level >= logging.ERROR else below, msg, *args, **options)

"""Commits that an application does not make itself: `enable_auto_commit`, with Kafka's moments for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coordinator.zk.runtime import Runtime

from .config import ConsumerConfig
from .errors import CommitFailed

log = logging.getLogger(__name__)


class AutoCommit:
    """Commits inside `poll`, before it returns anything new; before partitions are given up; and on close.

    So what is committed is what earlier polls returned, and an application that is done with its records when it polls
    again loses none. What could not be committed comes again, to whoever has the partition then.

    :param commit: commits what was returned; it may raise `CommitFailed`.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, commit: Callable[[], None]) -> None:
        self._is_enabled = config.enable_auto_commit
        self._consumer = config.consumer
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._runtime = runtime
        self._commit = commit
        self._last = runtime.monotonic()

    def if_due(self) -> None:
        """Every `auto_commit_interval_ms`."""
        if self._is_enabled and self._runtime.monotonic() - self._last >= self._interval_s:
            self.now()

    def now(self) -> None:
        """Commit; where that fails it is said, and the next time is another try."""
        if not self._is_enabled:
            return
        try:
            self._commit()
        except CommitFailed as error:
            log.warning("not committed by itself: consumer=%s reason=%s", self._consumer, error)
        self._last = self._runtime.monotonic()

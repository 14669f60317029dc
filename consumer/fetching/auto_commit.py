"""Automatic commits: `enable_auto_commit`, at the same times as Kafka's."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coordinator.zk.runtime import Runtime

from ..config import ConsumerConfig
from ..errors import CommitFailed

log = logging.getLogger(__name__)


class AutoCommit:
    """Commits inside `poll`, before it returns new records; before partitions are revoked; and on close.

    Records of earlier polls are committed, so an application that has processed its records when it polls again
    loses none. Uncommitted records are fetched again, by the partition's next owner.

    :param commit: commits the returned records; it may raise `CommitFailed`.
    :ivar is_enabled: False after the application has failed: it may not have processed what was returned.
    """

    def __init__(self, config: ConsumerConfig, runtime: Runtime, commit: Callable[[], None]) -> None:
        self.is_enabled = config.enable_auto_commit
        self._consumer = config.consumer
        self._interval_s = config.auto_commit_interval_ms / 1000
        self._runtime = runtime
        self._commit = commit
        self._last = runtime.monotonic()

    def if_due(self) -> None:
        """Every `auto_commit_interval_ms`."""
        if self.is_enabled and self._runtime.monotonic() - self._last >= self._interval_s:
            self.now()

    def now(self) -> None:
        """Commit; a failure is logged, and the next call tries again."""
        if not self.is_enabled:
            return
        try:
            self._commit()
        except CommitFailed as error:
            log.warning("auto commit failed: consumer=%s reason=%s", self._consumer, error)
        self._last = self._runtime.monotonic()

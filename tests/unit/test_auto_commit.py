"""Times of commits under `enable_auto_commit`, and failed commits."""

from __future__ import annotations

import logging

import pytest

from consumer.config import ConsumerConfig
from consumer.errors import CommitFailed
from consumer.fetching.polling import AutoCommit
from tests.unit.manual import ManualRuntime


class Commits:
    """Counts commits, of which some fail."""

    def __init__(self, enable_auto_commit: bool = True) -> None:
        self.count = 0
        self.fails = False
        self.runtime = ManualRuntime()
        config = ConsumerConfig("zk:1", "g", "c1", enable_auto_commit=enable_auto_commit, auto_commit_interval_ms=5000)
        self.auto = AutoCommit(config, self.runtime, self._commit)

    def _commit(self) -> None:
        self.count += 1
        if self.fails:
            raise CommitFailed("ZooKeeper does not answer")

    def polls_after(self, seconds: float) -> int:
        self.runtime.now += seconds
        self.auto.if_due()
        return self.count


def test_auto_commit_runs_every_interval_since_the_last_commit() -> None:
    commits = Commits()

    assert [commits.polls_after(seconds) for seconds in (0, 4.9, 0.1, 4.9, 0.1)] == [0, 0, 1, 1, 2]
    commits.runtime.now += 4
    commits.auto.now()
    assert [commits.polls_after(seconds) for seconds in (4.9, 0.1)] == [3, 4]


def test_auto_commit_is_off_unless_enabled() -> None:
    commits = Commits(enable_auto_commit=False)
    commits.auto.now()

    assert commits.polls_after(100) == 0


def test_failed_commit_is_logged_and_retried_after_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    commits = Commits()
    commits.fails = True

    with caplog.at_level(logging.WARNING):
        assert [commits.polls_after(seconds) for seconds in (5, 1, 4)] == [1, 1, 2]
    assert caplog.messages == ["auto commit failed: consumer=c1 reason=ZooKeeper does not answer"] * 2

"""The Spark that reads the DataFrame for drills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.ensemble import command_line, descendants
from zk_group.drills.base.processes import NotReached
from zk_group.drills.testbed.testbed import DataFrameReader

pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(600)]


def test_reader_that_exits_reports_its_error_without_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    reader = DataFrameReader(tmp_path)
    try:
        with pytest.raises(NotReached, match=r"Spark has ended: .*JAVA_GATEWAY_EXITED"):
            reader.read("localhost:1", "g")
    finally:
        reader.close()


def test_a_reader_that_was_killed_is_started_again_for_the_next_question(tmp_path: Path, zk: str) -> None:
    reader = DataFrameReader(tmp_path)
    try:
        with pytest.raises(NotReached, match="no group missing"):
            reader.read(zk, "missing")
        os.kill(reader.process.pid, signal.SIGKILL)
        eventually(lambda: not reader.process.is_running, 10, "it is gone")

        with pytest.raises(NotReached, match="no group missing"):
            reader.read(zk, "missing")
        family = [reader.process.pid, *descendants(reader.process.pid)]
        assert any("org.apache.spark" in command_line(pid) for pid in family)
    finally:
        reader.close()
    eventually(lambda: not [pid for pid in family if command_line(pid)], 20, "its JVM has ended with it")

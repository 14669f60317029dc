"""The Spark that reads the DataFrame for drills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from coordinator.drills.reader import Reader
from coordinator.drills.waiting import NotReached
from tests.support.wait import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_reader_that_was_killed_is_started_again_for_the_next_question(tmp_path: Path, zk: str) -> None:
    reader = Reader(tmp_path)
    try:
        with pytest.raises(NotReached, match="no group nobody"):
            reader.read(zk, "nobody")
        os.kill(reader.pid, signal.SIGKILL)
        eventually(lambda: not reader.is_running, 10, "it is gone")

        with pytest.raises(NotReached, match="no group nobody"):
            reader.read(zk, "nobody")
    finally:
        reader.close()

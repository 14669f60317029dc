"""The action of a signal is done in any state of the main thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IN_THE_MIDST = """
import os, signal, threading
from coordinator.zk.runtime import on_signals

ended = threading.Event()
on_signals([signal.SIGTERM], lambda number: ended.set())
with ended._cond:  # as `wait` holds it for a moment
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
print(ended.wait(10))
"""


def test_signal_during_a_lock_of_its_event_blocks_nothing() -> None:
    root = Path(__file__).parents[2]

    done = subprocess.run(
        [sys.executable, "-c", IN_THE_MIDST], cwd=root, capture_output=True, text=True, timeout=30, check=True
    )

    assert done.stdout == "True\n"

"""The demo, run as a new user runs it, ends with PASS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def processes_that_name(folder: Path) -> list[str]:
    """The command lines of the processes that have `folder` in theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found


def test_the_demo_loses_and_repeats_nothing_and_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--json", "--runs", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts" / "lib")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["verdict"] == "PASS"
    assert (verdict["records"], verdict["lost"], verdict["duplicated"]) == (336_776, 0, 0)
    assert verdict["executors_killed"] == 1
    assert verdict["coordinator_failover_ms"] > 0
    assert processes_that_name(tmp_path) == []

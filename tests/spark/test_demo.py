"""The demo, run as a new user runs it, ends with PASS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.kafka import require_kafka
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, command_line

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LONGEST_S = 480.0

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def processes_that_name(folder: Path) -> list[str]:
    """The command lines of the processes that have `folder` in theirs."""
    commands = [command_line(pid) for pid in psutil.pids() if pid != os.getpid()]
    return [command for command in commands if str(folder) in command]


def logs_below(folder: Path, most: int = 4000) -> str:
    """The ends of the processes' logs: the folder is removed after the test."""
    found = [*folder.rglob("*.log"), *folder.rglob("stderr")]
    logs = ((path, path.read_text(errors="replace")[-most:]) for path in sorted(found) if "data" not in path.parts)
    return "".join(f"\n==> {path.relative_to(folder)}\n{text}" for path, text in logs if text)


@contextmanager
def demo(runs: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that runs; if it still does at the end, it is ended in order."""
    command = [sys.executable, "-m", "demo", "--json", "--runs", str(runs), *options]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts" / "lib")}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # it stops what it has started
            process.communicate()


def demonstrated(runs: Path, *options: str) -> dict[str, Any]:
    """The verdict of a demo that ended well, and left nothing behind."""
    with demo(runs, *options) as process:
        out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err[-3000:] + out[-1000:] + logs_below(runs)
    assert processes_that_name(runs) == []
    verdict: dict[str, Any] = json.loads(out.splitlines()[-1])
    return verdict


@pytest.mark.parametrize(
    ("options", "servers"),
    [
        (("--secure",), 1),
        pytest.param(("--servers", "3", "--kafka"), 3, marks=pytest.mark.full("the ways to run the demo")),
    ],
    ids=["with the embedded log, secured", "three servers and kafka"],
)
def test_the_demo_loses_repeats_and_leaves_nothing(tmp_path: Path, options: tuple[str, ...], servers: int) -> None:
    if "--kafka" in options:
        require_kafka()

    verdict = demonstrated(tmp_path, *options)

    assert verdict["verdict"] == "PASS"
    assert (verdict["records"], verdict["lost"], verdict["duplicated"]) == (336_776, 0, 0)
    assert verdict["executors_killed"] == 1
    assert verdict["coordinator_failover_ms"] > 0
    assert verdict["rebalances"] >= 3
    assert verdict["longest_standstill_ms"] > 0
    (ensemble,) = tmp_path.glob("demo/*/zookeeper")
    assert len(Ensemble.load(ensemble).servers) == servers
    brokers = [path.name for path in tmp_path.glob("demo/*/kafka/broker/data/flights-?")]
    assert len(brokers) == (8 if "--kafka" in options else 0)
    if "--secure" in options:
        assert verdict["intruder_attempts"] >= 40
        assert verdict["intruder_refused"] == verdict["intruder_attempts"]


@pytest.mark.full("the ways to run the demo")
def test_interrupted_demo_stops_all_processes_that_it_has_started(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        assert process.stderr is not None
        before = next(line for line in process.stderr if "starting coordinator nodes" in line)
        process.terminate()
        out, err = process.communicate(timeout=60)

    assert "starting coordinator nodes a and b" in before
    assert "interrupted; all started processes are stopped" in err
    assert (process.returncode, out) == (130, "")
    assert processes_that_name(tmp_path) == []

"""Scripts: rules for every shell script, and parts of `scripts/bench` and `scripts/demo` without Spark."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from click.testing import CliRunner

from zk_group import __version__
from zk_group.consumer.cli import main as consumer_main
from zk_group.coordinator.cli import main as coordinator_main

ROOT = Path(__file__).parents[2]
LIBRARY = str(ROOT / "scripts" / "lib")
# A reader that leaves before its writer is done: the writer gets SIGPIPE now and then, and pipefail fails the script.
LEAVES_EARLY = re.compile(r"(?<!\|)\|(?!\|) *(head\b|grep +-[A-Za-z]*[qm]|sed +[^|]*\dq\b)")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of the scripts can be imported."""
    monkeypatch.syspath_prepend(LIBRARY)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bench", "common", "demo")]:
        del sys.modules[name]


def shell_scripts() -> list[Path]:
    folders = (ROOT / "scripts", ROOT / "tests", ROOT / ".ci")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix in ("", ".sh")]
    return [path for path in files if path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# shellcheck"))]


def test_no_script_under_pipefail_reads_only_the_beginning_of_a_pipe() -> None:
    scripts = [path for path in shell_scripts() if "pipefail" in path.read_text()]
    assert len(scripts) >= 6
    early = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in scripts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LEAVES_EARLY.search(line)
    ]
    assert early == []


ENTRY_POINTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkout with the scripts alone."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def put_programs(folder: Path, text: str, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize("script", ENTRY_POINTS)
def test_help_of_a_script_installs_nothing(script: str, copied: Path) -> None:
    pythons = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")
    put_programs(copied / "programs", "echo called >&2\nexit 1", *pythons, "java", "apt-get")
    command, path = [copied / "scripts" / script, "--help"], f"{copied / 'programs'}:{os.environ['PATH']}"

    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: scripts/{script}")
    assert len(done.stdout) > 80, "a usage describes the script"
    assert not (copied / ".venv").exists()


@pytest.mark.parametrize(("peer", "extras"), [("aiokafka", ["bench"]), ("spark", [])])
def test_bench_installs_the_peers_that_it_is_asked_for(peer: str, extras: list[str], copied: Path) -> None:
    put_programs(copied / ".venv" / "bin", 'echo "$@"', "python", "pip")
    shutil.copy(ROOT / "setup.cfg", copied / ".venv" / ".installed-dev")  # it includes all but the peers

    command = [copied / "scripts" / "bench", "stream", "--against", peer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert [line.rpartition("[")[2].rstrip("]") for line in done.stderr.splitlines() if "--editable" in line] == extras
    assert done.stdout == f"-m bench stream --against {peer}\n"


def test_the_wheels_commands_have_one_version() -> None:
    runner = CliRunner()

    versions = [runner.invoke(main, ["--version"]).output for main in (coordinator_main, consumer_main)]

    assert versions == [f"zk-coordinator, version {__version__}\n", f"zk-consumer, version {__version__}\n"]


# ---- `bench assignors`: missing peers, and slow ones


@pytest.fixture
def bench(library: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("bench.assignors")
    monkeypatch.setattr(module, "machine", dict)
    monkeypatch.setattr(module, "find_spec", lambda module: module != "aiokafka" or None)
    monkeypatch.setattr(module, "version", lambda package: "1.0")
    return module


class Worker:
    """Our own in this process, and a peer that is too slow when a consumer joins."""

    def __init__(self, module: Any, name: str, partitions: int) -> None:
        self._module, self._name = module, name
        self._ours = module.Ours(partitions)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def seconds(self, names: list[str], is_first: bool, limit_s: float) -> float:
        if self._name != "ours" and not is_first:
            raise self._module.TooSlow("an assignment took more than 5 s")
        took: float = self._ours.seconds(names, is_first)
        return took


@pytest.mark.long
def test_missing_peer_is_null_and_a_slow_one_over_its_limit(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Worker", lambda name, partitions: Worker(bench, name, partitions))
    output: list[str] = []

    found = bench.measure(consumers=3, partitions=60, rounds=2, peer_limit_s=5.0, tell=output.append)

    assert output[0] == "not installed, skipped: aiokafka (pip install zk-group-coordinator[bench])"
    assert "kafka-python: join: an assignment took more than 5 s" in output
    for step in ("fresh", "join", "leave"):
        figures = found[f"ours_{step}_ms"]
        assert 0 < figures["min"] <= figures["median"] <= figures["max"]
        assert found[f"aiokafka_{step}_ms"] is None
    assert found["kafka_python_join_ms"] == {"more_than": 5000.0}
    assert found["kafka_python_leave_ms"] is None
    assert found["versions"] == {"kafka-python": "1.0", "aiokafka": None}
    assert list(found["ours_join_cpu_ms_by_partitions"]) == ["60", "120", "240"]


def test_unresponsive_peer_is_killed_after_the_timeout(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", LIBRARY)
    worker = bench.Worker("ours", 2000)
    names = [f"c{number}" for number in range(2)]

    with worker:
        assert worker.seconds(names, True, 30.0) > 0
        os.kill(worker._process.pid, signal.SIGSTOP)  # else it may answer before it is looked at
        with pytest.raises(bench.TooSlow, match="took more than 0 s"):
            worker.seconds(names, True, 0.0)
        worker._process.join(10)
        assert worker._process.exitcode is not None


@pytest.mark.long
def test_failing_peer_is_reported_and_the_others_are_measured(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Worker):
        def seconds(self, names: list[str], is_first: bool, limit_s: float) -> float:
            if self._name != "ours":
                raise self._module.Unmeasured("an assignment: it failed")
            return super().seconds(names, is_first, limit_s)

    monkeypatch.setattr(bench, "Worker", lambda name, partitions: Failing(bench, name, partitions))
    output: list[str] = []

    found = bench.measure(consumers=3, partitions=200, rounds=1, peer_limit_s=5.0, tell=output.append)

    assert "kafka-python: fresh: an assignment: it failed" in output
    assert found["kafka_python_fresh_ms"] is None
    assert found["ours_leave_ms"]["min"] > 0


# ---- the Spark session of `bench stream` and `bench latency`


@pytest.fixture
def ground(library: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(variable, "")
    from bench import ground

    monkeypatch.setattr(ground, "register", lambda spark: None)
    return ground


def test_benchmarks_keep_spark_shuffle_partitions(ground: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    builder = MagicMock()
    for method in (builder.master, builder.appName, builder.config):
        method.return_value = builder
    monkeypatch.setattr("zk_group.drills.workloads.spark_app.SparkSession", MagicMock(builder=builder))

    ground.session(tmp_path)

    options: dict[str, str] = {}
    for call in builder.config.call_args_list:
        options |= call.kwargs.get("map") or dict([call.args])
    assert len(options) > 1 and options.get("spark.sql.shuffle.partitions", "200") == "200"


# ---- restarts of a query by the demo's Spark application

LATE = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back."


@pytest.fixture
def driver(library: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    import demo.driver

    monkeypatch.setattr(demo.driver, "LOOK_S", 0.001)
    return demo.driver


def queries(*reasons: str | None) -> Iterator[Any]:
    """A query for each reason for which it has ended; None runs."""
    for number, reason in enumerate(reasons):
        yield SimpleNamespace(id=number, isActive=reason is None, exception=lambda reason=reason: reason)


def printed_events(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(event["event"], event.get("reason", "")) for event in events]


def run_queries(driver: Any, monkeypatch: pytest.MonkeyPatch, *reasons: str | None) -> Any:
    """The query with which it ends; the application is stopped when one runs, or when it waits."""
    given = queries(*reasons)
    stopping = threading.Event()

    def start(spark: Any, config: Any) -> Any:
        query = next(given)
        if query.isActive:
            stopping.set()
        return query

    monkeypatch.setattr(driver, "start_query", start)
    monkeypatch.setattr(stopping, "wait", lambda timeout=None: stopping.is_set())
    return driver.run_query(None, {}, stopping)


def test_query_whose_python_process_started_too_late_is_restarted(
    driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_queries(driver, monkeypatch, LATE, LATE, None).id == 2
    assert printed_events(capsys) == [("query", ""), ("again", LATE), ("query", ""), ("again", LATE), ("query", "")]


@pytest.mark.parametrize("reasons", [["out of memory"], [LATE] * 5], ids=["another reason", "too often"])
def test_failing_query_is_reported_and_not_restarted_forever(
    reasons: list[str], driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_queries(driver, monkeypatch, *reasons)
    events = printed_events(capsys)
    assert events[-1] == ("failed", reasons[-1])
    assert [event for event, _ in events].count("query") == len(reasons)


def test_the_pool_is_resized_until_the_application_is_stopped(
    driver: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: list[int] = []
    stopping = threading.Event()
    monkeypatch.setattr(sys, "stdin", io.StringIO("resize 6\nresize 4\nstop\nresize 9\n"))

    driver.obey(SimpleNamespace(resize=sizes.append), stopping)

    assert sizes == [6, 4]
    assert stopping.is_set()
    assert printed_events(capsys) == [("resized", ""), ("resized", "")]


# ---- the demo's verdict


@pytest.fixture
def story(library: None, tmp_path: Path) -> Any:
    """A successful run."""
    from demo.story import Story

    story = Story(tmp_path, 1, lambda line: None, lambda *counts: None)
    story.verdict.coordinator_failover_ms = 4000
    story.verdict.executors_killed = 1
    story.verdict.rebalances = 3
    story.verdict.state = "Stable"
    return story


@pytest.mark.parametrize(
    ("field", "value", "is_same", "findings"),
    [
        ("lost", 0, True, 0),
        ("lost", 1, True, 1),
        ("duplicated", 1, True, 1),
        ("coordinator_failover_ms", None, True, 1),
        ("executors_killed", 0, True, 1),
        ("rebalances", 2, True, 1),
        ("state", "PreparingRebalance", True, 1),
        ("lost", 0, False, 1),
    ],
    ids=["success", "lost", "duplicated", "no failover", "none killed", "rebalances", "state", "another result"],
)
def test_each_fault_is_a_finding(story: Any, field: str, value: object, is_same: bool, findings: int) -> None:
    setattr(story.verdict, field, value)

    story._judge(is_same)

    assert len(story.verdict.failures) == findings


@pytest.mark.usefixtures("story")
@pytest.mark.long
def test_pyarrow_replaces_no_signal_handler_while_the_flights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from demo.flights import load_flights

    replaced: list[int] = []

    def handler_of(number: int) -> signal.Handlers:
        replaced.append(number)  # pyarrow gets the handlers that it is about to replace
        return signal.SIG_DFL

    monkeypatch.setattr(signal, "getsignal", handler_of)
    pa.enable_signal_handlers(True)

    load_flights()

    assert replaced == []


CRASH = """
import os
def test_before(): pass
def test_crash(): os._exit(1)
def test_after(): pass
"""


@pytest.mark.long
def test_tests_of_a_crashed_worker_are_run_and_the_one_it_crashed_in_fails_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler")
    file = tmp_path / "tests" / "docker" / "test_some.py"
    file.parent.mkdir(parents=True)
    file.write_text(CRASH)
    command = [sys.executable, "-m", "pytest", "-n1", "--no-loadscope-reorder", "-pno:cacheprovider", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    assert re.search(r"= 1 failed, 2 passed in", done.stdout), done.stdout

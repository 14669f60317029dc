"""`scripts/bench`, whose last line has every figure, measured; and the examples `scripts/jobs` and `scripts/counts`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.append(str(SCRIPTS / "lib"))

from counts.__main__ import wrong_keys  # noqa: E402
from jobs.__main__ import Step, in_two_places  # noqa: E402

SIZES = ("--members", "2", "--partitions", "8", "--rounds", "1", "--session-timeout-ms", "2000")


def ran(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [SCRIPTS / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, stdin=subprocess.DEVNULL)


def report_of(script: str, *arguments: str) -> Any:
    """The last line of one that succeeds."""
    done = ran(script, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full("benches")
@pytest.mark.parametrize(
    ("strategy", "options", "commands", "stopped"),
    [("range", (), 5, 10), ("cooperative-sticky", ("--processes",), 3, 3)],
    ids=["range in threads", "cooperative in processes"],
)
def test_rebalance_bench_has_every_figure(strategy: str, options: tuple[str, ...], commands: int, stopped: int) -> None:
    report = report_of("bench", "rebalance", *SIZES, "--strategy", strategy, *options)

    for figure in ("join_ms", "leave_ms", "resign_ms", "kill_ms", "transactions", "commands", "waves"):
        assert set(report[figure]) == {"min", "median", "max"}, figure
        assert 0 < report[figure]["min"] <= report[figure]["median"] <= report[figure]["max"], figure
    # Range is eager: each of two stops, each of three starts. Else each of two gives something up, and one starts.
    assert report["commands"]["median"] == commands
    assert report["transactions"]["min"] >= 2 + commands + 1  # a first turn, a last one, and one for each wave
    # The round that warms up has made two partitions more: ten.
    assert (report["stopped"]["median"], report["had_to_stop"]["median"]) == (stopped, 3)
    assert (report["moved_standstill_ms"] is not None) == (stopped == 3)
    assert report["kill_ms"]["max"] > 1000, "no failover before a dead coordinator's session expires"
    assert {"busy_before_percent", "load_1m_before", "cpus", "coordinator_peak_mb"} <= set(report)


@pytest.mark.full("benches")
def test_rebalance_bench_of_both_sides_compares_their_joins() -> None:
    report = report_of("bench", "rebalance", *SIZES, "--assignment", "client,coordinator")

    joins = [report[side]["join_ms"]["median"] for side in ("client", "coordinator")]
    assert report["ratio"] == pytest.approx(joins[0] / joins[1], abs=0.001)
    assert report["client"]["commands"]["median"] == report["coordinator"]["commands"]["median"] + 1, "the ask"


@pytest.mark.full("benches")
def test_region_bench_measures_pauses_and_compares_resets_with_rebalances() -> None:
    report = report_of("bench", "region", *SIZES)

    for figure in ("pause_ms", "checkpoint_ms", "reset_ms", "rebalance_ms"):
        assert 0 < report[figure]["min"] <= report[figure]["median"] <= report[figure]["max"], figure
    assert report["reset_ratio"] == pytest.approx(
        report["reset_ms"]["median"] / report["rebalance_ms"]["median"], abs=0.001
    )
    assert report["pause_ms"]["max"] < 60_000, "the pause of a checkpoint, not the time between two"


@pytest.mark.full("benches")
def test_a_skewed_backlog_is_balanced_by_the_protocol_lag_on_a_real_log() -> None:
    report = report_of("bench", "lag", "--consumers", "3", "--partitions", "12", "--records", "3000")

    assert sum(report["backlog_before"]) == sum(report["backlog_after"]) == report["records"]
    assert report["spread_after"] < 0.2 < report["spread_before"]


@pytest.mark.full("benches")
def test_poll_bench_measures_times_and_the_memory_of_another_process() -> None:
    report = report_of("bench", "poll", "--polls", "100", "--partitions", "10")

    memory = [figures for name, figures in report.items() if name.startswith("memory_mb")]
    assert memory
    assert all(figures["grown_all"] > 0 for figures in memory)


def test_assignor_bench_reports_every_step_with_or_without_installed_peers() -> None:
    report = report_of("bench", "assignors", "--consumers", "3", "--partitions", "200", "--rounds", "1")

    for step in ("fresh", "join", "leave"):
        assert set(report[f"ours_{step}_ms"]) == {"min", "median", "max"}
        assert (report[f"aiokafka_{step}_ms"] is None) == (report["versions"]["aiokafka"] is None)


@pytest.mark.parametrize("is_given", [False, True], ids=["not fetched", "empty folder"])
def test_missing_connector_has_a_remedy(is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ZK_GROUP_IVY_SETTINGS", str(tmp_path / "none.xml"))
    monkeypatch.setenv("ZK_GROUP_BENCH_SPARK_KAFKA_JARS", str(tmp_path) if is_given else "")

    done = ran("bench", "stream", "--source", "kafka", "--against", "spark")

    assert done.returncode == 69
    assert "ZK_GROUP_BENCH_SPARK_KAFKA_JARS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_size_that_makes_no_sense_is_refused_in_a_sentence() -> None:
    done = ran("bench", "rebalance", "--members", "0")

    assert done.returncode == 2
    assert "--members" in done.stderr
    assert "Traceback" not in done.stderr


# ---- scripts/jobs


@pytest.mark.full("examples")
def test_every_job_runs_in_one_place_when_workers_are_killed_frozen_and_stopped() -> None:
    verdict = report_of("jobs")

    assert verdict["verdict"] == "PASS"
    assert (verdict["in_two_places"], verdict["never_run"]) == ([], [])
    assert verdict["jobs"] == 8 and verdict["steps"] > 100


@pytest.mark.parametrize(
    ("steps", "is_odd"),
    [
        ([Step(1, 1, "a"), Step(2, 1, "a"), Step(3, 2, "b")], False),
        ([Step(1, 1, "a"), Step(2, 1, "b")], True),
        ([Step(1, 1, "a"), Step(2, 2, "b"), Step(3, 1, "a")], True),
        ([Step(1, 1, "a"), Step(2, 2, "b"), Step(3, 3, "a")], False),
    ],
    ids=["handed on", "two in one generation", "continues after it was handed on", "returns"],
)
def test_the_verdict_sees_a_job_in_two_places(steps: list[Step], is_odd: bool) -> None:
    assert in_two_places({"job": steps}) == (["job"] if is_odd else [])


@pytest.mark.full("examples")
def test_counts_in_memory_are_exact_when_workers_and_a_coordinator_are_killed() -> None:
    verdict = report_of("counts")

    assert verdict["verdict"] == "PASS" and verdict["wrong_keys"] == 0
    assert verdict["records"] == verdict["counted"] == 40_000
    assert verdict["kills"] == 4 and verdict["checkpoints"] > 5


def test_the_verdict_sees_a_record_that_was_counted_twice_or_never() -> None:
    written = Counter({"a": 2, "b": 1})

    assert wrong_keys(written, Counter({"a": 2, "b": 1})) == []
    assert wrong_keys(written, Counter({"a": 3, "c": 1})) == ["a", "b", "c"]

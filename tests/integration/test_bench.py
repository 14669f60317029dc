"""`scripts/bench`: its last line has every figure, measured, in the documented format."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BENCH, *arguments], capture_output=True, text=True, timeout=170, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.full("benches")
@pytest.mark.parametrize(
    ("strategy", "options", "commands", "stopped"),
    [("range", (), 5, 10), ("cooperative-sticky", ("--processes",), 3, 3)],
    ids=["range in threads", "cooperative in processes"],
)
def test_rebalance_bench_prints_every_figure_in_its_last_line(
    strategy: str, options: tuple[str, ...], commands: int, stopped: int
) -> None:
    sizes = ("--members", "2", "--partitions", "8", "--rounds", "1", "--session-timeout-ms", "2000")

    done = bench("rebalance", *sizes, "--json", "--strategy", strategy, *options)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
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
    sizes = ("--members", "2", "--partitions", "8", "--rounds", "1", "--session-timeout-ms", "2000")

    done = bench("rebalance", *sizes, "--json", "--assignment", "client,coordinator")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    joins = [report[side]["join_ms"]["median"] for side in ("client", "coordinator")]
    assert report["ratio"] == pytest.approx(joins[0] / joins[1], abs=0.001)
    assert report["client"]["commands"]["median"] == report["coordinator"]["commands"]["median"] + 1, "the ask"


@pytest.mark.full("benches")
def test_region_bench_measures_pauses_and_compares_resets_with_rebalances() -> None:
    sizes = ("--members", "2", "--partitions", "8", "--rounds", "1", "--session-timeout-ms", "2000")

    done = bench("region", *sizes, "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for figure in ("pause_ms", "checkpoint_ms", "reset_ms", "rebalance_ms"):
        assert 0 < report[figure]["min"] <= report[figure]["median"] <= report[figure]["max"], figure
    assert report["reset_ratio"] == pytest.approx(
        report["reset_ms"]["median"] / report["rebalance_ms"]["median"], abs=0.001
    )
    assert report["pause_ms"]["max"] < 60_000, "the pause of a checkpoint, not the time between two"


@pytest.mark.full("benches")
def test_a_skewed_backlog_is_balanced_by_the_protocol_lag_on_a_real_log() -> None:
    done = bench("lag", "--consumers", "3", "--partitions", "12", "--records", "3000", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert sum(report["backlog_before"]) == sum(report["backlog_after"]) == report["records"]
    assert report["spread_after"] < 0.2 < report["spread_before"]


@pytest.mark.full("benches")
def test_poll_bench_measures_times_and_the_memory_of_another_process() -> None:
    done = bench("poll", "--polls", "100", "--partitions", "10", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    memory = [figures for name, figures in report.items() if name.startswith("memory_mb")]
    assert memory
    assert all(figures["grown_all"] > 0 for figures in memory)


def test_assignor_bench_reports_every_step_with_or_without_installed_peers() -> None:
    done = bench("assignors", "--consumers", "3", "--partitions", "200", "--rounds", "1", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for step in ("fresh", "join", "leave"):
        assert set(report[f"ours_{step}_ms"]) == {"min", "median", "max"}
        assert (report[f"aiokafka_{step}_ms"] is None) == (report["versions"]["aiokafka"] is None)


@pytest.mark.parametrize("is_given", [False, True], ids=["not fetched", "empty folder"])
def test_a_missing_connector_is_reported_with_a_remedy(
    is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ZK_GROUP_IVY_SETTINGS", str(tmp_path / "none.xml"))
    monkeypatch.setenv("ZK_GROUP_BENCH_SPARK_KAFKA_JARS", str(tmp_path) if is_given else "")

    done = bench("stream", "--source", "kafka", "--against", "spark")

    assert done.returncode == 69
    assert "ZK_GROUP_BENCH_SPARK_KAFKA_JARS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_size_that_makes_no_sense_is_refused_in_a_sentence() -> None:
    done = bench("rebalance", "--members", "0")

    assert done.returncode == 2
    assert "--members" in done.stderr
    assert "Traceback" not in done.stderr

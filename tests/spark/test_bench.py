"""`scripts/bench stream` and `latency`: every record reaches the DataFrame; the last line has the figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.full("benches")

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.mark.timeout(400)
def test_stream_bench_prints_records_a_second_and_a_processor_second() -> None:
    sizes = ("--records", "20000", "--record-bytes", "100", "--warm-ups", "1", "--rounds", "1")

    done = subprocess.run(
        [BENCH, "stream", *sizes, "--json"],
        capture_output=True, text=True, timeout=380, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["records"] == 20000
    for figure in ("records_per_s", "records_per_cpu_s"):
        assert 0 < report[figure]["min"] <= report[figure]["median"] <= report[figure]["max"]
    loop = report["peers"]["pyarrow"]["records_per_s"]["median"]
    assert report["ratio"]["pyarrow"] == pytest.approx(report["records_per_s"]["median"] / loop, abs=0.01)


@pytest.mark.timeout(400)
def test_stream_bench_compares_with_sparks_kafka_source_or_names_the_remedy() -> None:
    sizes = ("--records", "20000", "--record-bytes", "100", "--warm-ups", "1", "--rounds", "1")

    done = subprocess.run(
        [BENCH, "stream", *sizes, "--source", "kafka", "--against", "spark", "--json"],
        capture_output=True, text=True, timeout=380, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    if done.returncode == 69:  # the registry lacks the connector
        assert "name a folder that has them in ZK_GROUP_BENCH_SPARK_KAFKA_JARS" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    for ratio, figure in (("ratio", "records_per_s"), ("ratio_cpu", "records_per_cpu_s")):
        peer = report["peers"]["spark"][figure]["median"]
        assert report[ratio]["spark"] == pytest.approx(report[figure]["median"] / peer, rel=0.01, abs=0.001)


@pytest.mark.timeout(400)
def test_latency_bench_prints_the_time_of_a_record_from_the_log_to_the_sink() -> None:
    done = subprocess.run(
        [BENCH, "latency", "--rate", "200", "--warm-up-s", "5", "--seconds", "3", "--json"],
        capture_output=True, text=True, timeout=380, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert 0 < report["records"] <= 600
    assert 0 < report["latency_s"]["p50"] <= report["latency_s"]["p99"] <= report["latency_s"]["max"]
    stages = report["stages_s"]
    assert list(stages) == ["append", "fetch", "seal", "trigger", "plan", "read"]
    assert all(value >= 0 for stage in stages.values() for value in stage.values())
    assert sum(stage["at_p50"] for stage in stages.values()) == pytest.approx(report["latency_s"]["p50"], rel=0.2)
    assert 0 < report["since_append_s"]["p50"] <= report["latency_s"]["p50"]

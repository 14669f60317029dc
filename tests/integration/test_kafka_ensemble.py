"""`scripts/ensemble kafka`, and how Kafka is had at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from consumer.logs import KafkaPlace, open_log
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.embedded.kafka_jars import fetch_kafka
from coordinator.zk.errors import MissingProgram, UsageError
from tests.support.kafka import Kafka, refused
from tests.support.processes import REPOSITORY


def ensemble(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`scripts/ensemble`, in a process of its own."""
    command = [sys.executable, "-c", "from coordinator.cli.ensemble import main; main()", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def test_broker_is_started_on_the_ensemble_reported_and_stopped(kafka: Kafka, zookeeper: Ensemble) -> None:
    """`kafka` is asked for so that its jars are there, or the test is skipped with the reason."""
    directory = ["--dir", str(zookeeper.directory)]
    try:
        started = ensemble("kafka", "start", *directory)
        assert started.returncode == 0, started.stderr
        assert f"--zk {zookeeper.hosts} --log-dir kafka:" in started.stderr
        status = ensemble("kafka", "status", "-o", "json", *directory)
        assert (status.returncode, json.loads(status.stdout)["address"]) == (0, started.stdout.strip())
        log = open_log("kafka:", KafkaPlace(zk=zookeeper.hosts))
        try:
            assert "no such topic" in str(refused(log, "nothing", "x"))
        finally:
            log.close()
    finally:
        stopped = ensemble("kafka", "stop", *directory)
    assert stopped.returncode == 0
    down = ensemble("kafka", "status", *directory)
    assert down.returncode == 5
    assert "down" in down.stdout


def test_a_broker_needs_an_ensemble_that_runs(tmp_path: Path) -> None:
    Ensemble(tmp_path)

    done = ensemble("kafka", "start", "--dir", str(tmp_path))

    assert done.returncode == 4
    assert "scripts/ensemble start" in done.stderr


def test_unreachable_jars_are_reported_with_a_remedy_and_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ZK_GROUP_IVY_SETTINGS", str(tmp_path / "none.xml"))

    with pytest.raises(MissingProgram, match="Maven repository") as raised:
        fetch_kafka()

    assert raised.value.exit_code == 69
    assert [path.name for path in (tmp_path / "zk-group-coordinator").iterdir()] == ["kafka.lock"]


def test_options_that_librdkafka_does_not_know_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.option"):
        open_log("kafka://127.0.0.1:1", KafkaPlace(options={"no.such.option": "1"}))

"""`scripts/ensemble kafka`, and how Kafka is had at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from consumer.logs import KafkaPlace, open_log
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.embedded.kafka import fetch_kafka
from coordinator.zk.errors import MissingProgram, UsageError
from tests.support.cli import run, run_json
from tests.support.kafka import Kafka, refused
from tests.support.processes import REPOSITORY


def ensemble(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    """`scripts/ensemble`, in a process of its own."""
    command = [sys.executable, "-c", "from coordinator.cli.ensemble import main; main()", *arguments]
    streams = {"input": lines, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=REPOSITORY, timeout=120, check=False, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.full("each way to run a broker")
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


@pytest.mark.full("each way to run a broker")
def test_a_trial_of_kafka_needs_no_tools_of_kafka(kafka: Kafka, zookeeper: Ensemble) -> None:
    directory = ["--dir", str(zookeeper.directory)]
    try:
        missing = ensemble("kafka", "topic", "flights", *directory)
        assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
        assert f"scripts/ensemble kafka start --dir {zookeeper.directory}" in missing.stderr
        assert "scripts/ensemble kafka topic NAME" in ensemble("kafka", "start", *directory).stderr

        refused = run(zookeeper.hosts, "topics", "create", "flights", "--partitions", "2")
        assert refused.exit_code == 2 and "scripts/ensemble kafka topic NAME --partitions 4" in refused.output
        early = ensemble("kafka", "produce", "flights", *directory, lines="1\n")
        assert early.returncode == 2 and "kafka topic flights --partitions 4" in early.stderr

        said = [ensemble("kafka", "topic", "flights", "--partitions", n, *directory).stdout for n in ("2", "2", "3")]
        assert said == [
            "topic flights created: 2 partitions\n",
            "topic flights unchanged: 2 partitions\n",
            "topic flights altered: 3 partitions\n",
        ]
        fewer = ensemble("kafka", "topic", "flights", "--partitions", "1", *directory)
        assert fewer.returncode == 2 and "cannot become fewer" in fewer.stderr
        listed = run_json(zookeeper.hosts, "topics", "list")
        assert {topic["topic"]: topic["partitions"] for topic in listed}["flights"] == 3

        numbers = "".join(f"{number}\n" for number in range(3000))
        produced = ensemble("kafka", "produce", "flights", *directory, lines=numbers)
        assert (produced.returncode, produced.stderr) == (0, "3000 records written to flights\n")
        keyed = ensemble("kafka", "produce", "flights", "--key-separator", ":", *directory, lines="k:3000\nbad\n")
        assert keyed.returncode == 2 and "'bad' has no ':'" in keyed.stderr
        consumed = ensemble("kafka", "consume", "flights", "--timeout-ms", "3000", *directory)
        assert sorted(map(int, consumed.stdout.split())) == list(range(3001)), "those before a bad line, too"
        some = ensemble("kafka", "consume", "flights", "--max-records", "5", *directory)
        assert (some.returncode, len(some.stdout.split())) == (0, 5)

        deleted = ensemble("kafka", "topic", "flights", "--delete", *directory)
        assert (deleted.returncode, deleted.stdout) == (0, "topic flights deleted\n")
        again = ensemble("kafka", "topic", "flights", "--delete", *directory)
        assert again.returncode == 2 and again.stderr.startswith("ensemble: refused: ")
    finally:
        ensemble("kafka", "stop", *directory)


@pytest.mark.full("each way to run a broker")
def test_a_broker_needs_an_ensemble_that_runs(tmp_path: Path) -> None:
    Ensemble(tmp_path)

    done = ensemble("kafka", "start", "--dir", str(tmp_path))

    assert done.returncode == 4
    assert "scripts/ensemble start" in done.stderr


@pytest.mark.full("each way to run a broker")
def test_unreachable_jars_are_reported_with_a_remedy_and_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ZK_GROUP_IVY_SETTINGS", str(tmp_path / "none.xml"))

    with pytest.raises(MissingProgram, match="Maven repository") as raised:
        fetch_kafka()

    assert raised.value.exit_code == 69
    assert [path.name for path in (tmp_path / "zk-group-coordinator").iterdir()] == ["kafka.lock"]


@pytest.mark.full("each way to run a broker")
def test_options_that_librdkafka_does_not_know_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.option"):
        open_log("kafka://127.0.0.1:1", KafkaPlace(options={"no.such.option": "1"}))

"""The drill that kills the Kafka broker which the records are in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.drills import PATIENT, REPOSITORY, drilled, environment, require_pass
from tests.support.kafka import require_kafka

pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(300)]

NAME = "kafka-broker-sigkill"
IVY_WITHOUT_ANYTHING = """<ivysettings>
  <settings defaultResolver="none"/>
  <resolvers><filesystem name="none"><artifact pattern="{0}/[artifact].[ext]"/></filesystem></resolvers>
</ivysettings>
"""


class Drilled(NamedTuple):
    """Its exit code and its report."""

    code: int
    drill: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.drill["folder"])

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def kafka_drill(tmp_path_factory: pytest.TempPathFactory) -> Drilled:
    require_kafka()
    code, said, err = drilled(tmp_path_factory.mktemp("runs"), NAME, *PATIENT)
    (drill,) = said["drills"]
    assert drill["drill"] == NAME, err
    return Drilled(code, drill)


def test_broker_kill_loses_and_duplicates_no_record_and_triggers_no_rebalance(kafka_drill: Drilled) -> None:
    drill = kafka_drill.drill

    require_pass(drill)
    assert kafka_drill.code == 0
    records = drill["records"]
    assert records["delivered"] == records["produced"] > 1000
    assert records["misplaced"] == 0
    assert (drill["numbers"]["generations"], drill["numbers"]["passed_on"]) == (0, 0)


def test_the_broker_was_down_and_fetching_resumed_after_its_restart(kafka_drill: Drilled) -> None:
    history = kafka_drill.history()
    faults = {event["kind"]: event["at"] for event in history if event["event"] == "fault"}
    killed, back = faults["kill-broker"], faults["broker-returns"]
    fetched = [event["at"] for event in history if event["event"] == "fetch"]

    assert back - killed > 3
    assert min(fetched) < killed
    assert not [at for at in fetched if killed + 1.5 < at < killed + 3], "only records in flight were delivered"
    assert max(fetched) > back


def test_its_evidence_has_the_log_of_the_broker_and_not_its_data(kafka_drill: Drilled) -> None:
    logs = {path.name for path in (kafka_drill.folder / "logs").iterdir()}
    answer = json.loads((kafka_drill.folder / "logs" / "kafka_reader.out").read_text())

    assert {"broker.log", "producer.log"} <= logs
    assert sum(answer["ends"]["numbers"].popitem()[1].values()) == kafka_drill.drill["records"]["produced"]
    assert not (kafka_drill.folder / "kafka").exists()


def test_missing_kafka_jars_are_one_clear_error_before_the_drill_starts(tmp_path: Path) -> None:
    settings = tmp_path / "ivy.xml"
    settings.write_text(IVY_WITHOUT_ANYTHING.format(tmp_path / "empty"))
    nowhere = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "ZK_GROUP_IVY_SETTINGS": str(settings)}
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "drill", "run", NAME, "--runs", str(tmp_path / "runs")]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment(), **nowhere}, cwd=REPOSITORY
    )

    assert done.returncode == 69, done.stderr
    assert "the jars of Kafka 3.9.1 cannot be fetched" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
